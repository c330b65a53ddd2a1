"""Turns what a script with a loop of its own raises into one line."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Iterator, Sequence

import tensorflow.compat.v1 as tf

from distmnist.cluster import (
  errors,
  incarnations,
  repeated_runs,
  stop_request,
)
from distmnist.common import cli
from distmnist.common.names import CHIEF
from distmnist.data import initial_values
from distmnist.exchange import graph_copy
from distmnist.training import script_calls, script_checks
from distmnist.training.problems import classic_variables, user_calls
from distmnist.transport import sharding

# What the script's own session.run, and its variables, pass through.
_PASSED = (
  *(incarnations.__file__, repeated_runs.__file__),
  *(script_calls.__file__, classic_variables.__file__, sharding.__file__),
  initial_values.__file__,
)
# Reported in one line elsewhere, or by the session.
_NOT_OF_THE_SCRIPT = (
  *errors.GONE,
  cli.RunError,
  cli.UsageError,
  stop_request.StoppedError,
  tf.errors.ResourceExhaustedError,
  MemoryError,
)
_HINTS = {
  'Run called even after should_stop requested': (
    'the last step is made: task.evaluate(...) still reads the center; else '
    'add `and not session.should_stop()`'
  ),
  "'_GeneratorContextManager' object": (
    'write `with` before a session of a task, as in with '
    'tf.train.MonitoredTrainingSession(...) as session:'
  ),
  'is not available with Keras 3': (
    'make the variables by tf.get_variable and compute with tf.nn'
  ),
  "has no attribute 'contrib'": 'TensorFlow 2 has no tf.contrib',
}


@contextlib.contextmanager
def explained(script: str) -> Iterator[None]:
  """Turns an error that is the script's in the block into one line.

  An error of ours stays as it is.

  Args:
    script: the path of its file, which may lie among the libraries.

  Raises:
    cli.RunError: in place of such an error.
  """
  script = os.path.realpath(script)
  try:
    yield
  except _NOT_OF_THE_SCRIPT:
    raise
  except Exception as error:
    is_of_op = isinstance(error, tf.errors.OpError)
    if is_of_op and errors.is_loss(error):
      raise
    op = getattr(error, 'op', None) if is_of_op else None
    if op is not None:
      place = _locate_op(op, script)
    else:
      place = _locate(traceback.extract_tb(error.__traceback__), script)
    if not place:
      raise
    said = errors.explain(error) if is_of_op else user_calls.describe(error)
    hints = [text for words, text in _HINTS.items() if words in said]
    raise cli.RunError('; '.join([f'{place}: {said}', *hints])) from error


def describe_end(error: Exception, name: str, where: str) -> str:
  """Returns why a worker makes no more steps, in one line.

  Args:
    name: such as 'worker 1'.
    where: the step that this was.
  """
  op = getattr(error, 'op', None)
  if isinstance(error, StopIteration) or (op and '/job:ps' not in op.device):
    return (
      f'the input of {name} ends {where}: it makes no more; repeat() a dataset '
      'that is to last'
    )
  # The queue on a ps from which a rule takes what a worker waits for.
  return f'{CHIEF} has ended the training {where}'


def _locate_op(op: tf.Operation, script: str) -> str | None:
  """Returns where the script made `op`, or None if we made it."""
  places = (
    _locate(origin.traceback or (), script)
    for origin in graph_copy.find_origins(op)
  )
  return next(filter(None, places), None)


def _locate(
  frames: Sequence[traceback.FrameSummary], script: str
) -> str | None:
  """Returns 'mine.py:7, in train()' if the last caller is not one of ours."""
  for frame in reversed(frames):
    path = os.path.realpath(frame.filename)
    if frame.filename in _PASSED:
      continue
    if path != script and path.startswith(script_checks.OURS):
      return None
    if path == script or not path.startswith(script_checks.LIBRARIES):
      return f'{os.path.basename(path)}:{frame.lineno}, in {frame.name}()'
  return None
