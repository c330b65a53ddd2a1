"""What every distmnist program shares: flags in, one line and a code out.

A program hands its `main` to `run`. Exit codes:

  0        done
  1        the run failed, and would fail again
  2        the command line is wrong
  3        another task was lost or is stalled, or a disk or a store is in
           trouble: starting again may help
  75       stopped by a signal, and not everything is saved
  98       the port chosen for this task is taken: others may work
  70       a mistake of ours, with its traceback
  71       of a task that its launcher could not start: no process, or no log
  128 + n  stopped by signal n; 141 if nobody reads what it prints

A user's mistake becomes one line on stderr that says what was given, what was
expected and what to do.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeVar

from absl import flags

from distmnist.common import command_line, files, help_text, output, signals
from distmnist.common.names import ATTEMPT, BY_COMMAND, PACKAGE
from distmnist.storage import mirror, scratch, urls

FAILED = 1
WRONG_COMMAND_LINE = 2
LOST = 3
NOT_SAVED = 75  # EX_TEMPFAIL of sysexits.h.
PORT_TAKEN = 98  # EADDRINUSE of Linux.
OUR_MISTAKE = 70  # EX_SOFTWARE of sysexits.h.
NOT_STARTED = 71  # EX_OSERR of sysexits.h.
_NO_READER = 141  # As when SIGPIPE ends a program in a shell.

# These would recur after a restart, and the task has said what to do.
FINAL_CODES = (FAILED, WRONG_COMMAND_LINE)
# What only the user can mend: a path, a right, what a file system can do. All
# else may pass: a disk is full or sick, a server is away, a fork is refused.
_OF_THE_USER = (
  *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EEXIST),
  *(errno.ENAMETOOLONG, errno.ENODEV, errno.ENXIO, errno.EXDEV, errno.EINVAL),
  *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.EMSGSIZE),
  *(errno.ENOSYS, errno.ENOTSUP, errno.ENOTEMPTY, errno.ENOEXEC),
)
# What TensorFlow makes of the others, by the names of its errors. It has none
# for a disk that is sick, and reports other things by the same one: there the
# system's words tell.
_PASSING_KINDS = (
  *('AbortedError', 'CancelledError', 'DeadlineExceededError'),
  *('ResourceExhaustedError', 'UnavailableError'),
)
_SICK = errno.EIO, errno.EREMOTEIO, errno.ESTALE, errno.ENOTCONN
_TOO_MANY = errno.EMFILE, errno.ENFILE
# Of an OSError that nothing has explained, a mistake of ours.
_OF_OURS = errno.ENOENT, errno.EEXIST, errno.EINVAL, errno.ENOTEMPTY
# The last line of a program that has failed: its name (as a group, if it is one
# of ours), and the reason.
ERROR_LINE = re.compile(rf'(?:{PACKAGE}\.(\w+)|[^\s:]+\.py): error: (.*)')
# These words in an error tell a sweep that the training has diverged.
DIVERGED = 'the training has diverged'

FLAGS = flags.FLAGS
_Final = TypeVar('_Final', bound=Exception)

_HELP = flags.DEFINE_bool(
  'help', False, 'Explain the flags that matter most, name the rest, and exit.'
)
_HELPFULL = flags.DEFINE_bool(
  'helpfull', False, 'Explain all flags, also those of libraries, and exit.'
)


class UsageError(Exception):
  """The command line cannot work: exit code 2.

  `program`: the short name of another program whose --help tells more, or None.
  """

  def __init__(self, message: str, program: str | None = None) -> None:
    super().__init__(message)
    self.program = program


class CodeError(UsageError):
  """A file of the user's has a mistake, of which no --help tells more."""


class RunError(Exception):
  """The command line is fine but the run failed: exit code 1."""

  exit_code = FAILED


class LostError(RunError):
  """Another task is gone or stalled: exit code 3."""

  exit_code = LOST


class PassingError(RunError):
  """Somebody else may mend this: a task hangs, a disk is full, a store is away.

  Exit code 3 of a task that a launcher has started again, and in the middle of
  a run (`amid_run`). A first attempt that has not begun ends with 1: nothing is
  lost, whoever started it looks on, and at the very start a wrong address,
  port or folder is the likelier cause, which would recur.

  Attributes:
    is_amid_run: whether work may be lost.
  """

  is_amid_run = False

  @property
  def exit_code(self) -> int:
    return LOST if self.is_amid_run or ATTEMPT in os.environ else FAILED


