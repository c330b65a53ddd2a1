"""Finds and imports the module that --problem names, and locates its errors."""

import contextlib
import importlib
import importlib.util
import os
import pathlib
import re
import sys
import traceback

import numpy as np
from absl import flags

from distmnist import runtime
from distmnist.common import (
  cli,
  command_line,
  help_text,
  registry,
  sent_file,
)
from distmnist.common.names import PROBLEMS
from distmnist.lifecycle import consistency
from distmnist.training.problems import keras_errors

_PROBLEM = flags.DEFINE_string(
  'problem',
  None,
  'What to train, if not the net of --model on the images of --dataset: a '
  'Python file, or a module by its dotted name, with load, build and loss.',
)
_EAGER = 'load', 'prepare', 'make_model', 'finish', 'spec'
_loaded = {}  # {value of --problem: its module}.


def import_named(words):
  """Imports the module that --problem in `words` names, and so its flags.

  Called before the flags are parsed, as only the import defines its flags.

  Args:
    words: list of str, flags as a user gives them, without --flagfile.

  Raises:
    cli.UsageError: there is no such module, or it cannot be imported.
  """
  named = command_line.find_value(words, 'problem')
  if named and named not in _loaded:
    _loaded[named] = _import(named)


command_line.before_parse(import_named)


def load():
  """Returns (value of --problem, its module); ('', None) without one.

  Raises:
    cli.UsageError: there is no such module, or it cannot be imported.
  """
  named = _PROBLEM.value or ''
  if named and named not in _loaded:
    _loaded[named] = _import(named)
  return named, _loaded.get(named)


def call(named, module, name, *args):
  """Calls a function of a problem's module; reports errors in one line.

  Args:
    named: str, how the user names the module.
    module: the module, or what stands in for it.
    name: str, the function's. Functions that build no graph run eagerly.
    *args: the function's arguments.

  Raises:
    cli.UsageError: the user's function raises.
  """
  mode = runtime.eagerly() if name in _EAGER else contextlib.nullcontext()
  try:
    with mode:
      return getattr(module, name)(*args)
  except (cli.UsageError, cli.RunError, MemoryError):
    raise
  except Exception as error:
    raise explain(named, module, name, error) from error


def explain(named, module, name, error):
  """Returns a cli.UsageError for an error in a function of a module."""
  place = locate(error, module.__file__)
  return cli.UsageError(
    f'--problem={named}: {place}, in {name}(): {describe(error)}'
  )


def _import(named):
  """Returns the module; raises cli.UsageError."""
  try:
    with runtime.eagerly():
      if named in registry.find(PROBLEMS):
        module = registry.load(PROBLEMS, named)
      elif named.endswith('.py'):
        module = _import_file(named)
      else:
        if os.getcwd() not in sys.path:
          sys.path.append(os.getcwd())
        module = importlib.import_module(named)
    if not named.endswith('.py'):
      _check_is_alone(named, module)
  except (cli.UsageError, MemoryError):
    raise
  except ModuleNotFoundError as error:
    if error.name and named.startswith(error.name):
      raise cli.UsageError(
        f'--problem={named}: no such module; give a file that ends in .py, or '
        'the name of a module that can be imported'
      ) from error
    raise _explain_import(named, error) from error
  except Exception as error:
    raise _explain_import(named, error) from error
  help_text.add_ours(module.__name__)
  consistency.note_problem(read_source(module))
  return module


def read_source(module):
  """Returns the bytes of a problem's file."""
  return module.__loader__.get_data(module.__file__)


def _import_file(named):
  path = os.path.expanduser(named)
  source = sent_file.find(named)
  if source is None:
    if not os.path.isfile(path):
      raise cli.UsageError(
        f'--problem={path}: no such file in {os.getcwd()}; all tasks need it, '
        'under the same name'
      )
    source = pathlib.Path(path).read_bytes()
  path = os.path.abspath(path)
  name = os.path.basename(path).removesuffix('.py')
  if name in sys.modules:
    name = f'problem_{name}'
  # Modules in the same folder can be imported.
  if os.path.dirname(path) not in sys.path:
    sys.path.append(os.path.dirname(path))
  # Python would reuse bytecode of a file with the same length and mtime second.
  loader = sent_file.Loader(name, path, source)
  spec = importlib.util.spec_from_file_location(name, path, loader=loader)
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  try:
    spec.loader.exec_module(module)
  except BaseException:
    del sys.modules[name]
    raise
  return module


def _check_is_alone(named, module):
  """Checks that no file in this folder has the module's name as well."""
  path = getattr(module, '__file__', None) or 'a folder of modules'
  beside = os.path.realpath(f'{named.replace(".", os.sep)}.py')
  if os.path.isfile(beside) and beside != os.path.realpath(path):
    raise cli.UsageError(
      f'--problem={named} is the name of {path} and of {beside}: give '
      f'--problem={os.path.relpath(beside)} for the file, or another name to '
      'one of them'
    )


def _explain_import(named, error):
  where = locate(error, named)
  return cli.UsageError(
    f'--problem={named} cannot be imported: {where}: {describe(error)}'
  )


def locate(error, path):
  """Returns 'file.py:7' for the user's last line, or the file's name alone."""
  if isinstance(error, SyntaxError) and error.filename:
    return f'{os.path.basename(error.filename)}:{error.lineno}'
  frames = traceback.extract_tb(error.__traceback__)
  wanted = os.path.basename(path)
  own = [f for f in frames if os.path.basename(f.filename) == wanted]
  if not own:
    return wanted
  return f'{wanted}:{own[-1].lineno}'


def describe(error):
  """Returns an error as one line: its type and its first line."""
  text = re.sub(r'\x1b\[\d*m', '', str(error))
  if text.startswith('in user code:'):  # A tf.function: its error comes last.
    text = text.rstrip().rpartition('\n\n')[2].strip()
    text = text.removeprefix(f'{type(error).__name__}: ')
  text = keras_errors.shorten(text)
  lines = list(filter(None, text.splitlines())) or ['no reason given']
  return f'{type(error).__name__}: {lines[0][:300]}'


def shorten(value):
  """Describes a value for an error message, in at most 60 characters or so."""
  if isinstance(value, np.ndarray):
    return f'an array of shape {list(value.shape)}'
  text = repr(value)
  return text if len(text) <= 60 else f'{text[:57]}...'
