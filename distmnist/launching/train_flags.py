"""The flags of train, known without TensorFlow and checked before it starts.

A launcher passes train's flags on, perhaps into a queue of hours. Importing
train would take seconds, so its flags are listed in train_flags.json, which
`python -m scripts.train_flags` writes; a test says when to run it again.

The flags that a user's problem defines are read from its file, and those of
other packages' modules from their sources. What is not seen there is known to
train itself, which imports them: a flag that comes from a module of the file's
own, for example.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import functools
import importlib.util
import json
import logging
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from typing import Any

import absl.logging  # noqa: F401  Its flags are train's, too.
from absl import flags

from distmnist.common import cli, command_line, names, registry
from distmnist.common.names import CHECK, PACKAGE

_log = logging.getLogger(__name__)

# From one line about a check that takes long to the next.
_LINE_SECS = 20.0
# What nobody but a launcher calls so.
_OF_A_LAUNCH = 'num_ps', 'num_workers', 'launcher', 'max_restarts', 'logs_dir'
# {name: what _define_flag takes}. A flag whose values are the names of a room
# has the room instead of them, as other packages add to it.
MANIFEST = pathlib.Path(__file__).with_suffix('.json')


def expand(words: Sequence[str]) -> list[str]:
  """Returns `words` with each --flagfile among them expanded.

  Raises:
    cli.UsageError: one cannot be read.
  """
  try:
    return command_line.expand(words)
  except flags.Error as error:
    raise cli.UsageError(str(error)) from error


def check(words: Sequence[str]) -> flags.FlagValues:
  """Checks names, types and bounds of the flags `words`.

  A flag that only train itself can know is left to train: one that the user's
  problem, or another package's module, takes from another file or defines in a
  way that is not read here.

  Returns:
    flags.FlagValues, all flags of train, with those of `words` set.

  Raises:
    cli.UsageError: one is wrong.
  """
  values = _define()
  problem = command_line.find_value(expand(words), 'problem')
  _define_from(_read_problem(problem), values)
  is_users = problem not in (None, *_find_own_problems())
  known_only = bool(is_users or _find_others())
  try:
    rest = command_line.parse(values, ['train', *words], known_only)
  except flags.UnrecognizedFlagError as error:
    if _has(flags.FLAGS, error.flagname):
      raise _explain_order(error.flagname, words) from error
    if (meant := f'num_{error.flagname}') in _OF_A_LAUNCH:
      raise cli.UsageError(
        f'no program has a flag --{error.flagname}: expected --{meant}'
      ) from error
    known = {*values, *flags.FLAGS}
    raise cli.UsageError(
      f'there is no flag --{error.flagname}{_suggest(error.flagname, known)}',
      'train',
    ) from error
  except flags.Error as error:
    raise cli.UsageError(str(error), 'train') from error
  for word in rest:
    # A problem's helpers may define flags of the names of others.
    name = word.lstrip('-').partition('=')[0]
    if name in _OF_A_LAUNCH:
      raise _explain_order(name, words)
  if rest and not rest[0].startswith('-'):
    raise cli.UsageError(
      f'{rest[0]!r} after the -- is not a flag: flags start with --', 'train'
    )
  for name, room in names.ROOMS_OF_FLAGS.items():
    registry.check_is_one(room, values[name].value or '')
  return values


def _find_own_problems() -> list[str]:
  """Returns the names of the problems whose flags are all in their file."""
  found = registry.find(names.PROBLEMS)
  return [n for n, m in found.items() if m.startswith(f'{PACKAGE}.')]


def _suggest(name: str, known: Collection[str]) -> str:
  """Returns ': did you mean --learning_rate?' for lr, '' if nothing is like it.

  Args:
    name: what no flag is called.
    known: the flags of train and of this program.
  """
  of_word = [n for n in known if ''.join(p[:1] for p in n.split('_')) == name]
  close = difflib.get_close_matches(name, known)
  found = list(dict.fromkeys([*sorted(of_word), *close]))[:3]
  return f': did you mean --{" or --".join(found)}?' if found else ''


def _explain_order(name: str, words: Sequence[str]) -> cli.UsageError:
  """Returns the cli.UsageError about a flag of the launcher after the `--`."""
  given = command_line.find_value(words, name)
  value = f'={given}' if given and not given.startswith('-') else ''
  return cli.UsageError(
    f'--{name} is a flag of this program, not of train: give it before the '
    f'--, as in --{name}{value} --'
  )


def is_known(name: str) -> bool:
  """Whether train has a flag of this name, or a bool that it turns off."""
  return _has(_define(), name)


def _has(values: flags.FlagValues, name: str) -> bool:
  """Whether a flags.FlagValues has this flag, or a bool that it turns off."""
  return name in values or (
    name.startswith('no')
    and name[2:] in values
    and bool(values[name[2:]].boolean)
  )


def find_idle(words: Sequence[str]) -> tuple[set[str], set[str]]:
  """Returns the names of flags that could as well be left out.

  Args:
    words: each a --name=value or a Boolean.

  Returns:
    Names that train does not have, names whose values are as by default.
  """
  values = _define()
  names = {word.lstrip('-').partition('=')[0] for word in words}
  unknown = {name for name in names if not _has(values, name)}
  command_line.parse(values, ['train', *words], known_only=True)
  return unknown, {
    name
    for name in values
    if values[name].present and values[name].value == values[name].default
  }


def _define() -> flags.FlagValues:
  """Returns flags.FlagValues with the flags of train, none of them set."""
  values = flags.FlagValues()
  for flag in flags.FLAGS.flags_by_module_dict()['absl.logging']:
    values[flag.name] = _copy(flag)
  for name, found in _read_manifest().items():
    _define_flag(values, name, **found)
  for module in _find_others():
    _define_from(_get_source(module), values)
  return values


@functools.cache
def _read_manifest() -> dict[str, dict[str, Any]]:
  return json.loads(MANIFEST.read_bytes())


def _define_flag(
  values: flags.FlagValues,
  name: str,
  kind: str,
  room: str | None = None,
  **how: Any,
) -> None:
  """Defines a flag in `values` by the function flags.DEFINE_`kind`.

  Args:
    room: the package whose names are the values of an enum; or None.
    **how: other arguments of the function.
  """
  if room:
    how['enum_values'] = registry.names(room)
  getattr(flags, f'DEFINE_{kind}')(name, help='', flag_values=values, **how)


def _find_others() -> list[str]:
  """Returns the modules that other packages add to train."""
  rooms = {found.get('room') for found in _read_manifest().values()}
  return [
    module
    for room in sorted({*filter(None, rooms), names.RANKERS})
    for module in registry.find(room).values()
    if not module.startswith(f'{PACKAGE}.')
  ]


def _copy(flag: flags.Flag) -> flags.Flag:
  """Returns a library's flag, not set whatever this process was given."""
  return flags.Flag(
    flag.parser,
    flag.serializer,
    flag.name,
    None,
    flag.help,
    boolean=flag.boolean,
  )


