"""How the rounds restart under another chief or with another center.

Whatever the previous chief left in the accumulators is thrown away, and each
worker gets one token of a new life (round_entry.py): none contributes twice to
a round, whatever it had contributed or was about to.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry
from distmnist.tables import sparse_sum


def build_take_over(the_round):
  """Returns the first token of a new life, once every other worker has one.

  The round restarts in whatever state the old chief left the accumulators,
  even with some of them taken and others not.

  Args:
    the_round: sync_round.Round.
  """

  def prepare(token):
    ready = [build_emptying(the_round, token)]
    if the_round.tokens.has_own_queue:
      ready.append(the_round.tokens.take_all())
    with tf.control_dependencies(ready):
      return the_round.tokens.make_for_others(token)

  return the_round.entry.begin_life(prepare)


def build_new_center(the_round):
  """Returns the first token, after which nothing of an earlier center counts.

  All in one run, as each new kind of session.run takes 50 ms to prepare.

  Args:
    the_round: sync_round.Round.
  """
  # A worker still waiting in an old session wakes up and finds it broken. The
  # tokens left over are of an old life: a contribution made with one is dropped
  # and does no harm.
  with tf.device(the_round.global_step.device):
    released = tf.cond(
      the_round.entry.read_token() < round_entry.LIFE,
      tf.no_op,
      the_round.tokens.release,
    )
  num_spare = the_round.num_contributions - the_round.cluster.num_workers

  def prepare(token):
    ready = [
      build_emptying(the_round, token),
      the_round.token_table.clear(),
      *the_round.tokens.reset(token),
    ]
    if the_round.tokens.has_own_queue:
      ready.append(the_round.tokens.take_all())
    with tf.control_dependencies(ready):
      # With R <= N there is no spare token: this keeps the workers in step.
      if num_spare > 0:
        return the_round.tokens.make([num_spare], token, if_open=True)
      return tf.no_op()

  with tf.control_dependencies([released]):
    return the_round.entry.begin_life(prepare)


def build_emptying(the_round, token):
  """Returns the op that throws away what was contributed before `token`.

  Args:
    the_round: sync_round.Round.
    token: int64 scalar tensor, the first one of a new life.
  """
  emptied = {}
  for accumulator, device in the_round.accumulators:
    with tf.device(device):
      # First, so that no more old contributions come in.
      closed = accumulator.set_global_step(token)
      with tf.control_dependencies([closed]):
        taken = sparse_sum.take_all(accumulator, token)
      # Taking the mean has advanced the step of the accumulator.
      with tf.control_dependencies([taken]):
        done = accumulator.set_global_step(token)
    emptied.setdefault(device, []).append(done)
  if not the_round.given:
    return tf.group(*sum(emptied.values(), []))
  forgotten = []
  for device, done in emptied.items():
    # Last: what was noted but thrown away would otherwise be missing.
    with tf.control_dependencies(done):
      forgotten.append(the_round.given.forget(device))
  return tf.group(*forgotten)
