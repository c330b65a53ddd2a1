"""Lock-step: R workers give, the chief applies, everybody goes on.

SyncReplicasOptimizer does this for gradients and one step. A Round does it
for any tensors, also in a branch that is taken every T steps: accumulators on
the ps take the mean of the first R gifts of a round and drop those that come
later; a thread of the chief applies it and hands out tokens; a worker waits
for its token and then pulls.
"""

import contextlib
import threading

import tensorflow.compat.v1 as tf

from distmnist import strategy


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
    with tf.device(global_step.device):
      self._tokens = tf.FIFOQueue(
        -1, tf.int64, (), shared_name='round/tokens', name='tokens'
      )

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
    applied, device = apply(means), self._global_step.device
    with tf.control_dependencies([applied]), tf.device(device):
      count = self._global_step.assign_add(1, read_value=False)
    # The tokens carry the new step, and must not be sent before all is applied.
    with tf.control_dependencies([count]):
      self._update = self._make_tokens(self.num_tokens)

  @property
  def num_tokens(self):
    return max(self._cluster.num_workers, self._num_gifts)

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
    with tf.control_dependencies(given), tf.device(self._global_step.device):
      token = self._tokens.dequeue()
    return self.token.assign(token), center_step - own_step

  def _make_tokens(self, num_tokens):
    with tf.device(self._global_step.device):
      step = self._global_step.read_value()
      return self._tokens.enqueue_many([tf.fill([num_tokens], step)])

  def hook(self, stop):
    """Returns the RoundHook; to be built with the graph still open."""
    init_op = self.token.assign(self._global_step.read_value()).op
    if self._cluster.is_chief:
      init_op = tf.group(
        init_op,
        *(a.set_global_step(self._global_step) for a in self._accumulators),
      )
    return RoundHook(
      self._cluster,
      stop,
      self._num_gifts,
      init_op,
      self._update,
      self._tokens,
      self._make_tokens,
    )


class RoundHook(tf.train.SessionRunHook):
  """The chief's thread, and the tokens at the start and at the end.

  SyncReplicasOptimizer's own hook closes the shared token queue at every stop
  of the chief, and a closed queue stays closed: a restarted chief could not go
  on. It also hands out R tokens at the start, with which a fast worker runs
  ahead.
  """

  def __init__(
    self, cluster, stop, num_gifts, init_op, update_op, tokens, make_tokens
  ):
    """
    Args:
      cluster: cluster.Cluster.
      stop: preemption.StopRequest.
      num_gifts: int, R.
      init_op: op that brings worker and accumulators to the global_step.
      update_op: op, one round of the chief.
      tokens: tf.FIFOQueue on a ps.
      make_tokens: callable(int) -> op that puts so many tokens there.
    """
    self._cluster = cluster
    self._stop = stop
    self._num_gifts = num_gifts
    self._init_op = init_op
    self._update_op = update_op
    self._tokens = tokens
    self._make_tokens = make_tokens
    self._session = None
    self._has_left = threading.Event()

  def begin(self):
    self._stop.on_request(self._leave_the_wait)
    if not self._cluster.is_chief:
      return
    num_workers = self._cluster.num_workers
    # With R <= N no token is spare, which is what makes it lock-step.
    num_spare = max(0, self._num_gifts - num_workers)
    self._first_tokens = (
      self._make_tokens(num_spare) if num_spare else tf.no_op()
    )
    self._release_op = self._make_tokens(max(num_workers, self._num_gifts))
    self._close_op = self._tokens.close()
    # It lives as long as the token queue: a chief that finds it filled comes
    # after another, whose workers may wait for a token that was never sent.
    with tf.device(self._tokens.queue_ref.device):
      was_here = tf.FIFOQueue(-1, tf.bool, (), shared_name='round/was_here')
    self._num_chiefs, self._sign_in = was_here.size(), was_here.enqueue(True)

  def after_create_session(self, session, coord):
    session.run(self._init_op)
    self._session = session
    if self._cluster.is_chief:
      is_first = session.run(self._num_chiefs) == 0
      session.run([self._sign_in])
      session.run(self._first_tokens if is_first else self._release_op)
      threading.Thread(
        target=self._update_loop, args=(session, coord), daemon=True
      ).start()

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
      while not coord.should_stop():
        update()
    except (tf.errors.CancelledError, tf.errors.OutOfRangeError):
      pass  # The session or the token queue was closed: training is over.
    except tf.errors.OpError as error:
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
