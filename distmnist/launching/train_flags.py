"""The flags of train, known without TensorFlow and checked before it starts.

A launcher passes train's flags on, perhaps into a queue of hours. Importing
train would take seconds, so it reads the definitions from train's sources:
every `flags.DEFINE_...` at the top level of train and of what train imports.
They use only literals, `registry.names`, common/names.py and names of literals
in the same file; a test compares the result with the flags of train itself.

The flags that a user's problem defines are read from its file in the same way.
What is not seen there is known to train itself, which imports the file: a flag
that comes from a module of the file's own, for example.
"""

import ast
import contextlib
import functools
import importlib.util
import json
import logging
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import absl.logging  # noqa: F401  Its flags are train's, too.
from absl import flags

from distmnist.common import cli, command_line, names, registry
from distmnist.common.names import CHECK, PACKAGE, TRAIN

_log = logging.getLogger(__name__)

_LINES = re.MULTILINE | re.DOTALL
_DEFINITION = re.compile(
  r'^(?:\w+ = )?flags\.DEFINE_\w+\((?:[^\n]*\)$|.*?^\)$)', _LINES
)
_IMPORT = re.compile(
  rf'^from ({PACKAGE}[.\w]*) import (?:\((.*?)\)|([^\n]*))', _LINES
)
_COMMENT = re.compile(r'#[^\n]*')
_LOAD_ALL = re.compile(r'registry\.load_all\((\w+)\)')
_LIBRARIES = ('absl.logging',)
# In source that `ast` has written: each statement on one line, no comments.
_PROBLEM_DEFINITION = re.compile(
  r'^ *(?:[^=\n]+ = )?(?:[\w.]+\.)?(DEFINE_\w+\(.*\))$', re.MULTILINE
)


def expand(words):
  """Returns `words` (list of str) with each --flagfile among them expanded.

  Raises:
    cli.UsageError: one cannot be read.
  """
  try:
    return command_line.expand(words)
  except flags.Error as error:
    raise cli.UsageError(str(error)) from error


def check(words):
  """Checks names, types and bounds of the flags `words` (list of str).

  A flag that only train itself can know is left to train: one that the user's
  problem takes from another file, or defines in a way that is not read here.

  Returns:
    flags.FlagValues, all flags of train, with those of `words` set.

  Raises:
    cli.UsageError: one is wrong.
  """
  values = _define()
  problem = command_line.find_value(expand(words), 'problem')
  define_of_problem(problem, _know(values))
  try:
    rest = command_line.parse(values, ['train', *words], bool(problem))
  except flags.Error as error:
    raise cli.UsageError(str(error), 'train') from error
  if rest and not rest[0].startswith('-'):
    raise cli.UsageError(
      f'{rest[0]!r} after the -- is not a flag: flags start with --', 'train'
    )
  for name, room in names.ROOMS_OF_FLAGS.items():
    registry.check_is_one(room, values[name].value)
  return values


def is_known(name):
  """Whether train has a flag of this name, or a bool that it turns off."""
  values = _define()
  return name in values or (
    name.startswith('no')
    and name[2:] in values
    and bool(values[name[2:]].boolean)
  )


def _define():
  """Returns flags.FlagValues with the flags of train, none of them set."""
  values = flags.FlagValues()
  for library in _LIBRARIES:
    for flag in flags.FLAGS.flags_by_module_dict()[library]:
      values[flag.name] = _copy(flag)
  known = _know(values)
  for name, code in _compile():
    exec(code, {}, ProblemNames(known, _get_source(name)))
  return values


def _know(values):
  """Returns {name: value} for running definitions, which add to `values`."""
  return {**vars(names), 'flags': _Flags(values), 'registry': registry}


def _copy(flag):
  """Returns a library's flag, not set whatever this process was given."""
  return flags.Flag(
    flag.parser,
    flag.serializer,
    flag.name,
    None,
    flag.help,
    boolean=flag.boolean,
  )


class _Flags:
  """Stands in for absl.flags: what is defined goes to `values`."""

  def __init__(self, values):
    self._values = values

  def __getattr__(self, name):
    return functools.partial(getattr(flags, name), flag_values=self._values)


