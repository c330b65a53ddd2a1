"""Calls what a user has written; whatever it raises becomes one line."""

from __future__ import annotations

import contextlib
import os
import re
import traceback
from collections.abc import Iterator
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist import runtime
from distmnist.cluster import errors
from distmnist.common import cli, signals
from distmnist.training.problems import keras_errors

_EAGER = 'load', 'prepare', 'make_model', 'finish', 'spec'


def call(named: str, module: Any, name: str, *args: Any) -> Any:
  """Calls a function of a problem's module; reports errors in one line.

  Args:
    named: how the user names the module.
    module: the module, or what stands in for it.
    name: the function's. Functions that build no graph run eagerly.
    *args: the function's arguments.

  Raises:
    cli.UsageError, cli.RunError: see `reporting`.
  """
  mode = runtime.eagerly() if name in _EAGER else contextlib.nullcontext()
  with reporting(named, module, name), mode:
    return getattr(module, name)(*args)


@contextlib.contextmanager
def reporting(named: str, module: Any, name: str) -> Iterator[None]:
  """Turns whatever a user's function raises in the block into one line.

  Args: see `call`.

  Raises:
    cli.UsageError: in its place; cli.RunError if memory is short.
  """
  try:
    yield
  except (cli.UsageError, cli.RunError):
    raise
  except BaseException as error:
    if signals.is_signal(error):
      raise
    raise explain(named, module, name, error) from error


def explain(
  named: str, module: Any, name: str, error: BaseException
) -> cli.CodeError | cli.RunError:
  """Returns a cli.UsageError or cli.RunError for an error in a function."""
  place = locate(error, module.__file__)
  return _make_error(
    error, f'--problem={named}: {place}, in {name}(): {describe(error)}'
  )


def _make_error(
  error: BaseException, text: str
) -> cli.CodeError | cli.RunError:
  if isinstance(error, MemoryError):
    return cli.RunError(text)
  cause: BaseException | None = (
    error  # Our readers name the file, and keep the system's error.
  )
  while cause and not isinstance(cause, OSError):
    cause = cause.__cause__
  if not cause:
    return cli.CodeError(text)
  return cli.choose_error(cause, cli.CodeError)(text)


def explain_import(
  named: str, error: BaseException
) -> cli.CodeError | cli.RunError:
  """Returns the error (cli.UsageError or cli.RunError) of a failed import."""
  where = locate(error, named)
  return _make_error(
    error, f'--problem={named} cannot be imported: {where}: {describe(error)}'
  )


def locate(error: BaseException, path: str) -> str:
  """Returns 'file.py:7' for the user's last line, or the file's name alone."""
  if isinstance(error, SyntaxError) and error.filename:
    return f'{os.path.basename(error.filename)}:{error.lineno}'
  frame = find_frame(error, path)
  wanted = os.path.basename(path)
  return f'{wanted}:{frame.lineno}' if frame else wanted


def find_frame(
  error: BaseException, path: str
) -> traceback.FrameSummary | None:
  """Returns the user's last traceback.FrameSummary in a file, or None."""
  wanted = os.path.basename(path)
  frames = traceback.extract_tb(error.__traceback__)
  own = [f for f in frames if os.path.basename(f.filename) == wanted]
  return own[-1] if own else None


def describe(error: BaseException) -> str:
  """Returns an error as one line: its type and its first line."""
  if isinstance(error, SystemExit):  # Such as that of argparse.
    return (
      f'it ends the program (SystemExit: {error.code}), which is not its own: '
      'raise an error; for flags of its own it takes absl.flags, not argparse'
    )
  text = re.sub(r'\x1b\[\d*m', '', str(error))
  is_of_op = isinstance(error, tf.errors.OpError)
  if is_of_op and text == keras_errors.shorten(text):  # No layer's error.
    # Its first line may say nothing.
    return f'{type(error).__name__}: {errors.explain(error)}'
  if text.startswith('in user code:'):  # A tf.function: its error comes last.
    text = text.rstrip().rpartition('\n\n')[2].strip()
    text = text.removeprefix(f'{type(error).__name__}: ')
  text = keras_errors.shorten(text)
  lines = list(filter(None, text.splitlines())) or ['no reason given']
  name = type(error).__name__
  if isinstance(error, MemoryError):  # NumPy's has another name.
    name = 'out of memory'
  return f'{name}: {lines[0][:300]}'
