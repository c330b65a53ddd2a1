"""Finds the line that made an op of a user's problem that fails in a step."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.common import cli
from distmnist.data import streamed
from distmnist.exchange import graph_copy
from distmnist.nn import embeddings
from distmnist.training.problems import problem_module, user_calls

# The function that calls those of a problem, in the traceback of an op.
_CALL = os.path.realpath(user_calls.__file__), user_calls.call.__name__


@contextlib.contextmanager
def explained() -> Iterator[None]:
  """Turns an error of a reader, or of an op of the user's file, into one line.

  A reader's is one that it has raised since the `with` began.

  Raises:
    cli.RunError: in place of such an error.
  """
  with streamed.noted_failures() as failures:
    try:
      yield
    except (*errors.GONE, cli.RunError, cli.UsageError, MemoryError):
      raise
    except (tf.errors.OpError, streamed.ReadError) as error:
      failure = failures[0] if failures else None
      if named := _explain(error, failure):
        raise named from failure or error
      raise


def _explain(
  error: tf.errors.OpError | streamed.ReadError,
  failure: BaseException | None,
) -> cli.RunError | None:
  """Returns the error in one line, or None if it is no mistake of the user's.

  Args:
    failure: what a reader has raised.
  """
  op = getattr(error, 'op', None)
  named, module = problem_module.load()
  if failure:
    frame = user_calls.find_frame(failure, module.__file__)
    name = frame.name if frame else 'load'
    found = user_calls.explain(named, module, name, failure)
    is_passing = isinstance(found, cli.PassingError)
    kind = cli.PassingError if is_passing else cli.RunError
    return kind(str(found))
  place = module and locate(op, os.path.realpath(module.__file__))
  if not place:
    # One of our own ops has a message that says what is wrong.
    if op is None or op.name.split('/')[-1] != embeddings.CHECK:
      return None
    place = 'in build()'
  # A file that an op reads. What else an op may lack would recur.
  is_sick = isinstance(error, tf.errors.UnknownError)
  kind = cli.choose_error(error) if is_sick else cli.RunError
  return kind(f'--problem={named}: {place}: {errors.explain(error)}')


def locate(op: tf.Operation | None, path: str) -> str | None:
  """Returns where an op of the problem was made, or None if it is not its op.

  Args:
    path: the user's file.

  Returns:
    'file.py:7, in build()'; 'in loss()' if a library made it for that
    function of the problem, as Keras does.
  """
  for origin in graph_copy.find_origins(op):
    frames = [*(origin.traceback or ())]
    paths = [os.path.realpath(frame.filename) for frame in frames]
    if path in paths:
      last = [f for f, p in zip(frames, paths, strict=True) if p == path][-1]
      return f'{os.path.basename(path)}:{last.lineno}, in {last.name}()'
    for caller, called in itertools.pairwise(frames):
      if (os.path.realpath(caller.filename), caller.name) == _CALL:
        return f'in {called.name}()'
  return None
