"""What every distmnist program shares: flags in, one line and a code out.

A program hands its `main` to `run`. Exit codes:

  0        done
  1        the run failed, and would fail again
  2        the command line is wrong
  3        another task was lost or stands still: to start again may help
  70       a mistake of ours, with its traceback
  128 + n  stopped by signal n

A user's mistake is one line on stderr that says what was given, what was
expected and what to do.
"""

import os
import sys
import traceback

from absl import flags

FAILED = 1
WRONG_COMMAND_LINE = 2
LOST = 3
OUR_MISTAKE = 70  # EX_SOFTWARE of sysexits.h.

# By these words in its error a sweep knows a training that has diverged.
DIVERGED = 'the training has diverged'

FLAGS = flags.FLAGS

_HELP = flags.DEFINE_bool('help', False, 'Print the flags and exit.')
_HELPFULL = flags.DEFINE_bool(
  'helpfull', False, 'Print the flags, those of libraries included, and exit.'
)


class UsageError(Exception):
  """The command line cannot work: exit code 2."""


class RunError(Exception):
  """The command line is fine but the run failed: exit code 1."""

  exit_code = FAILED


class LostError(RunError):
  """Another task is gone or stands still: exit code 3."""

  exit_code = LOST


def run(main, argv=None, passthrough=False, leave=sys.exit, takes_words=False):
  """Parses the flags, calls `main` and ends the process with its exit code.

  Args:
    main: callable that returns an exit code (int) or None for 0. It is called
      with the list of words that are no flags if `takes_words`, then with the
      list of words after `--` if `passthrough`; else with no argument.
    argv: list of str, program name first; sys.argv by default.
    passthrough: whether words after `--` are `main`'s to handle.
    leave: callable that ends the process with an exit code.
    takes_words: whether words that are no flags are `main`'s to handle, before
      and after the flags; else they are a usage error.
  """
  argv = list(sys.argv if argv is None else argv)
  program = _program_name(main)
  rest = []
  if passthrough and '--' in argv:
    cut = argv.index('--')
    argv, rest = argv[:cut], argv[cut + 1 :]
  try:
    words = FLAGS(argv)[1:]
    if FLAGS.help or FLAGS.helpfull:
      print(_help_text(main, program))
      code = 0
    elif words and not takes_words:
      raise UsageError(f'{words[0]!r} is not a flag: flags start with --')
    else:
      code = main(*[words] * takes_words, *[rest] * passthrough)
  except flags.UnrecognizedFlagError as error:
    if passthrough:
      error = f'{error} (flags of train come after --)'
    code = _report(program, error, WRONG_COMMAND_LINE)
  except (flags.Error, UsageError) as error:
    code = _report(program, error, WRONG_COMMAND_LINE)
  except RunError as error:
    code = _report(program, error, error.exit_code)
  except KeyboardInterrupt:
    code = 130
  except Exception:
    traceback.print_exc()
    code = OUR_MISTAKE
  sys.stdout.flush()
  sys.stderr.flush()
  leave(code or 0)


def _report(program, error, code):
  message = ' '.join(str(error).split())
  hint = f' (see {program} --help)' if code == WRONG_COMMAND_LINE else ''
  print(f'{program}: error: {message}{hint}', file=sys.stderr, flush=True)
  return code


def _program_name(main):
  """The command that a user would type: `main` may run as __main__."""
  path = os.path.splitext(main.__code__.co_filename)[0]
  return f'distmnist.{os.path.basename(path)}'


def is_ours(module_name):
  """Whether flags of this module (absl's name for it) are distmnist's."""
  # absl files the flags of __main__ under the path of the program.
  return module_name == sys.argv[0] or module_name.startswith('distmnist.')


def _help_text(main, program):
  lines = [f'{program}: {sys.modules[main.__module__].__doc__.strip()}', '']
  modules = list(FLAGS.flags_by_module_dict())
  # The program's own flags, those of its parts as it imports them, the rest.
  own = [n for n in modules if n in (main.__module__, sys.argv[0])]
  parts = [n for n in modules if is_ours(n) and n not in own]
  shown = own + parts
  if FLAGS.helpfull:
    shown += [n for n in modules if n not in shown]
  for name in shown:
    text = FLAGS.module_help(name)
    lines.append(text.replace(f'{sys.argv[0]}:', f'{program}:', 1) + '\n')
  lines.append('--flagfile=FILE reads flags from a file; later flags win.')
  return '\n'.join(lines)
