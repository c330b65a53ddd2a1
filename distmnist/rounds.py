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
when the chief is replaced, amid an update even: see entry.py.
"""

import contextlib
import threading

import tensorflow.compat.v1 as tf

from distmnist import cluster as cluster_lib
from distmnist import entry as entry_lib
from distmnist import round_state, steps, strategy, wire

# At so many looks in a row, in a second, all workers must wait for one another
# until a worker that has come back takes it that its token died with its
# predecessor's connection. Looks and not seconds: one that is held up between
# two looks has not seen them all wait.
_NUM_ALL_WAIT_LOOKS = 10
_LOOK_SECS = 0.1
# A chief that is asked to stop gets so many tokens at a time: each step that
# its session.run has left takes one.
_NUM_OFFERED, _OFFER_SECS = 16, 0.1
# The chief's thread asks for so many rounds in a session.run: they follow each
# other on the ps, and the workers need not wait for the chief to ask.
_ROUNDS_PER_RUN = 5


class Holders:
  """Who has a token: a table on the ps of the tokens, 1 has one, 0 waits.

  It needs no initialisation, and is empty again when that ps is started anew.
  """

  def __init__(self, cluster, device):
    """
    Args:
      cluster: cluster.Cluster.
      device: str, where the tokens are.
    """
    self._device = device
    self._worker = cluster.task_index
    self._num_workers = cluster.num_workers
    with tf.device(device):
      self._table = tf.raw_ops.MutableHashTableV2(
        key_dtype=tf.int64, value_dtype=tf.int64, shared_name='round/holders'
      )

  def mark(self, has_token):
    """Returns the op that notes whether this worker has a token."""
    with tf.device(self._device):
      return tf.raw_ops.LookupTableInsertV2(
        table_handle=self._table,
        keys=tf.constant(self._worker, tf.int64),
        values=tf.constant(int(has_token), tf.int64),
      )

  def take(self, tokens, ops):
    """Returns the next token, waited for once all `ops` have run."""
    with tf.device(self._device):
      given = tf.group(*ops)  # One message a ps, not one an op.
    with tf.control_dependencies([given]):
      waits = self.mark(False)
    with tf.control_dependencies([waits]), tf.device(self._device):
      token = tokens.dequeue()
    with tf.control_dependencies([token]):
      has_token = self.mark(True)
    with tf.control_dependencies([has_token]), tf.device(self._device):
      return tf.identity(token)

  def read(self):
    """Returns an int64 tensor [num_workers]: 1, 0, or -1 for not here yet."""
    with tf.device(self._device):
      return tf.raw_ops.LookupTableFindV2(
        table_handle=self._table,
        keys=tf.range(self._num_workers, dtype=tf.int64),
        default_value=tf.constant(-1, tf.int64),
      )

  def clear(self):
    """Returns the op after which no worker was ever here."""
    with tf.device(self._device):
      return tf.raw_ops.LookupTableRemoveV2(
        table_handle=self._table,
        keys=tf.range(self._num_workers, dtype=tf.int64),
      )


class Tokens:
  """The queues on a ps where the workers wait.

  With R = N a worker has its own. Else there is one for all, as tokens may be
  to spare.

  Attributes:
    own: tf.FIFOQueue, where this worker waits.
    num_each: list of int, how many tokens a queue gets at the end of a round.
  """

  def __init__(self, cluster, num_gifts, entry, device):
    """
    Args:
      cluster: cluster.Cluster.
      num_gifts: int, R.
      entry: entry.Entry.
      device: str, that of the global_step.
    """
    self._device = device
    self._entry = entry
    self.num_each, self._index = [max(cluster.num_workers, num_gifts)], 0
    if entry.is_lock_step:
      self.num_each = [1] * cluster.num_workers
      self._index = cluster.task_index
    with tf.device(device):
      self._queues = [
        tf.FIFOQueue(
          -1, tf.int64, (), shared_name=f'round/tokens_{i}', name='tokens'
        )
        for i in range(len(self.num_each))
      ]
    self.own = self._queues[self._index]

  def make(self, num_each=None, token=None):
    """Returns the op that puts so many tokens into each queue.

    Args:
      num_each: list of int; by default what is due at the end of a round.
      token: int64 scalar tensor; by default that of the moment.
    """
    num_each = self.num_each if num_each is None else num_each
    with tf.device(self._device):
      token = self._entry.read_token() if token is None else token
      return tf.group(
        *[
          queue.enqueue_many([tf.fill([number], token)])
          for queue, number in zip(self._queues, num_each, strict=True)
          if number
        ]
      )

  def make_for_others(self, token):
    """Returns the op that gives all but this worker what is due in a round."""
    num_each = list(self.num_each)
    num_each[self._index] -= 1
    return self.make(num_each, token)

  def offer_own(self):
    """Returns the op that puts old tokens where this worker waits.

    It shall get out: of a gift with such a token nothing comes.
    """
    with tf.device(self._device):
      old = self._entry.read_token() - entry_lib.LIFE
      return self.own.enqueue_many([tf.fill([_NUM_OFFERED], old)])

  def take_all(self):
    """Returns an int64 tensor [n], what is in this worker's queue."""
    with tf.device(self._device):
      return self.own.dequeue_many(self.own.size())

  def close(self):
    return tf.group(*[queue.close() for queue in self._queues])


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
    self.entry = entry_lib.Entry(cluster, num_gifts, global_step)
    device = global_step.device
    self.tokens = Tokens(cluster, num_gifts, self.entry, device)
    self.holders = Holders(cluster, device)
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
      new_step = entry_lib.step_of(new_token)
      staleness = entry_lib.correct(staleness, own_token, new_token)
    if self.token.device != device:
      new_token, new_step, staleness = wire.bring_numbers(
        [new_token, new_step, staleness]
      )
    with tf.device(self.token.device):
      taken = self.token.assign(new_token, read_value=False)
      with tf.control_dependencies([taken]):
        return tf.identity(new_step), tf.identity(staleness)

  def hook(self, stop, pull=None):
    """Returns the RoundHook; to be built with the graph still open.

    Args:
      stop: preemption.StopRequest.
      pull: op by which the worker takes the center, or None; for one whose
        copy may be older than the token that it begins with.
    """
    return RoundHook(self, stop, pull)


