"""Delay-compensated asynchronous SGD: gradients corrected to the current x~.

Zheng et al. 2016, arXiv 1609.08326, algorithms 1 and 2, equation 10; second
source: MXNet's optimizer DCASGD. Worker i:

  pull x~, and the ps keeps it as x_bak^i;  g = g^i(x_bak^i)
  x~ <- Opt(x~, g + lambda g (.) g (.) (x~ - x_bak^i))

x~ is the center, (.) the element-wise product: g (.) g stands for the diagonal
of the Hessian, so the sum is a first-order estimate of the gradient at x~. With
plain SGD it is the paper's rule; lambda is dc_lambda (0.04 in the paper, 0 is
async_sgd). Adaptive (DC-ASGD-a), with an MS for each center variable:

  MS <- m MS + (1 - m) g (.) g;  lambda = dc_lambda / sqrt(MS + 1e-7)

The center, slots, MS and each worker's x_bak live on the ps (x_bak is a local
variable of its worker: in no checkpoint, and set anew when the worker is back);
the pulled copy lives on the worker. A push is compensated and applied under one
lock, and x_bak is what the same worker then pulls. If a worker dies, only its
speed is lost; the lock, if it holds it, is released.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.exchange import locked_center
from distmnist.exchange.copies import local_copies
from distmnist.transport import strategy, sums

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


_DC_LAMBDA = flags.DEFINE_float(
  'dc_lambda',
  0.04,
  'dc_asgd: how much of the delay is compensated. Adaptive: about 2.',
  lower_bound=0,
)
_DC_ADAPTIVE = flags.DEFINE_bool(
  'dc_adaptive', False, 'dc_asgd: divide dc_lambda by the root mean square.'
)
_DC_DECAY = flags.DEFINE_float(
  'dc_decay',
  0.95,
  'dc_asgd with --dc_adaptive: m, the weight of the past in the mean square.',
  lower_bound=0,
  upper_bound=1,
)
_EPSILON = 1e-7


def make(cluster: Cluster) -> DcAsgd:
  decay = _DC_DECAY.value if _DC_ADAPTIVE.value else None
  return DcAsgd(cluster, _DC_LAMBDA.value, decay)


class DcAsgd(strategy.Strategy):
  """Gradients with a first-order correction of their delay."""

  needs_warmup = takes_tables = True

  def __init__(
    self, cluster: Cluster, dc_lambda: float, decay: float | None = None
  ) -> None:
    """
    Args:
      dc_lambda: lambda.
      decay: m of the adaptive rule; None for the constant one.
    """
    super().__init__(cluster)
    self._lambda, self._decay = dc_lambda, decay
    self.refuses_tables_with = '' if decay is None else '--dc_adaptive'
    self._copies = local_copies.LocalCopies(cluster)

  def scope(self) -> contextlib.AbstractContextManager[None]:
    return self._copies.scope()

  def minimize(
    self,
    loss: tf.Tensor,
    make_optimizer: strategy.MakeOptimizer,
    global_step: tf.Variable,
  ) -> strategy.Update:
    copies, worker = self._copies, self.cluster.task_index
    with tf.name_scope('dc_asgd'):
      optimizer = make_optimizer()
      gradients = copies.compute_gradients(optimizer, loss)
      with local_copies.local_variables():
        self._backups = copies.make_zeros_on_ps(f'backup_of_worker_{worker}')
      self._mean_squares = []
      if self._decay is not None:
        self._mean_squares = copies.make_zeros_on_ps(
          'mean_square', are_sums=True
        )
      self._center = locked_center.AtomicCenter(
        copies, global_step, keep_shards=self._backups, mark_done=self.mark_done
      )
      new_step, staleness = self._center.exchange(
        gradients,
        lambda pairs, _: optimizer.apply_gradients(self._compensate(pairs)),
      )
      return strategy.Update(new_step, staleness, *copies.count_bytes())

  def _compensate(
    self, pairs: Sequence[tuple[tf.Tensor, tf.Variable]]
  ) -> list[tuple[tf.Tensor | tf.IndexedSlices, tf.Variable]]:
    """Returns a list of (gradient at x~, shard), both on the shard's ps."""
    # As the worker has them, which a wire of 16 bits has rounded.
    pulled = self._copies.round_as_sent(self._copies.rows.pulled)
    result, rows = [], iter(pulled)
    for i, (gradient, shard) in enumerate(pairs):
      if isinstance(gradient, tf.IndexedSlices):
        moved = self._compensate_rows(gradient, shard, next(rows))
        result.append((moved, shard))
        continue
      with tf.device(shard.device):
        g, factor = sums.widen(gradient), self._lambda
        square = g * g
        if self._decay is not None:
          mean = self._mean_squares[i]
          mean_v = mean.assign(self._decay * mean + (1 - self._decay) * square)
          factor = self._lambda * tf.rsqrt(mean_v + _EPSILON)
        moved = shard.read_value() - self._backups[i].read_value()
        g += factor * square * sums.widen(moved)
        result.append((tf.cast(g, gradient.dtype), shard))
    return result

  def _compensate_rows(
    self, gradient: tf.IndexedSlices, shard: tf.Variable, pulled: tf.Tensor
  ) -> tf.IndexedSlices:
    """Returns the gradient of rows at x~; `pulled` is x_bak^i of the rows."""
    with tf.device(shard.device):
      g, rows = gradient.values, gradient.indices
      g += self._lambda * g * g * (shard.sparse_read(rows) - pulled)
      return tf.IndexedSlices(g, rows, gradient.dense_shape)

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    return [self._center.hook()]
