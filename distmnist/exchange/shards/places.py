"""Which R of N workers an update takes its gradients from, for all shards.

Once its gradients are computed, and before it pushes them, a worker asks the ps
of the global_step for a place in the round of its token; the first R to ask get
one. Their gradients count in every shard. The others' are late in every shard,
and are dropped where they arrive. So a shard need not wait until a whole
gradient has arrived to know whether it counts.

Nor can a gradient that counts be of shards of two updates: no shard is updated
before R workers have a place, and a worker that asks after that gets none.

A place belongs to a worker's index: if a worker is lost with its place, the
round waits for its successor, which pushes what its predecessor had not.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry


class Places(round_entry.Entry):
  """The places of the open round; with R = N each worker has one."""

  def contribute(self, own_token, apply):
    """Contributes to the round of `own_token`, if there is a place in it.

    Args:
      own_token: int64 scalar tensor on this ps, there once the gradients are.
      apply: callable(local_step) -> list of ops that accumulate; local_step
        is an int64 scalar tensor.

    Returns:
      (staleness, ops): int64 scalar tensor, known before anything has arrived,
      or None in lock-step (see round_entry.Entry.contribute), and what `apply`
      has returned.
    """
    if self.is_lock_step:
      return super().contribute(own_token, apply)

    def enter():
      step, life = self._global_step.read_value(), self._read_life()
      num_in, open_step = self._find_open(step)
      had = self._find(self._own_key)
      is_mine = tf.equal(own_token, had) & tf.equal(own_token, life + step)
      is_free = tf.equal(own_token, life + open_step) & ~self._is_full()
      is_in = is_mine | is_free
      counted = self._set(
        {
          round_entry.NUM_IN: num_in + tf.cast(is_in & ~is_mine, tf.int64),
          self._own_key: tf.where(is_in, own_token, had),
        }
      )
      missed = tf.maximum(open_step - round_entry.step_of(own_token), 1)
      with tf.control_dependencies([counted]):
        return tf.where(is_in, tf.zeros_like(missed), missed)

    staleness = self._run_locked(enter)
    with tf.device(staleness.device):
      never = tf.constant(round_entry.NEVER_IN, tf.int64)
      local_step = tf.where(tf.equal(staleness, 0), own_token, never)
    return staleness, apply(local_step)
