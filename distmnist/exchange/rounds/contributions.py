"""What a worker contributes to a round, part by part as it arrives."""

import tensorflow.compat.v1 as tf


class Contribution:
  """The tensors of one contribution, and what was given before it."""

  def __init__(self, the_round, tensors):
    """To be made before a place in the round is asked for, under a lock.

    Args:
      the_round: sync_round.Round.
      tensors: list of tensors or tf.IndexedSlices, one for each accumulator, on
        its ps.
    """
    self._accumulators = the_round.accumulators
    self._parts, self._given = the_round.parts, the_round.given
    self._tensors = tensors
    if self._given:
      self._last = [
        self._given.read(number, [tensors[i] for i in part])
        for number, part in enumerate(self._parts)
      ]

  def apply(self, token):
    """Returns the ops by which the accumulators take the tensors, a list.

    Args:
      token: int64 scalar tensor. What is older than an accumulator's step is
        dropped, and so is what this worker has given with the same token.
    """
    applied = [None] * len(self._tensors)
    for number, part in enumerate(self._parts):

      def build(token, part=part):
        return [self._apply_one(i, token) for i in part]

      if self._given:
        ops = [self._given.give_once(number, self._last[number], token, build)]
        ops *= len(part)
      else:
        ops = build(token)
      for i, op in zip(part, ops, strict=True):
        applied[i] = op
    return applied

  def _apply_one(self, i, token):
    accumulator, place = self._accumulators[i]
    with tf.device(place):
      return accumulator.apply_grad(self._tensors[i], token)
