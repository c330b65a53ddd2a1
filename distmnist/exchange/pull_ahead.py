"""Pulls the center a step ahead: a link carries both directions at once.

A worker computes with its own copies while the values for its next step are
pulled; it takes them once its push is applied. So a step takes as long as the
longer of the two transfers, not as both together. Its gradient is of a center
that is older by one of its own steps and by the others' steps in that time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import graph_record
from distmnist.exchange.center import center
from distmnist.exchange.copies import shard_copies
from distmnist.exchange.rounds import sync_round
from distmnist.transport import strategy

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


_PULL_AHEAD = flags.DEFINE_integer(
  'pull_ahead',
  0,
  'async_sgd, ssp, downpour: with 1, the values that the next step needs or '
  'fetches are pulled while this one computes and pushes: faster where the '
  'links are the bottleneck, but staler by one step of the worker itself and '
  'by the steps of others in that time. By default 0.',
  lower_bound=0,
  upper_bound=1,
)


def is_wanted() -> bool:
  """Whether --pull_ahead asks for it."""
  return bool(_PULL_AHEAD.value)


class PullingStrategy(strategy.Strategy):
  """A rule whose steps pull the whole center, or have pulled it a step ahead.

  Attributes: those of strategy.Strategy.
  """

  takes_tables = True

  def __init__(self, cluster: Cluster, pulls_ahead: bool = False) -> None:
    """
    Args:
      pulls_ahead: without a ps there is nothing to pull.
    """
    super().__init__(cluster)
    is_ahead = pulls_ahead and cluster.num_ps > 0
    self._center = (AheadCopies if is_ahead else center.Center)(cluster)
    self.needs_warmup = self.overlaps_exchange = is_ahead
    self.refuses_tables_with = '--pull_ahead=1' if is_ahead else ''

  def scope(self) -> contextlib.AbstractContextManager[None]:
    return self._center.scope()


class AheadCopies(shard_copies.ShardCopies):
  """Copies that are one pull behind the center."""

  def __init__(self, cluster: Cluster) -> None:
    super().__init__(cluster)
    self._begins = None  # No push is held back.
    self._cluster = cluster

  def read_step(self, global_step: tf.Variable) -> tf.Tensor:
    self._step = sync_round.make_token(
      self._cluster, global_step, 'pulled_step'
    )
    # A graph warm-up makes the copies stale, and this step with them.
    graph_record.current().copies.append(self._step)
    self._next_step = super().read_step(global_step)
    return self._step.value()

  def take_next(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    # They wait for no end of another op: the reads begin when the step does.
    parts = self.read_shards()
    center.read_after(self._next_step, parts)
    values = self.from_shards(parts)
    with tf.control_dependencies(tensors):
      taken = [
        self.assign(values),
        self._step.assign(self._next_step, read_value=False),
      ]
    return self.bring(tensors, taken)
