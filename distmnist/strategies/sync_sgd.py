"""Synchronous SGD with backup workers, through SyncReplicasOptimizer.

Chen et al. 2016, arXiv 1604.00981. Each update takes in the first R gradients
of its step; what comes later is dropped:

  x~ <- Opt(x~, (1/R) sum_{j=1..R} g^j(x~))

R is replicas_to_aggregate and N = total_num_replicas the workers. R = N (the
default) is lock-step: one gradient a worker and update. R < N leaves N - R
backup workers, whose late gradients are dropped. R > N: a worker gives
several batches to one update.

Variables, slots, gradient accumulators and the token queue live on the ps. A
worker pushes its gradients and waits for a token; a thread of the chief takes
R gradients, applies their mean and hands out the tokens of the next step. So
with R = N everybody waits for a worker that died, until it is back.
"""

import contextlib
import threading

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import strategy

_REPLICAS_TO_AGGREGATE = flags.DEFINE_integer(
  'replicas_to_aggregate',
  None,
  'sync_sgd: gradients in one update; fewer than there are workers leaves '
  'backup workers. By default one a worker.',
  lower_bound=1,
)


def make(cluster):
  return SyncSgd(cluster, _REPLICAS_TO_AGGREGATE.value or cluster.num_workers)


class SyncSgd(strategy.Strategy):
  """One update of the center for every R gradients."""

  drops_stale = True

  def __init__(self, cluster, replicas_to_aggregate):
    super().__init__(cluster)
    self.batches_per_update = replicas_to_aggregate

  def minimize(self, loss, make_optimizer, global_step):
    with tf.name_scope('sync_sgd'):
      with tf.device(self.cluster.cpu_device):
        token = tf.Variable(
          global_step.read_value(),
          trainable=False,
          collections=[tf.GraphKeys.LOCAL_VARIABLES],
          name='token',
        )
      own_step = token.read_value()
      self._optimizer = tf.train.SyncReplicasOptimizer(
        make_optimizer(), self.batches_per_update, self.cluster.num_workers
      )
      gradients = self._optimizer.compute_gradients(loss)
      # A gradient whose token is older than the center is dropped. To know of
      # it the step is read before the push, which costs a round trip; in
      # lock-step the center cannot move, and the read goes with the pulls.
      is_lock_step = self.batches_per_update == self.cluster.num_workers
      center_step = strategy.read_after(
        global_step, [] if is_lock_step else [g for g, _ in gradients]
      )
      # The push ends in a new token, so both reads come before it.
      with tf.control_dependencies([own_step, center_step]):
        gradients = [(tf.identity(g), v) for g, v in gradients]
      self.staleness = center_step - own_step
      new_token = self._optimizer.apply_gradients(gradients, global_step)
      return token.assign(new_token)

  def hooks(self, stop):
    return [
      _SyncHook(self._optimizer, self.cluster, self.batches_per_update, stop)
    ]


class _SyncHook(tf.train.SessionRunHook):
  """Takes the place of SyncReplicasOptimizer's own hook.

  That one closes the shared token queue at every stop of the chief, and a
  closed queue stays closed: a restarted chief could not go on. It also hands
  out R tokens at the start, with which a fast worker runs ahead.
  """

  def __init__(self, optimizer, cluster, num_aggregated, stop):
    self._optimizer = optimizer
    self._cluster = cluster
    self._num_aggregated = num_aggregated
    self._stop = stop
    self._session = None
    self._has_left = threading.Event()

  def begin(self):
    optimizer, num_workers = self._optimizer, self._cluster.num_workers
    self._ready_op = optimizer.ready_for_local_init_op
    self._stop.on_request(self._leave_the_wait)
    if not self._cluster.is_chief:
      self._init_op = optimizer.local_step_init_op
      return
    self._init_op = optimizer.chief_init_op
    runner = optimizer.get_chief_queue_runner()
    self._update_op, self._close_op = runner.enqueue_ops[0], runner.close_op
    # With R <= N no token is spare, which is what makes it lock-step.
    self._first_tokens = optimizer.get_init_tokens_op(
      max(0, self._num_aggregated - num_workers)
    )
    self._release_op = optimizer.get_init_tokens_op(
      max(num_workers, self._num_aggregated)
    )
    # It lives as long as the token queue: a chief that finds it filled comes
    # after another, whose workers may wait for a token that was never sent.
    with tf.device(runner.queue.queue_ref.device):
      was_here = tf.FIFOQueue(-1, tf.bool, (), shared_name='sync_sgd_was_here')
    self._num_chiefs, self._sign_in = was_here.size(), was_here.enqueue(True)

  def after_create_session(self, session, coord):
    session.run(self._ready_op)
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
    """Applies the mean of R gradients, hands out tokens, and so on.

    The thread is not the coordinator's: close() would wait for it, and it
    for a gradient that no one sends any more.
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