def make_round(cluster, num_gifts, global_step, copies):
  """Returns the Round of a rule with local copies.

  Args:
    cluster, num_gifts, global_step: see Round.
    copies: local_copies.LocalCopies; a gift is a list like its shards.
  """
  accumulators = make_accumulators(copies.shards)
  token = copies.make_counter(0, 'token')
  return Round(cluster, num_gifts, global_step, accumulators, token)


class RoundHook(strategy.CenterHook):
  """The chief's thread, and the tokens at the start and at the end.

  SyncReplicasOptimizer's own hook closes the shared token queue at every stop
  of the chief, and a closed queue stays closed: a restarted chief could not go
  on. It also hands out R tokens at the start, with which a fast worker runs
  ahead.
  """

  def __init__(self, the_round, stop, pull):
    """
    Args:
      the_round: Round.
      stop: preemption.StopRequest.
      pull: see Round.hook.
    """
    self._round = the_round
    self._cluster = the_round.cluster
    self._is_lock_step = the_round.entry.is_lock_step
    self._stop = stop
    self._pull_op = pull
    self._first_token = None
    self._session = self._updates = self._thread = None
    self._num_runs = 0
    self._has_left = threading.Event()

  def begin(self):
    self._stop.on_request(self._leave_the_wait)
    tokens, holders = self._round.tokens, self._round.holders
    # A token that is seen here has a new life's tokens in the queues already.
    token = self._round.entry.read_token()
    with tf.control_dependencies([token]):
      self._look = token, holders.read()
      if self._is_lock_step:
        self._look += (tokens.take_all(),)
    self._given_token = tf.placeholder(tf.int64, [], 'given_token')
    self._begin_with = [
      self._round.token.assign(self._given_token).op,
      holders.mark(True),
    ]
    if not self._cluster.is_chief:
      return
    device = self._round.global_step.device
    self._update_op = steps.repeat(
      self._round.update_op, _ROUNDS_PER_RUN, device
    )
    self._release_op = tokens.make()
    self._offer_op = tokens.offer_own()
    self._close_op = tokens.close()
    self._take_over_op = self._build_take_over()
    self._new_center_op = self._build_new_center()

  def _build_take_over(self):
    """Returns the first token of a new life, once all others have one each.

    In whatever state the old chief has left the accumulators, some of them
    taken and others not, the round begins again.
    """

    def prepare(token):
      ready = [self._empty(token)]
      if self._is_lock_step:
        ready.append(self._round.tokens.take_all())
      with tf.control_dependencies(ready):
        return self._round.tokens.make_for_others(token)

    return self._round.entry.begin_life(prepare)

  def _build_new_center(self):
    """Returns the first token, after which nothing of an earlier center counts.

    One run, as each new kind of session.run costs 50 ms to prepare.
    """
    the_round = self._round
    # Who still waits in a session of before wakes up, and finds it broken. What
    # is left over is of an old life: who takes it gives in vain, no more.
    with tf.device(the_round.global_step.device):
      released = tf.cond(
        the_round.entry.read_token() < entry_lib.LIFE,
        tf.no_op,
        the_round.tokens.make,
      )
    num_spare = the_round.num_gifts - self._cluster.num_workers

    def prepare(token):
      ready = [self._empty(token), the_round.holders.clear()]
      if self._is_lock_step:
        ready.append(the_round.tokens.take_all())
      with tf.control_dependencies(ready):
        # With R <= N no token is spare, which is what makes it lock-step.
        if num_spare > 0:
          return the_round.tokens.make([num_spare], token)
        return tf.no_op()

    with tf.control_dependencies([released]):
      return the_round.entry.begin_life(prepare)

  def _empty(self, token):
    """Returns the op that throws away what was given before `token`."""
    emptied = []
    for accumulator, device in self._round.accumulators:
      with tf.device(device):
        # First, so that no more of it comes in.
        closed = accumulator.set_global_step(token)
        with tf.control_dependencies([closed]):
          is_given = accumulator.num_accumulated() > 0
        taken = tf.cond(
          is_given,
          lambda a=accumulator: tf.group(a.take_grad(1)),
          tf.no_op,
        )
        # To take counts a step.
        with tf.control_dependencies([taken]):
          emptied.append(accumulator.set_global_step(token))
    return tf.group(*emptied)

  def on_new_center(self, session):
    self._end_updates()
    self._first_token = session.run(self._new_center_op)

  def after_create_session(self, session, coord):
    self._end_updates()
    self._session = session
    token, is_late = self._first_token, False
    self._first_token = None
    if token is None:
      if self._cluster.is_chief:
        token = session.run(self._take_over_op)
      else:
        token, is_late = self._enter(session)
    session.run(self._begin_with, {self._given_token: token})
    if is_late and self._pull_op is not None:
      session.run(self._pull_op)
    if self._cluster.is_chief:
      # Known before its thread runs: the next session must be able to end it.
      self._updates = session
      if session.sess_str:
        self._updates = tf.Session(
          session.sess_str, session.graph, session._config
        )
      self._thread = threading.Thread(
        target=self._update_loop,
        args=(session, self._updates, coord),
        daemon=True,
      )
      self._thread.start()

  def _enter(self, session):
    """Returns (token, whether the center may have moved on since the pull).

    In lock-step a worker waits for the token that its predecessor waited for.
    """
    num_looks = 0
    while True:
      token, holders, *taken = session.run(self._look)
      if not self._is_lock_step:
        return token, True
      if taken[0].size:
        return max(token, *taken[0]), True
      # The first of its index, or one that had its token.
      if holders[self._cluster.task_index] != 0:
        return token, num_looks > 0
      num_looks = 0 if any(holders > 0) else num_looks + 1
      if num_looks == _NUM_ALL_WAIT_LOOKS:
        return token, True
      self._stop.wait(_LOOK_SECS)

  def end(self, session):
    """Lets go of the workers that still wait for a token.

    They may give again, now that nothing is applied any more.
    """
    self._has_left.set()
    if self._cluster.is_chief:
      self._end_updates()
      session.run(self._release_op)
      if not self._stop.is_requested:
        session.run(self._close_op)

  def describe_wait(self):
    """Returns what a wait in this round is made of, a str."""
    if self._session is None:
      return ''
    text = round_state.describe(self._round, self._session.sess_str)
    if self._cluster.is_chief:
      is_alive = self._thread is not None and self._thread.is_alive()
      thread = 'goes on' if is_alive else 'has ended'
      text += f'; {self._num_runs} runs of updates here, whose thread {thread}'
    return text

  def _end_updates(self):
    """Nothing is applied any more: no one waits for gifts to take."""
    if self._updates not in (None, self._session):
      self._updates.close()

  def _update_loop(self, session, updates, coord):
    """Applies the mean of R gifts, hands out tokens, and so on.

    The thread is not the coordinator's: close() would wait for it, and it
    for a gift that no one sends any more. Where there is a server it has a
    session of its own, that can be ended before the other one.
    """
    try:
      update = updates.make_callable(self._update_op)
      with cluster_lib.naming_losses():
        while not (self._has_left.is_set() or coord.should_stop()):
          update()
          self._num_runs += 1
    except (tf.errors.OpError, RuntimeError) as error:
      if self._has_left.is_set() or coord.should_stop():
        return  # Training is over, or the session is being made anew.
      # The main thread may wait for a token: closing the session wakes it,
      # and MonitoredSession recovers from the error.
      with contextlib.suppress(Exception):
        coord.request_stop(error)
        session.close()

  def _leave_the_wait(self):
    """Gets this worker's main thread out of its wait for a token."""
    if self._session is None:
      return
    if not self._cluster.is_chief:
      self._session.close()
      return
    # The round goes on meanwhile, and the others shall not give to it again.
    # Where all wait at one queue they may be quicker: offer until it is out.
    while not self._has_left.wait(_OFFER_SECS):
      self._session.run(self._offer_op)
