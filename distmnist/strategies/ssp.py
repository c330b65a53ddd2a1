"""Stale synchronous parallel: asynchronous, but no worker runs far ahead.

Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel
parameter server" (NIPS), section 2; second source: Dai et al. 2015, "High-
performance distributed ML at scale through parameter server consistency
models", arXiv 1410.8043. c^i counts the steps of worker i; it may start its
next one if and only if

  c^i - min_j c^j <= S

and then does what async_sgd does: pull x~;  g = g^i(x~);  x~ <- Opt(x~, g).
S (ssp_bound) = 0 is bulk-synchronous, a large S asynchronous.

Variables, slots and the clocks c live on the ps, with a queue of permits for
each worker: each time min_j c^j rises, every worker gets a permit. A worker
takes one at the end of a step, so it waits if its next step may not start yet.
If a worker dies, the others wait, S steps ahead of its clock, until it is back.
One that leaves in an orderly way, or is asked to stop, holds up no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.exchange import bounded_clocks, pull_ahead
from distmnist.transport import strategy

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


_SSP_BOUND = flags.DEFINE_integer(
  'ssp_bound',
  3,
  'ssp: S, how many steps a worker may be ahead of the slowest.',
  lower_bound=0,
)


def make(cluster: Cluster) -> Ssp:
  return Ssp(cluster, _SSP_BOUND.value, pull_ahead.is_wanted())


class Ssp(pull_ahead.PullingStrategy):
  """async_sgd with a bound on how far the workers drift apart."""

  waits_for_all = True

  def __init__(
    self, cluster: Cluster, bound: int, pulls_ahead: bool = False
  ) -> None:
    super().__init__(cluster, pulls_ahead)
    self._bound = bound

  def minimize(
    self,
    loss: tf.Tensor,
    make_optimizer: strategy.MakeOptimizer,
    global_step: tf.Variable,
  ) -> strategy.Update:
    with tf.name_scope('ssp'):
      self._clocks = bounded_clocks.Clocks(
        self.cluster, self._bound, global_step.device
      )
      optimizer = make_optimizer()
      read_step = self._center.read_step(global_step)
      gradients = self._center.compute_gradients(optimizer, loss)
      pairs = self._center.to_shards(gradients)
      with tf.device(global_step.device):  # Where all ps meet.
        apply = optimizer.apply_gradients(pairs)
      new_step, staleness = strategy.count_update(
        global_step, [apply], read_step, self.mark_done
      )
      ticked = self._clocks.tick_and_wait([new_step])
      with tf.control_dependencies([ticked]), tf.device(global_step.device):
        new_step = tf.identity(new_step)
      train_op, staleness = self._center.take_next([new_step, staleness])
      return strategy.Update(train_op, staleness, *self._center.count_bytes())

  def pause(self, session: tf.Session) -> None:
    session.run(self._clocks.leave)

  def resume(self, session: tf.Session) -> None:
    session.run(self._clocks.enter)

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    return [bounded_clocks.ClocksHook(self._clocks, stop)]
