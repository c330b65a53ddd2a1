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
is quick would take the token of the dead, and give twice to a round.
"""

import contextlib
import threading

import tensorflow.compat.v1 as tf

from distmnist import cluster as cluster_lib
from distmnist import steps, strategy

# At so many looks in a row, in a second, all workers must wait for one another
# until a worker that has come back takes it that its token died with its
# predecessor's connection. Looks and not seconds: one that is held up between
# two looks has not seen them all wait.
_NUM_ALL_WAIT_LOOKS = 10
_LOOK_SECS = 0.1
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

  def __init__(self, cluster, num_gifts, global_step):
    """
    Args:
      cluster: cluster.Cluster.
      num_gifts: int, R.
      global_step: int64 scalar variable; the queues are beside it.
    """
    self._global_step = global_step
    self.num_each, index = [max(cluster.num_workers, num_gifts)], 0
    if num_gifts == cluster.num_workers:
      self.num_each, index = [1] * cluster.num_workers, cluster.task_index
    with tf.device(global_step.device):
      self._queues = [
        tf.FIFOQueue(
          -1, tf.int64, (), shared_name=f'round/tokens_{i}', name='tokens'
        )
        for i in range(len(self.num_each))
      ]
    self.own = self._queues[index]

  def make(self, num_each=None):
    """Returns the op that puts so many tokens into each queue.

    Args:
      num_each: list of int, or an int32 tensor of that length; by default
        what is due at the end of a round.
    """
    num_each = self.num_each if num_each is None else num_each
    with tf.device(self._global_step.device):
      step = self._global_step.read_value()
      return tf.group(
        *[
          queue.enqueue_many([tf.fill([num_each[i]], step)])
          for i, queue in enumerate(self._queues)
        ]
      )

  def drain(self):
    """Returns the op that throws all tokens away."""
    with tf.device(self._global_step.device):
      return tf.group(*[q.dequeue_many(q.size()) for q in self._queues])

  def close(self):
    return tf.group(*[queue.close() for queue in self._queues])


class Round:
  """The accumulators and tokens of a rule.

  Attributes:
    token: int64 local variable, the global_step of the worker's last token:
      a gift with an older one is dropped.
  """

  def __init__(self, cluster, num_gifts, global_step, copies):
    """
    Args:
      cluster: cluster.Cluster.
      num_gifts: int, R.
      global_step: int64 scalar variable, the rounds that are done.
      copies: local_copies.LocalCopies; a gift is a list of tensors, one for
        each shard of the center.
    """
    self._cluster = cluster
    self._num_gifts = num_gifts
    self._global_step = global_step
    self._shards = copies.shards
    self.token = copies.make_counter(global_step.read_value(), 'token')
    self._accumulators = []
    for i, shard in enumerate(self._shards):
      with tf.device(shard.device):
        self._accumulators.append(
          tf.ConditionalAccumulator(
            shard.dtype, shard.shape, shared_name=f'round/gifts_{i}'
          )
        )
    self._tokens = Tokens(cluster, num_gifts, global_step)
    self._holders = Holders(cluster, global_step.device)

  def build_update(self, apply):
    """Builds what the chief does with the mean of the gifts.

    Args:
      apply: callable(means) -> op; means is a list of tensors, one a shard and
        on its ps.
    """
    means = []
    for accumulator, shard in zip(
      self._accumulators, self._shards, strict=True
    ):
      with tf.device(shard.device):
        means.append(accumulator.take_grad(self._num_gifts))
    with tf.device(self._global_step.device):
      applied = apply(means)
      with tf.control_dependencies([applied]):
        count = self._global_step.assign_add(1, read_value=False)
    # The tokens carry the new step, and must not be sent before all is applied.
    with tf.control_dependencies([count]):
      self._update = self._tokens.make()

  def give_and_wait(self, gifts):
    """Gives, and waits until the round is over; may stand in a branch.

    Args:
      gifts: list of tensors, one a shard.

    Returns:
      (new_step, staleness): int64 scalar tensors. staleness > 0: the round of
      this gift was over before it came, and it was dropped.
    """
    own_step = self.token.read_value()
    # The gift would end in a new token, so both reads come before it.
    center_step = strategy.read_after(self._global_step, gifts)
    given = []
    for accumulator, shard, gift in zip(
      self._accumulators, self._shards, gifts, strict=True
    ):
      reads = [own_step, center_step]
      with tf.control_dependencies(reads), tf.device(shard.device):
        given.append(accumulator.apply_grad(gift, own_step))
    token = self._holders.take(self._tokens.own, given)
    return self.token.assign(token), center_step - own_step

  def hook(self, stop):
    """Returns the RoundHook; to be built with the graph still open."""
    return RoundHook(
      self._cluster,
      stop,
      self._num_gifts,
      self._global_step,
      self._tokens,
      self._holders,
      list(
        zip(self._accumulators, (s.device for s in self._shards), strict=True)
      ),
      self.token.assign(self._global_step.read_value()).op,
      self._update,
    )


class RoundHook(strategy.CenterHook):
  """The chief's thread, and the tokens at the start and at the end.

  SyncReplicasOptimizer's own hook closes the shared token queue at every stop
  of the chief, and a closed queue stays closed: a restarted chief could not go
  on. It also hands out R tokens at the start, with which a fast worker runs
  ahead.
  """

  def __init__(
    self,
    cluster,
    stop,
    num_gifts,
    global_step,
    tokens,
    holders,
    accumulators,
    init_op,
    update_op,
  ):
    """
    Args:
      cluster: cluster.Cluster.
      stop: preemption.StopRequest.
      num_gifts: int, R.
      global_step: int64 scalar variable.
      tokens: Tokens.
      holders: Holders of these tokens.
      accumulators: list of (tf.ConditionalAccumulator, its device).
      init_op: op that brings this worker to the global_step.
      update_op: op, one round of the chief.
    """
    self._cluster = cluster
    self._stop = stop
    self._num_gifts = num_gifts
    self._global_step = global_step
    self._tokens = tokens
    self._holders = holders
    self._accumulators = accumulators
    self._init_op = init_op
    self._update_op = update_op
    self._is_new_center = False
    self._session = None
    self._has_left = threading.Event()

  def begin(self):
    self._stop.on_request(self._leave_the_wait)
    device = self._global_step.device
    self._is_lock_step = self._num_gifts == self._cluster.num_workers
    with tf.device(device):
      self._num_waiting_tokens = self._tokens.own.size()
      self._take = self._tokens.own.dequeue()
    self._read_holders = self._holders.read()
    self._hold = self._holders.mark(True)
    if not self._cluster.is_chief:
      return
    self._update_op = steps.repeat(self._update_op, _ROUNDS_PER_RUN, device)
    self._release_op = self._tokens.make()
    num_queues = len(self._tokens.num_each)
    self._num_new_tokens = tf.placeholder(tf.int32, [num_queues])
    self._new_tokens_op = self._tokens.make(self._num_new_tokens)
    self._drain_op = self._tokens.drain()
    self._close_op = self._tokens.close()
    self._empty_op = tf.group(*self._build_empty())
    self._new_center_op = self._build_new_center()

  def _build_new_center(self):
    """Returns the op after which nothing of an earlier center counts.

    One op, as each new kind of session.run costs 50 ms to prepare.
    """
    # Who still waits in a session of before wakes up, and finds it broken.
    released = self._tokens.make()
    with tf.control_dependencies([released]):
      drained = self._tokens.drain()
    with tf.control_dependencies([drained]):
      emptied = tf.group(self._holders.clear(), *self._build_empty())
    # With R <= N no token is spare, which is what makes it lock-step.
    num_spare = self._num_gifts - self._cluster.num_workers
    if num_spare <= 0:
      return emptied
    with tf.control_dependencies([emptied]):
      return self._tokens.make([num_spare])

  def _build_empty(self):
    """Ops that throw away what was given and set the accumulators' step."""
    for accumulator, device in self._accumulators:
      with tf.device(device):
        is_given = accumulator.num_accumulated() > 0
        taken = tf.cond(
          is_given,
          lambda a=accumulator: tf.group(a.take_grad(1)),
          tf.no_op,
        )
        with tf.control_dependencies([taken]):
          yield accumulator.set_global_step(self._global_step.read_value())

  def on_new_center(self, session):
    session.run(self._new_center_op)
    self._is_new_center = True

  def after_create_session(self, session, coord):
    self._session = session
    if self._cluster.is_chief:
      if not self._is_new_center:
        self._take_over(session)
      self._is_new_center = False
    elif self._is_lock_step:
      self._get_own_token(session)
    session.run([self._init_op, self._hold])
    if self._cluster.is_chief:
      threading.Thread(
        target=self._update_loop, args=(session, coord), daemon=True
      ).start()

  def _take_over(self, session):
    """The chief is back, and the others have gone on as far as they could."""
    if not self._is_lock_step:
      session.run(self._release_op)
      return
    # The old chief may have died amid an update, with some shards' gifts taken
    # and others' not: the round begins again. Who has given waits for a token.
    session.run(self._empty_op)
    session.run(self._drain_op)
    _, *others = session.run(self._read_holders)
    session.run(
      self._new_tokens_op,
      {self._num_new_tokens: [0, *(int(n == 0) for n in others)]},
    )

  def _get_own_token(self, session):
    """Waits for the token that a predecessor of this worker waited for."""
    num_looks = 0
    while num_looks < _NUM_ALL_WAIT_LOOKS:
      holders = session.run(self._read_holders)
      if holders[self._cluster.task_index] != 0:
        return  # The first of its index, or one that had its token.
      if session.run(self._num_waiting_tokens):
        session.run(self._take)
        return
      num_looks = 0 if any(holders > 0) else num_looks + 1
      self._stop.wait(_LOOK_SECS)

  def end(self, session):
    """Lets go of the workers that still wait for a token."""
    self._has_left.set()
    if self._cluster.is_chief:
      session.run(self._release_op)
      if not self._stop.is_requested:
        session.run(self._close_op)

  def _update_loop(self, session, coord):
    """Applies the mean of R gifts, hands out tokens, and so on.

    The thread is not the coordinator's: close() would wait for it, and it
    for a gift that no one sends any more.
    """
    update = session.make_callable(self._update_op)
    try:
      with cluster_lib.naming_losses():
        while not coord.should_stop():
          update()
    except tf.errors.OpError as error:
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
    # The other workers may be quicker to take a token: offer until it is out.
    while not self._has_left.wait(0.1):
      self._session.run(self._release_op)
