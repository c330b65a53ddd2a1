"""A round whose units (shard_tokens.py) are updated, and pulled, one by one."""

import functools

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import sync_round
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
    self._units = units
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
    )
    self.rounds_per_run = max(1, min(5, _UNITS_PER_RUN // len(units)))

  def _contribute(self, tensors, own_token):
    with tf.device(self.global_step.device):
      staleness, self.pushed = self.entry.contribute(
        own_token, lambda token: self._apply(tensors, token)
      )
    self.tokens.begin_wait(staleness)
    return staleness

  def _apply(self, tensors, local_step):
    given = [None] * len(tensors)
    for number, unit in enumerate(self._units):
      parts = [tensors[i] for i in unit]
      accumulators = [self.accumulators[i][0] for i in unit]

      def build(token, accumulators=accumulators, parts=parts):
        return [
          accumulator.apply_grad(part, token)
          for accumulator, part in zip(accumulators, parts, strict=True)
        ]

      noted = self.tokens.parts.give_once(number, local_step, build, parts)
      for i in unit:
        given[i] = noted
    # Those of `state` are in no unit.
    for i, tensor in enumerate(tensors):
      if given[i] is None:
        accumulator, place = self.accumulators[i]
        with tf.device(place):
          given[i] = accumulator.apply_grad(tensor, local_step)
    return given