def check_combination(words, num_ps, num_workers):
  """Has train check whether its flags fit each other and the cluster.

  Args:
    words: list of str, the flags of train.
    num_ps, num_workers: int.

  Raises:
    cli.UsageError: they do not fit.
  """
  (mistake,) = find_mistakes([words], num_ps, num_workers)
  if mistake:
    raise cli.UsageError(mistake, 'train')


def find_mistakes(combinations, num_ps, num_workers):
  """Returns train's objection (str) to each list of flags, None if it fits.

  Checks that need data, a GPU or a folder are left to the hosts.
  """
  with tempfile.TemporaryDirectory(prefix='distmnist_check_') as folder:
    path = os.path.join(folder, 'check.json')
    asked = {'num_ps': num_ps, 'num_workers': num_workers}
    with open(path, 'w', encoding='utf-8') as file:
      json.dump({**asked, 'flags': combinations, 'needs_data': False}, file)
    done = subprocess.run(
      [sys.executable, '-m', CHECK, path],
      capture_output=True,
      text=True,
    )
    if done.returncode:
      lines = done.stderr.strip().splitlines() or ['no reason given']
      _log.info(
        f'the flags of train are checked by the hosts alone: {lines[-1]}'
      )
      return [None] * len(combinations)
    with open(f'{path}.checked', encoding='utf-8') as file:
      return json.load(file)


@functools.cache
def _compile():
  """Returns (name of its module, code) for each definition."""
  return [
    (name, compile(text, f'the flags of {name}', 'exec'))
    for name in _find_modules(TRAIN)
    for text in _DEFINITION.findall(_get_source(name))
  ]


def _find_modules(root):
  """Returns the names of `root` and of all modules of ours that it imports."""
  found, left = [], [root]
  while left:
    name = left.pop()
    if name in found:
      continue
    found.append(name)
    source = _get_source(name)
    for package, several, one in _IMPORT.findall(source):
      left.append(package)
      if _find_spec(package).submodule_search_locations is None:
        continue  # It imports names from a module.
      for word in _COMMENT.sub('', several or one).split(','):
        if word := word.split(' as ')[0].strip():
          left.append(f'{package}.{word}')
    for constant in _LOAD_ALL.findall(source):
      left += registry.find(getattr(names, constant)).values()
  return found


@functools.cache
def _find_spec(name):
  return importlib.util.find_spec(name)


@functools.cache
def _get_source(name):
  try:
    spec = _find_spec(name)
  except ModuleNotFoundError:
    spec = None
  if spec is None:  # Of ours none is missing.
    raise registry.explain(name, None)
  return spec.loader.get_source(name) or ''


class ProblemNames(dict):
  """What a definition may name: `known`, and literals of its own file."""

  def __init__(self, known, source):
    """
    Args:
      known: {name: value}.
      source: str, that of the file.
    """
    super().__init__(known)
    self._source = source

  def __missing__(self, name):
    found = re.search(
      rf'^{name} = (.*?)(?=^\S)(?:[)\]}}]$)?', self._source, _LINES
    )
    if found is None:
      raise KeyError(name)
    return ast.literal_eval(found[0].partition(' = ')[2])


def define_of_problem(named, known):
  """Runs the definitions of a problem that are literals.

  Args:
    named: str, the value of --problem, or None.
    known: {name: value} for Names, in which `flags` stands for absl.flags.
  """
  source = _read_problem(named)
  for text in _PROBLEM_DEFINITION.findall(source):
    with contextlib.suppress(Exception):  # The user's code may raise anything.
      code = compile(f'flags.{text}', 'the flags of --problem', 'exec')
      exec(code, {}, ProblemNames(known, source))


def _read_problem(named):
  """Returns the source (str) of a problem; '' if it is not found or no Python.

  Args:
    named: str, the value of --problem, or None.
  """
  path = registry.find(names.PROBLEMS).get(named, named or '')
  if path.startswith(f'{names.PACKAGE}.'):
    with contextlib.suppress(AttributeError, ImportError):  # There is none.
      path = importlib.util.find_spec(path).origin
  if not path.endswith('.py'):
    path = f'{path.replace(".", os.sep)}.py'
  for folder in ['', *sys.path]:
    found = os.path.join(folder, os.path.expanduser(path))
    with contextlib.suppress(OSError, ValueError, SyntaxError):
      return ast.unparse(ast.parse(pathlib.Path(found).read_bytes()))
  return ''