def is_passing(cause: Exception) -> bool:
  """Whether a system error may go away though its user does nothing.

  Args:
    cause: an OSError, or the tf.errors.OpError of an op that reads or writes
      files.
  """
  if isinstance(cause, OSError):
    if cause.errno is None:  # A library's own, such as "not an image".
      return isinstance(cause, (ConnectionError, TimeoutError))
    return cause.errno not in _OF_THE_USER
  if type(cause).__name__ in _PASSING_KINDS:
    return True
  return any(os.strerror(number) in str(cause) for number in _SICK)


def choose_error(
  cause: Exception,
  final: type[_Final] = RunError,
  passing: type[RunError] = PassingError,
) -> type[_Final] | type[RunError]:
  """Returns the class of the error that reports `cause`; see `is_passing`."""
  return passing if is_passing(cause) else final


@contextlib.contextmanager
def amid_run() -> Iterator[None]:
  """Lets what may pass end even a first attempt with 3: work may be lost.

  Raises:
    LostError: in place of an OSError of a file that may pass.
  """
  try:
    yield
  except PassingError as error:
    error.is_amid_run = True
    raise
  except OSError as error:
    what = _explain_os_error(error)
    if what and is_passing(error):
      raise LostError(what) from error
    raise


class NotSavedError(RunError):
  """This task was told to stop and has not saved what it held: exit code 75.

  Not 3, as no other task is at fault; as with 3, a new start may help.
  """

  exit_code = NOT_SAVED


class PortTakenError(RunError):
  """The port chosen for this task is already taken: exit code 98."""

  exit_code = PORT_TAKEN


def run(
  main: Callable[..., int | None],
  argv: Sequence[str] | None = None,
  passthrough: bool = False,
  leave: Callable[[int], Any] = sys.exit,
  takes_words: bool = False,
  is_for_train: Callable[[str], bool] = lambda name: False,
  first_flags: Collection[str] = (),
  prepare: Callable[[list[str]], None] = lambda words: None,
  is_shown: Callable[[str], bool] = lambda name: True,
) -> None:
  """Parses the flags, calls `main` and ends the process with its exit code.

  Args:
    main: returns an exit code, or None for 0. Its arguments:
      the list of words that are not flags if `takes_words`, then the list of
      words after `--` if `passthrough`.
    argv: program name first; sys.argv by default.
    passthrough: whether `main` handles the words after `--`.
    leave: ends the process with an exit code.
    takes_words: whether `main` handles words that are not flags, before and
      after the flags; else they are a usage error.
    is_for_train: whether a flag, by its name, belongs after `--`.
    first_flags: names of the flags that --help explains; by default those of
      the program's own module.
    prepare: called with the words, without --flagfile, before they are parsed:
      the module that a flag names is imported now, as its flags are not known
      earlier.
    is_shown: whether --help may tell of a flag, by its name.
  """
  output.prepare()
  argv = list(sys.argv if argv is None else argv)
  program = _program_name(main)
  rest, kept = [], None  # Freeing a session that is cut off takes forever.
  if passthrough and '--' in argv:
    cut = argv.index('--')
    argv, rest = argv[:cut], argv[cut + 1 :]
  try:
    signals.raise_on_ctrl_c()
    words = command_line.expand(argv[1:])
    prepare(words)
    words = command_line.parse(FLAGS, [argv[0], *words])
    if FLAGS.help or FLAGS.helpfull:
      code = _print_help(program, main.__module__, first_flags, is_shown)
    elif words and not takes_words:
      raise UsageError(f'{words[0]!r} is not a flag: flags start with --')
    else:
      code = main(*[words] * takes_words, *[rest] * passthrough)
  except flags.UnrecognizedFlagError as error:
    message = _explain_unknown(program, error, passthrough, is_for_train)
    code = _report(program, message, WRONG_COMMAND_LINE)
  except (flags.Error, UsageError) as error:
    help_of = getattr(error, 'program', None)
    has_help = not isinstance(error, CodeError)
    code = _report(program, error, WRONG_COMMAND_LINE, help_of, has_help)
  except RunError as error:
    code, kept = _report(program, error, error.exit_code), error
  except KeyboardInterrupt:
    if ATTEMPT in os.environ:  # From a task 130 says that all is saved.
      sys.stdout.flush()
      signals.end_as_by_ctrl_c()
    code = 130
  except OSError as error:
    code = _report_os_error(program, error)
  except MemoryError as error:
    code = _report(program, _explain_memory(error), FAILED)
  except Exception as error:
    code, kept = _report_unexpected(program, error), error
  for tidy in (mirror.close, scratch.remove):
    tidy()
  leave(_end_output(program, code or 0))
  del kept


