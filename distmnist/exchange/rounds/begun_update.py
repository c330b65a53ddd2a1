"""Whether an update has begun and is not yet counted.

Each shard is updated once its own accumulator has all contributions, even while
others are still pushed or applied. So until the round is counted the center may
be of two updates, and is not to be saved.

In lock-step nothing is noted for this: what the chief has contributed to a part
with the current token (given_parts.py), and what is no longer in the
accumulator, has been taken for the update. Otherwise the ps counts the
contributions that are in all accumulators (round_entry.py): no update begins
before R are.
"""

import tensorflow.compat.v1 as tf

_CHIEF = 0


def build_is_whole(the_round):
  """Returns whether no shard is ahead of the others, a bool scalar tensor.

  Args:
    the_round: sync_round.Round.
  """
  if not the_round.entry.is_lock_step:
    return tf.logical_not(the_round.entry.is_complete())
  token, are_whole = the_round.entry.read_token(), []
  for place, parts in the_round.given.places.items():
    with tf.device(place):
      # Of the accumulators of a part one may be taken before another.
      members = [the_round.parts[part] for part in parts]
      sizes = [len(indices) for indices in members]
      given = tf.repeat(the_round.given.find(place, _CHIEF), sizes)
      accumulators = [the_round.accumulators[i][0] for x in members for i in x]
      counts = tf.stack([x.num_accumulated() for x in accumulators])
      is_taken = tf.equal(given, tf.identity(token)) & tf.equal(counts, 0)
      are_whole.append(tf.logical_not(tf.reduce_any(is_taken)))
  with tf.device(the_round.global_step.device):
    return tf.reduce_all(tf.stack(are_whole))
