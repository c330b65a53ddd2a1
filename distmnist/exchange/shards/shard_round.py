"""A round whose units (shard_tokens.py) are updated, and pulled, one by one."""

import functools

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import contributions, sync_round
from distmnist.exchange.shards import places, shard_tokens

# In a session.run of the chief, which has several rounds of a small model.
_UNITS_PER_RUN = 20


class ShardRound(sync_round.Round):
  """The accumulators of all shards, and the tokens of all units.

  Attributes: those of sync_round.Round; `pushed` is known whatever R is.
  """

  make_entry = places.Places

  def __init__(
    self, cluster, num_contributions, global_step, shards, token, units
  ):
    """
    Args:
      cluster, num_contributions, global_step, token: see sync_round.Round;
        num_contributions is at most the number of workers.
      shards: list of tf.Variable.
      units: list of lists of int, the shards that travel together.
    """
    super().__init__(
      cluster,
      num_contributions,
      global_step,
      sync_round.make_accumulators(shards),
      token,
      functools.partial(
        shard_tokens.ShardTokens,
        unit_devices=[shards[unit[0]].device for unit in units],
      ),
      units,
    )
    self.rounds_per_run = max(1, min(5, _UNITS_PER_RUN // len(units)))

  def build_is_whole(self):
    return self.tokens.build_is_whole()

  def _contribute(self, tensors, own_token):
    contribution = contributions.Contribution(self, tensors)
    with tf.device(self.global_step.device):
      staleness, self.pushed = self.entry.contribute(
        own_token, contribution.apply
      )
    self.tokens.begin_wait(staleness)
    return staleness