def _end_output(program: str, code: int) -> int:
  """Returns the exit code, once what was printed is written."""
  try:
    output.is_read()
  except OSError as error:
    what = f'its output cannot be written: {error.strerror}'
    code = code or _report(program, what, choose_error(error)().exit_code)
    output.discard(sys.stdout, sys.stderr)
  return code


def _print_help(
  program: str,
  module_name: str,
  first_flags: Collection[str],
  is_shown: Callable[[str], bool],
) -> int:
  full = FLAGS.helpfull
  print(help_text.make(program, module_name, first_flags, full, is_shown))
  return 0


def _report_os_error(program: str, error: OSError) -> int:
  if what := _explain_os_error(error):
    return _report(program, what, choose_error(error)().exit_code)
  return _report_unexpected(program, error)


def _explain_os_error(error: OSError) -> str | None:
  """Returns what an OSError means, None if it is a mistake of ours."""
  if error.filename is None and error.errno in files.FULL:
    return f'its output cannot be written: {error.strerror}'
  if error.errno in _TOO_MANY:
    return f'{error.strerror}: see ulimit -n'
  is_theirs = error.filename and error.errno not in _OF_OURS
  if is_theirs or urls.is_remote(str(error.filename)):
    return f'{error.filename}: {error.strerror}'
  return None


def _explain_unknown(
  program: str,
  error: flags.UnrecognizedFlagError,
  passthrough: bool,
  is_for_train: Callable[[str], bool],
) -> str:
  """Returns what to say about a flag that the program does not have."""
  name = error.flagname
  if is_for_train(name):
    return (
      f'--{name} is a flag of train: put it after the --, as in {program} --'
      f' --{name}'
    )
  return (
    f'{error} (flags of train come after --)' if passthrough else str(error)
  )


def _report_unexpected(program: str, error: Exception) -> int:
  """Reports an exception that is not one of ours; returns the exit code.

  Args:
    program: how the user calls it.
    error: the one being handled.
  """
  if isinstance(error, BrokenPipeError) and not output.is_read():
    return _NO_READER
  if type(error).__name__ == 'ResourceExhaustedError':  # TensorFlow's.
    return _report(program, _explain_memory(error), FAILED)
  traceback.print_exc()
  return OUR_MISTAKE


def _explain_memory(error: Exception) -> str:
  reason = (getattr(error, 'message', '') or str(error) or 'none left').strip()
  return (
    f'out of memory: {reason.splitlines()[0]}; take a smaller model, '
    '--batch_size or data set'
  )


def _report(
  program: str,
  error: Exception | str,
  code: int,
  help_of: str | None = None,
  has_help: bool = True,
) -> int:
  message = ' '.join(str(error).split())
  if code == WRONG_COMMAND_LINE and has_help:
    # distmnist.launch and distmnist-launch each have a matching train.
    is_ours = program.startswith(PACKAGE)
    stem = re.sub(r'\w+$', '', program) if is_ours else f'{PACKAGE}.'
    other = stem + help_of if help_of else program
    message += f' (see {other} --help)'
  with contextlib.suppress(OSError):
    print(f'{program}: error: {message}', file=sys.stderr, flush=True)
  return code


def name_command(program: str) -> str:
  """Returns how this user runs another program, such as 'report'."""
  if os.environ.get(BY_COMMAND) or is_command():
    return f'{PACKAGE} {program}'
  return f'python -m {PACKAGE}.{program}'


def is_command() -> bool:
  """Whether this process is a console script, which the tasks may not be."""
  return os.path.basename(sys.argv[0]).startswith(f'{PACKAGE}-')


def _program_name(main: Callable[..., Any]) -> str:
  """The command that a user would type: `main` may run as __main__."""
  if is_command():
    return os.path.basename(sys.argv[0])
  path = getattr(main, '__wrapped__', main).__code__.co_filename
  folder, name = os.path.split(path)
  if os.path.basename(folder) != PACKAGE:  # A program of one's own.
    return name
  return f'{PACKAGE}.{name.removesuffix(".py")}'
