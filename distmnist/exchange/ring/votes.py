"""What the workers of a ring tell each other along with their gradients.

All must stop after the same step: one that wants to stop says so in its next
step. Also all must make as many steps at a time: each says how long its steps
take, and whether its next run may be a long one. And all must cut the rate at
the same step: the chief says that it has. The vote travels with the last
bucket, so that it costs no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.exchange.ring import buckets
from distmnist.transport import gradients as gradients_lib
from distmnist.transport import strategy, sums

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


# The largest number of float16 is 65,504. Who takes longer makes single steps.
_MOST_MS = 60_000
_NUM_VOTES = 6
_WANTS_STOP, _IS_PREEMPTED, _HAS_LEFT, _IS_SHORT, _MS, _HAS_CUT = np.eye(
  _NUM_VOTES, dtype=np.float32
)


class Votes(strategy.RunAgreement):
  """This worker's vote, and the mean of all.

  Attributes:
    mean: float32 [6] tensor: the fractions of the workers that want to stop,
      that were asked to by a signal, that have left a loop of their own, and
      whose next run must be a single step; the milliseconds of a step; the
      fraction that has cut the rate.
    is_any_cut: bool scalar tensor, whether one has.
    wants_stop: whether this worker wants to stop.
    stop: stop_request.StopRequest, or None as long as there is none.
  """

  def __init__(self, cluster: Cluster, bucket_bytes: int) -> None:
    """
    Args:
      bucket_bytes: see buckets.fill.
    """
    self.mean: tf.Tensor | None = None
    self.is_any_cut: tf.Tensor | None = None
    self.stop: StopRequest | None = None
    self.wants_stop = False
    self._cluster = cluster
    self._bucket_bytes = bucket_bytes
    self._variables, self._has_weights = (), False
    self.forget()

  def build_means(
    self,
    gradients: Sequence[tf.Tensor],
    variables: Sequence[tf.Variable],
    is_cut: bool | tf.Tensor = False,
    weight: tf.Tensor | None = None,
  ) -> list[tf.Tensor]:
    """Returns the workers' mean gradients; sets `mean` and `is_any_cut`.

    Args:
      gradients, variables: see buckets.build_means.
      is_cut: bool scalar tensor, whether this worker has cut the rate, of which
        the others are to hear in this step.
      weight: float32 scalar tensor, how much this worker's gradients count; see
        Strategy.weigh_by. None if those of all count alike.
    """
    self._variables, self._has_weights = variables, weight is not None
    with tf.device(self._cluster.cpu_device):
      own = tf.py_func(self._vote, [], tf.float32, name='votes')
      # If the votes are lost, a worker that wants to stop votes again.
      own = tf.ensure_shape(own, [_NUM_VOTES])
      own += tf.cast(is_cut, tf.float32) * _HAS_CUT
      if weight is not None:
        # As it arrives, so that gradients are weighed by what is added up.
        weight = tf.cast(weight, self._cluster.wire_dtype)
        weight = tf.cast(weight, tf.float32)
        gradients = gradients_lib.weigh(gradients, weight)
        own = tf.concat([own, [weight]], 0)
      means, mean = buckets.build_means(
        self._cluster, gradients, variables, own, self._bucket_bytes
      )
      if weight is not None:
        mean_weight, mean = mean[-1], mean[:-1]
        means = [sums.divide(each, mean_weight) for each in means]
      self.mean, self.is_any_cut = mean, mean[-1] > 0
    return means

  def forget(self) -> None:
    self.secs, self.is_long = 0.0, False
    self._own = self.secs, self.is_long

  def vote(self, secs: float, is_long: bool) -> None:
    self._own = secs, is_long

  def note(self, mean: np.ndarray) -> list[bool]:
    """Notes what all have voted, the array `mean`.

    Returns:
      (wants_stop, is_preempted, has_left), bools: whether any worker is so.
    """
    *are, is_short, ms, _ = mean  # The graph itself has heard of a cut.
    self.secs, self.is_long = float(ms) / 1000, is_short == 0
    return [share > 0 for share in are]

  def build_leave(self, has_failed: bool) -> tf.Operation:
    """Returns an op: a step in which this worker only votes that it has left.

    Args:
      has_failed: see buckets.build_leave.
    """
    own = _WANTS_STOP + _HAS_LEFT
    if self._has_weights:
      own = np.append(own, np.float32(0))
    own = tf.constant(own)
    return buckets.build_leave(
      self._cluster, self._variables, own, self._bucket_bytes, has_failed
    )

  def describe(self) -> list[str]:
    """Returns in which way gradients travel, see buckets.describe."""
    return buckets.describe(self._cluster, self._variables, self._bucket_bytes)

  def _vote(self) -> np.ndarray:
    is_preempted = self.stop is not None and self.stop.is_requested
    secs, is_long = self._own
    return (
      _WANTS_STOP * self.wants_stop
      + _IS_PREEMPTED * is_preempted
      + _IS_SHORT * (not is_long)
      + _MS * np.float32(min(1000 * secs, _MOST_MS))
    )
