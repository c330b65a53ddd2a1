"""Lock-step: R workers give, the chief applies, everybody goes on.

SyncReplicasOptimizer does this for gradients and one step. A Round does it
for any tensors, also in a branch that is taken every T steps: accumulators on
the ps take the mean of the first R gifts of a round and drop those that come
later; a thread of the chief applies it and hands out tokens; a worker waits
for its token and then pulls.

With R = N workers each worker has one token or waits for one, so that none
gives twice to a round. This must stay so when workers die and come back, so
the ps remembers who has a token (`Holders`): one that died with its token in
hand begins with a new one, one that died while it waited takes the one that
was meant for it. For that each has a queue of its own: from one for all, who
is quick would take the token of the dead, and give twice to a round. So it is
when the chief is replaced, amid an update even: see exchange/round_entry.py.

The chief's thread, and what a session begins and ends with, are in
exchange/round_hook.py.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange import (
  round_entry,
  round_hook,
  token_barrier,
  transport,
)


def make_accumulators(shards):
  """Returns a list of (tf.ConditionalAccumulator, device), one a shard."""
  accumulators = []
  for i, shard in enumerate(shards):
    with tf.device(shard.device):
      accumulator = tf.ConditionalAccumulator(
        shard.dtype, shard.shape, shared_name=f'round/gifts_{i}'
      )
    accumulators.append((accumulator, shard.device))
  return accumulators


class Round:
  """The accumulators and tokens of a rule.

  Attributes:
    update_op: the op of a round of the chief, for `hook`.
  """

  def __init__(self, cluster, num_gifts, global_step, accumulators, token):
    """
    Args:
      cluster: cluster.Cluster.
      num_gifts: int, R.
      global_step: int64 scalar variable, the rounds that are done.
      accumulators: list of (tf.ConditionalAccumulator, device); a gift is a
        list of tensors, one for each.
      token: int64 local variable, this worker's last token.
    """
    self.cluster = cluster
    self.num_gifts = num_gifts
    self.global_step = global_step
    self.accumulators = accumulators
    self.token = token
    self.entry = round_entry.Entry(cluster, num_gifts, global_step)
    device = global_step.device
    self.tokens = token_barrier.Tokens(cluster, num_gifts, self.entry, device)
    self.holders = token_barrier.Holders(cluster, device)
    self.update_op = None

  def build_update(self, apply):
    """Builds what the chief does with the mean of the gifts.

    Args:
      apply: callable(means) -> op; means is a list of tensors, one a shard and
        on its ps.
    """
    means = []
    for accumulator, device in self.accumulators:
      with tf.device(device):
        means.append(accumulator.take_grad(self.num_gifts))
    with tf.device(self.global_step.device):
      applied = apply(means)
      with tf.control_dependencies([applied]):
        count = self.global_step.assign_add(1, read_value=False)
    self.end_update([count])

  def end_update(self, ops):
    """Has the tokens of the next round follow `ops`, which have counted it.

    They carry the new step, and must not be sent before all is applied.
    """
    with tf.control_dependencies(ops):
      self.update_op = self.tokens.make()

  def give_and_wait(self, gifts, own_token=None, mark_done=list):
    """Gives, and waits until the round is over; may stand in a branch.

    Args:
      gifts: list of tensors, one a shard.
      own_token: int64 scalar tensor, the value of `token`; read here if None.
      mark_done: callable(ops) -> ops, Strategy.mark_done.

    Returns:
      (new_step, staleness): int64 scalar tensors beside the token. staleness is
      0 if the gift is in an update, or is going to be in that of the open
      round; else it was dropped, and missed so many rounds, or 1 if its round
      was begun anew by another chief.
    """
    device = self.global_step.device
    if own_token is None:
      own_token = self.token.read_value()
    with tf.device(device):
      own_token = tf.identity(own_token)

    def apply(local_step):
      given = []
      for (accumulator, place), gift in zip(
        self.accumulators, gifts, strict=True
      ):
        with tf.device(place):
          given.append(accumulator.apply_grad(gift, local_step))
      return given

    arrived = [] if self.entry.is_lock_step else gifts
    with tf.device(device), tf.control_dependencies(arrived):
      staleness, given = self.entry.give(tf.identity(own_token), apply)
    new_token = self.holders.take(self.tokens.own, mark_done(given))
    with tf.device(device):
      new_step = round_entry.step_of(new_token)
      staleness = round_entry.correct(staleness, own_token, new_token)
    if self.token.device != device:
      new_token, new_step, staleness = transport.bring_numbers(
        [new_token, new_step, staleness]
      )
    with tf.device(self.token.device):
      taken = self.token.assign(new_token, read_value=False)
      with tf.control_dependencies([taken]):
        return tf.identity(new_step), tf.identity(staleness)

  def hook(self, stop, pull=None):
    """Returns the RoundHook; to be built with the graph still open.

    Args:
      stop: stop_request.StopRequest.
      pull: op by which the worker takes the center, or None; for one whose
        copy may be older than the token that it begins with.
    """
    return round_hook.RoundHook(self, stop, pull)


def make_round(cluster, num_gifts, global_step, copies):
  """Returns the Round of a rule with local copies.

  Args:
    cluster, num_gifts, global_step: see Round.
    copies: local_copies.LocalCopies; a gift is a list like its shards.
  """
  accumulators = make_accumulators(copies.shards)
  token = copies.make_counter(0, 'token')
  return Round(cluster, num_gifts, global_step, accumulators, token)
