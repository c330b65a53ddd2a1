"""A push that is not finite never reaches the center.

A gradient may overflow, in its own dtype or when it is cast to float16 to be
sent. One infinite number in the center ruins the training of all workers, and a
checkpoint may save it. So the worker checks each message in the form in which
it will be sent: one with a number that is not finite goes as zeros, which keeps
the mean of a lock-step round well defined, and is counted. Each message
(transport/wire.py) is checked on its own, so that none waits for the rest.
The sum of finite messages of 16 bits may overflow in a round where it is
rounded again, and that of bfloat16 in any dtype: such a mean is checked before
it is applied.
"""

from __future__ import annotations

import logging
import time
from typing import Protocol

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.transport import sums

_log = logging.getLogger(__name__)

# How often a worker checks whether something went as zeros.
_LOOK_SECS = 5.0


def guard(tensor: tf.Tensor, worker: int) -> tf.Tensor:
  """Returns `tensor`, or zeros if it is not finite.

  Args:
    tensor: float tensor.
    worker: the task_index.
  """
  with tf.device(tensor.device):
    if tensor.dtype == tf.float32:
      # Takes a tenth of the time: the sum is finite if all elements are, unless
      # they are too large to be of any use.
      is_finite = tf.math.is_finite(tf.reduce_sum(tensor))
    else:
      is_finite = _are_finite(tensor)
  name, place = _note_queue(tensor.device, worker)

  def make_zeros() -> tf.Tensor:
    with tf.device(place):
      counted = _build_queue(name).enqueue(True)
    with tf.control_dependencies([counted]):
      return tf.zeros_like(tensor)

  with tf.device(tensor.device):
    # Not tf.where, which would copy it.
    return tf.cond(is_finite, lambda: tf.identity(tensor), make_zeros)


def check_mean(mean: tf.Tensor, worker: int) -> tf.Tensor:
  """Returns a mean of 16 bits, or zeros if it is not finite; others as is.

  In an all-reduce all workers have the same bits, and decide alike. There is no
  branch: where one followed TensorFlow's collectives, these might wait for ever
  after a worker was killed (seen in 3 of 22 runs).

  Args:
    mean: float tensor.
    worker: the task_index.
  """
  if sums.choose_dtype(mean.dtype) == mean.dtype:
    return mean
  with tf.device(mean.device):
    is_finite = _are_finite(mean)
  name, place = _note_queue(mean.device, worker)
  with tf.device(place):
    # Copies of the step (exchange/steps/fused_steps.py) share it.
    with tf.control_dependencies(None):
      queue = _build_queue(name)
    number = 1 - tf.cast(is_finite, tf.int32)
    counted = queue.enqueue_many([tf.fill([number], True)])
  with tf.device(mean.device), tf.control_dependencies([counted]):
    return tf.raw_ops.SelectV2(
      condition=is_finite, t=mean, e=tf.zeros([], mean.dtype)
    )


def _note_queue(device: str, worker: int) -> tuple[str, str]:
  """Returns (name, device) of a queue that counts messages on `device`."""
  noted = graph_record.current().messages
  name = f'nonfinite/{worker}/{len(noted)}'
  place = _find_cpu(device)
  noted.append((name, place))
  return name, place


def _are_finite(tensor: tf.Tensor) -> tf.Tensor:
  return tf.reduce_all(tf.math.is_finite(tensor))


def _build_queue(name: str) -> tf.FIFOQueue:
  return tf.FIFOQueue(-1, tf.bool, (), shared_name=name)


def _find_cpu(device: str) -> str:
  """Returns the CPU beside `device`: no queue can be on a GPU."""
  if not device:
    return device
  spec = tf.DeviceSpec.from_string(device)
  return spec.replace(device_type='CPU', device_index=0).to_string()


class Stats(Protocol):
  """What a report.WorkerStats has of it."""

  nonfinite_pushes: int


class Counter:
  """Counts the pushes with numbers that were not finite, and logs them."""

  def __init__(self, stats: Stats) -> None:
    """
    Args:
      stats: filled in here.
    """
    self._stats = stats
    self._next_look = None

  def build(self) -> None:
    """Builds what counts them, once the graph of a step is complete."""
    self._drain = []
    for name, device in graph_record.current().messages:
      with tf.device(device):
        queue = _build_queue(name)
        self._drain.append(tf.size(queue.dequeue_many(queue.size())))

  def look_if_due(self, session: tf.Session) -> None:
    """Counts those since the last look, some seconds after it."""
    now = time.monotonic()
    if self._next_look is None:
      self._next_look = now + _LOOK_SECS
    elif now >= self._next_look:
      self._next_look = now + _LOOK_SECS
      self.look(session)

  def look(self, session: tf.Session) -> None:
    """Counts those since the last look."""
    # Each message of a push has its own count; the largest stands for pushes.
    number = int(max(session.run(self._drain), default=0))
    if number:
      self._stats.nonfinite_pushes += number
      _log.info(
        f'{number} pushes had numbers that are not finite, and were sent as '
        'zeros: try --clip_norm=1, a lower --learning_rate or, with '
        '--wire_dtype=float16, bfloat16'
      )