def check_combination(
  words: Sequence[str], num_ps: int, num_workers: int
) -> None:
  """Has train check whether its flags fit each other and the cluster.

  Checks that need data, a GPU or a folder are left to the hosts.

  Args:
    words: the flags of train.

  Raises:
    cli.UsageError: they do not fit.
  """
  with tempfile.TemporaryDirectory(prefix='distmnist_check_') as folder:
    path = os.path.join(folder, 'check.json')
    asked = {'num_ps': num_ps, 'num_workers': num_workers}
    with open(path, 'w', encoding='utf-8') as file:
      json.dump({**asked, 'flags': [words], 'needs_data': False}, file)
    code, lines = _run_check(path)
    if code:
      _log.info(
        f'the flags of train are checked by the hosts alone: {lines[-1]}'
      )
      return
    with open(f'{path}.checked', encoding='utf-8') as file:
      (mistake,) = json.load(file)
  if mistake:
    raise cli.UsageError(mistake, 'train')


def _run_check(path: str) -> tuple[int, list[str]]:
  """Returns (exit code, last words) of the program that checks a file's flags.

  It imports TensorFlow, for which a busy machine or file system may take long.
  """
  start = time.monotonic()
  with subprocess.Popen(
    [sys.executable, '-m', CHECK, path],
    stdout=subprocess.DEVNULL,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
          _, said = process.communicate(timeout=_LINE_SECS)
          lines = said.strip().splitlines() or ['no reason given']
          return process.returncode, lines
        secs = time.monotonic() - start
        _log.info(f'the check of the flags of train takes {secs:.0f} s so far')
    except BaseException:  # A signal, say.
      process.kill()
      raise


def _get_source(module: str) -> str:
  """Returns the source of another package's module.

  Raises:
    cli.UsageError: there is no such module.
  """
  spec = None
  with contextlib.suppress(ModuleNotFoundError):
    spec = importlib.util.find_spec(module)
  if spec is None:
    raise registry.explain(module, None)
  # Not every loader has it, and the contract of loaders does not name it.
  read = getattr(spec.loader, 'get_source', None)
  return (read and read(module)) or ''


def _define_from(source: bytes | str, values: flags.FlagValues) -> None:
  """Defines the flags of a source in `values`, as far as they can be read.

  Their definitions may use literals, names of literals at the top level, and
  `registry.names`.

  Args:
    source: nothing is defined if it is no Python.
  """
  try:
    tree = ast.parse(source)
  except (SyntaxError, ValueError):
    return
  known = {**vars(names), 'registry': registry}
  for node in tree.body:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
      with contextlib.suppress(ValueError):  # It is no literal.
        known[node.targets[0].id] = ast.literal_eval(node.value)
  for node in ast.walk(tree):
    if not isinstance(node, ast.Call):
      continue
    function = ast.unparse(node.func).rpartition('.')[2]
    if function.startswith('DEFINE_'):
      with contextlib.suppress(Exception):  # Whatever the user's words raise.
        define = functools.partial(getattr(flags, function), flag_values=values)
        node.func = ast.copy_location(ast.Name('define', ast.Load()), node)
        code = compile(ast.Expression(node), 'the flags of train', 'eval')
        eval(code, {**known, 'define': define})


def _read_problem(named: str | None) -> bytes:
  """Returns the source of a problem, b'' if it is not found.

  Args:
    named: the value of --problem, or None.
  """
  path = named or ''
  path = registry.find(names.PROBLEMS).get(path, path)
  if path.startswith(f'{names.PACKAGE}.'):
    with contextlib.suppress(ImportError):  # There is none.
      spec = importlib.util.find_spec(path)
      path = (spec and spec.origin) or path
  if not path.endswith('.py'):
    path = f'{path.replace(".", os.sep)}.py'
  for folder in ['', *sys.path]:
    found = os.path.join(folder, os.path.expanduser(path))
    with contextlib.suppress(OSError, ValueError):
      return pathlib.Path(found).read_bytes()
  return b''
