"""DOWNPOUR: asynchronous SGD on local copies, with periodic fetch and push.

Dean et al. 2012, "Large Scale Distributed Deep Networks", section 4.1. Worker
i, at its step t = 1, 2, ...:

  g = g^i(x^i);  a += g;  x^i <- LocalOpt(x^i, g)
  if n_push  divides t:  x~ <- Opt(x~, a);  a <- 0
  if n_fetch divides t:  x^i <- x~

x~ is the center, c its clock (global_step, one per push). The paper fetches at
the start of a step; here a fetch ends the step before, so a worker starts with
a fetch, and the answer to a push can carry one. With --pull_ahead=1 a fetch
brings x~ as it was when its step began, pulled while that step computes and
pushes. The paper has n_fetch = n_push = 1, with Adagrad on the ps and the same
rate everywhere.

The center and its slots live on the ps; x^i, its slots and the sum a on the
worker. No worker waits for another. If one dies, its speed and the gradients
that it has not pushed (fewer than n_push) are lost; the others go on.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.exchange import pull_ahead
from distmnist.exchange.copies import local_copies, periodic_exchange
from distmnist.transport import strategy, variable_lists

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


_N_FETCH = flags.DEFINE_integer(
  'n_fetch',
  1,
  'downpour: local steps from one fetch of the center to the next.',
  lower_bound=1,
)
_N_PUSH = flags.DEFINE_integer(
  'n_push',
  1,
  'downpour: local steps from one push of the gradients to the next.',
  lower_bound=1,
)


def make(cluster: Cluster) -> Downpour:
  return Downpour(
    cluster, _N_FETCH.value, _N_PUSH.value, pull_ahead.is_wanted()
  )


class Downpour(strategy.Strategy):
  """Sums of gradients go to the center, and its values come back."""

  has_local_steps = True
  needs_warmup = True

  def __init__(
    self,
    cluster: Cluster,
    n_fetch: int = 1,
    n_push: int = 1,
    pulls_ahead: bool = False,
  ) -> None:
    super().__init__(cluster)
    self.overlaps_exchange = pulls_ahead and cluster.num_ps > 0
    self.pull_period = n_fetch
    self.batches_per_update = self.push_period = n_push
    self._copies = local_copies.LocalCopies(cluster)

  def scope(self) -> contextlib.AbstractContextManager[None]:
    return self._copies.scope()

  def minimize(
    self,
    loss: tf.Tensor,
    make_optimizer: strategy.MakeOptimizer,
    global_step: tf.Variable,
  ) -> strategy.Update:
    copies = self._copies
    with tf.name_scope('downpour'):
      known_step = copies.make_counter(global_step.read_value(), 'known_step')
      pulled_step = copies.make_counter(global_step.read_value(), 'pulled_step')
      if self.overlaps_exchange:
        # No control inputs: the reads begin when the step does.
        next_step = global_step.read_value()
      totals, step = copies.sum_and_step(make_optimizer(is_local=True), loss)
      if self.overlaps_exchange:
        next_values = copies.read_center()  # Likewise.

      def push() -> tuple[tf.Tensor, tf.Tensor]:
        pairs = copies.to_shards(copies.read_totals(totals))
        with tf.device(global_step.device):  # Where all ps meet.
          apply = make_optimizer().apply_gradients(pairs, global_step)
        new_step = strategy.read_after(global_step, self.mark_done([apply]))
        staleness = new_step - 1 - pulled_step.read_value()
        with tf.control_dependencies([staleness]):
          cleared = variable_lists.clear_all(totals)
        with tf.control_dependencies([cleared]):
          return tf.identity(new_step), tf.identity(staleness)

      new_step, staleness, is_push = periodic_exchange.every(
        self.push_period, step, push, known_step
      )

      def take_next() -> tuple[tf.Tensor, tf.Tensor]:
        taken = [pulled_step.assign(next_step), copies.assign(next_values)]
        with tf.control_dependencies(taken):
          # This worker's own push may have returned a later step.
          last_known = tf.maximum(known_step.read_value(), next_step)
        return last_known, tf.constant(0, tf.int64)

      def pull() -> tuple[tf.Tensor, tf.Tensor]:
        if self.overlaps_exchange:
          return take_next()
        center_step = global_step.read_value()
        with tf.control_dependencies(
          [pulled_step.assign(center_step), copies.pull()]
        ):
          return tf.identity(center_step), tf.constant(0, tf.int64)

      with tf.control_dependencies([new_step, staleness]):
        train_op, _, is_pull = periodic_exchange.every(
          self.pull_period, step, pull, known_step
        )
      bytes_pushed = copies.count_bytes_if(is_push)
      bytes_pulled = copies.count_bytes_if(is_pull)
      return strategy.Update(train_op, staleness, bytes_pulled, bytes_pushed)
