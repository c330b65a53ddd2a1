"""Finds the line that made an op of a user's problem that fails in a step."""

import contextlib
import os

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.common import cli
from distmnist.data import streamed
from distmnist.nn import embeddings
from distmnist.training.problems import problem_module


@contextlib.contextmanager
def explained():
  """Turns an error of a reader, or of an op of the user's file, into one line.

  Raises:
    cli.RunError: in place of such an error.
  """
  try:
    yield
  except (*errors.GONE, cli.RunError, cli.UsageError, MemoryError):
    raise
  except Exception as error:
    is_of_op = isinstance(error, tf.errors.OpError)
    failure = streamed.find_failure()
    if not is_of_op and error is not failure:
      raise
    named, module = problem_module.load()
    if failure:
      found = problem_module.explain(named, module, 'load', failure)
      raise cli.RunError(str(found)) from failure
    place = module and _locate(error.op, os.path.realpath(module.__file__))
    if not place and not _is_check(error.op):
      raise
    place = place or 'in build()'
    raise cli.RunError(
      f'--problem={named}: {place}: {errors.explain(error)}'
    ) from error


def _is_check(op):
  """Whether an op is one of ours, whose message says what is wrong."""
  return op is not None and op.name.split('/')[-1] == embeddings.CHECK


def _locate(op, path):
  """Returns 'file.py:7, in build()' for the line that made an op, or None.

  Args:
    op: tf.Operation or None.
    path: str, the file to look for.
  """
  while op is not None:
    # An op in a copy of the step has none.
    traceback = op.traceback or ()
    frames = [f for f in traceback if os.path.realpath(f.filename) == path]
    if frames:
      last = frames[-1]
      return f'{os.path.basename(path)}:{last.lineno}, in {last.name}()'
    op = op._original_op  # The op whose gradient this one is.
  return None
