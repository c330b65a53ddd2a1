"""Finds and imports the module that --problem names."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from absl import flags

from distmnist import runtime, tf_internals
from distmnist.common import (
  cli,
  command_line,
  help_text,
  registry,
  sent_file,
  signals,
)
from distmnist.common.names import PROBLEMS
from distmnist.lifecycle import consistency
from distmnist.training.problems import user_calls

if TYPE_CHECKING:
  import types

_PROBLEM = flags.DEFINE_string(
  'problem',
  None,
  'What to train, if not the net of --model on the images of --dataset: a '
  'Python file, or a module by its dotted name, with load, build and loss.',
)
_loaded: dict[str, types.ModuleType] = {}  # By the value of --problem.


def import_named(words: Sequence[str]) -> None:
  """Imports the module that --problem in `words` names, and so its flags.

  Called before the flags are parsed, as only the import defines its flags.

  Args:
    words: flags as a user gives them, without --flagfile.

  Raises:
    cli.UsageError: there is no such module, or it cannot be imported.
  """
  named = command_line.find_value(words, 'problem')
  if named and named not in _loaded:
    _loaded[named] = _import(named)


def load() -> tuple[str, Any]:
  """Returns (value of --problem, its module); ('', None) without one.

  Raises:
    cli.UsageError: there is no such module, or it cannot be imported.
  """
  named = _PROBLEM.value or ''
  if named and named not in _loaded:
    _loaded[named] = _import(named)
  return named, _loaded.get(named)


def _import(named: str) -> types.ModuleType:
  """Returns the module; raises cli.UsageError."""
  try:
    with runtime.eagerly():
      if 'keras' in sys.modules:
        tf_internals.restart_keras()
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
  except cli.UsageError:
    raise
  except ModuleNotFoundError as error:
    if error.name and named.startswith(error.name):
      raise cli.UsageError(
        f'--problem={named}: no such module; give a file that ends in .py, or '
        'the name of a module that can be imported'
      ) from error
    raise user_calls.explain_import(named, error) from error
  except BaseException as error:
    if signals.is_signal(error):
      raise
    raise user_calls.explain_import(named, error) from error
  help_text.add_ours(module.__name__)
  consistency.note_problem(read_source(module))
  return module


def read_source(module: Any) -> bytes:
  """Returns the bytes of a problem's file."""
  return module.__loader__.get_data(module.__file__)


def _import_file(named: str) -> types.ModuleType:
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
  root, name = _find_root(path)
  if name in sys.modules:
    name = f'problem_{name}' if '.' not in name else f'{name}_problem'
  # Modules in the same folder, and in its package, can be imported.
  for folder in (os.path.dirname(path), root):
    if folder not in sys.path:
      sys.path.append(folder)
  # Python would reuse bytecode of a file with the same length and mtime second.
  loader = sent_file.Loader(name, path, source)
  spec = importlib.util.spec_from_file_location(name, path, loader=loader)
  assert spec is not None  # It would be, without a loader.
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module
  try:
    loader.exec_module(module)
  except BaseException:
    del sys.modules[name]
    raise
  return module


def _find_root(path: str) -> tuple[str, str]:
  """Returns (folder of the outermost package, dotted name in it) of a file.

  Without an __init__.py beside it, these are its own folder and name.
  """
  root, name = os.path.split(path.removesuffix('.py'))
  while os.path.isfile(os.path.join(root, '__init__.py')):
    root, package = os.path.split(root)
    name = f'{package}.{name}'
  return root, name


def _check_is_alone(named: str, module: types.ModuleType) -> None:
  """Checks that no file in this folder has the module's name as well."""
  path = getattr(module, '__file__', None) or 'a folder of modules'
  beside = os.path.realpath(f'{named.replace(".", os.sep)}.py')
  if os.path.isfile(beside) and beside != os.path.realpath(path):
    raise cli.UsageError(
      f'--problem={named} is the name of {path} and of {beside}: give '
      f'--problem={os.path.relpath(beside)} for the file, or another name to '
      'one of them'
    )


def shorten(value: Any) -> str:
  """Describes a value for an error message, in at most 60 characters or so."""
  if isinstance(value, np.ndarray):
    return f'an array of shape {list(value.shape)}'
  text = repr(value)
  return text if len(text) <= 60 else f'{text[:57]}...'
