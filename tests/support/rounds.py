"""A synchronous rule, and a cluster of it whose workers come and go."""

import concurrent.futures

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.copies import local_copies
from distmnist.exchange.rounds import contributions, sync_round
from distmnist.transport import strategy
from tests.support import in_process
from tests.support import stepper as stepper_lib


class _AtStart(tf.train.SessionRunHook):
  """Keeps the session, and has the chief set the global step."""

  def __init__(self, rule, op):
    self._rule = rule
    self._op = op

  def after_create_session(self, session, coord):
    self._rule.raw_session = session
    session.run(self._op)


class Mean(strategy.Strategy):
  """x~ <- x~ - rate * the mean of R gradients, in a round.

  Attributes:
    stop: in_process.AskedStop.
    raw_session: tf.Session; where it is closed the worker has died.
  """

  def __init__(
    self,
    cluster,
    num_contributions,
    first_step=0,
    is_broken=False,
    stops_at=None,
  ):
    """
    Args:
      stops_at: 'one' or 'all': the update stops for ever once one of the
        accumulators, or all of them, are taken; 'half': once the last one is,
        and the others are applied.
    """
    super().__init__(cluster)
    self._stops_at = stops_at
    self._num_contributions = num_contributions
    self._first_step = first_step
    self._is_broken = is_broken
    self._copies = local_copies.LocalCopies(cluster)

  def scope(self):
    return self._copies.scope()

  def minimize(self, loss, make_optimizer, global_step):
    copies, optimizer = self._copies, make_optimizer()
    self.round = sync_round.make_round(
      self.cluster, self._num_contributions, global_step, copies
    )
    gradients = copies.compute_gradients(optimizer, loss)

    def apply(means):
      # With `means`, so that it comes when R have arrived.
      with tf.control_dependencies(means):
        check = tf.debugging.Assert(not self._is_broken, ['broken'])
      if self._stops_at:
        taken, never = build_stop()
        before = means if self._stops_at == 'all' else means[-1:]
        with tf.control_dependencies(before):
          is_there = taken.enqueue(True)
        with tf.control_dependencies([is_there]):
          check = never.dequeue()
      free = means[:-1] if self._stops_at == 'half' else []
      with tf.control_dependencies([check]):
        means = [*free, *(tf.identity(m) for m in means[len(free) :])]
      return optimizer.apply_gradients(
        list(zip(means, copies.shards, strict=True))
      )

    self.round.build_update(apply)
    new_step, staleness = self.round.push_and_wait(copies.to_shards(gradients))
    self._set_step = tf.no_op()
    if self._first_step and self.cluster.is_chief:
      self._set_step = global_step.assign(self._first_step).op
    with tf.control_dependencies([new_step, staleness]):
      pulled = copies.pull()
    with tf.control_dependencies([pulled]):
      train_op = tf.identity(new_step)
    return strategy.Update(train_op, staleness, 0, 0)

  def hooks(self, stop):
    self.stop = in_process.AskedStop()
    self.hook = self.round.hook(self.stop)
    return [_AtStart(self, self._set_step), self.hook]


def build_bare(member, num_shards, parts):
  """Returns a sync_round.Round of one worker, for shards [2] on ps 0.

  Args:
    member: cluster.Cluster of the worker.
    num_shards: int.
    parts: see sync_round.Round.
  """
  with tf.device('/job:ps/task:0/device:CPU:0'):
    global_step = tf.train.get_or_create_global_step()
    shards = [tf.Variable(tf.zeros([2])) for _ in range(num_shards)]
  return sync_round.Round(
    *(member, 1, global_step, contributions.make_accumulators(shards)),
    sync_round.make_token(member, global_step),
    parts=parts,
  )


def build_stop():
  """Returns the queues (taken, never) of an update that stops."""
  with tf.device('/job:ps/task:0/device:CPU:0'):
    return [
      tf.FIFOQueue(-1, tf.bool, (), shared_name=f'stop/{name}')
      for name in ('taken', 'never')
    ]


class Run:
  """A stepper of workers that may die, leave and come back."""

  def __init__(self, stepper):
    self.stepper = stepper
    self.leave, self.come_back = stepper.leave, stepper.come_back

  def push(self, worker, *x):
    """Starts a step; it may wait at its end."""
    self.stepper.begin(worker, x)
    self.stepper.release(worker)

  def wait_for_stop(self):
    """Returns once the update stands still, amid its work."""
    target = self.stepper.workers[0].rule.raw_session.sess_str
    with tf.Graph().as_default(), tf.Session(target) as session:
      taken, _ = build_stop()
      session.run(
        taken.dequeue(),
        options=tf.RunOptions(timeout_in_ms=1000 * stepper_lib.DEADLINE_SECS),
      )

  def push_uncounted(self, gradient, token):
    """Pushes to the accumulator of the only shard, past the entry."""
    target = self.stepper.workers[0].rule.raw_session.sess_str
    with tf.Graph().as_default(), tf.Session(target) as session:
      with tf.device('/job:ps/task:0/device:CPU:0'):
        accumulator = tf.ConditionalAccumulator(
          tf.float32, [1], shared_name='round/contributions_0'
        )
        pushed = accumulator.apply_grad([gradient], token)
      session.run(pushed)

  def play(self, xs, last_step):
    """All go on until `last_step`; returns the (step, staleness) of each."""

    def work(worker):
      found, step = [], 0
      while step < last_step:
        self.push(worker, *xs[worker])
        step, staleness, _ = self.stepper.join(worker)
        found.append((step, staleness))
      return found

    with concurrent.futures.ThreadPoolExecutor(len(xs)) as threads:
      return list(threads.map(work, range(len(xs))))

  def kill(self, worker):
    rule = self.stepper.workers[worker].rule
    self.leave(worker, rule.raw_session.close)
    rule.hook._end_updates()


@pytest.fixture
def make(make_stepper):
  """Returns make(num_workers=2, num_contributions=n, ...) -> a Run."""

  def make_run(
    num_workers=2, num_contributions=None, num_ps=1, size=1, **settings
  ):
    def make_rule(member):
      return Mean(member, num_contributions or num_workers, **settings)

    how = {'steps_per_run': settings.pop('steps_per_run', 1)}
    stepper = make_stepper(num_ps, num_workers, make_rule, size=size, **how)
    settings.pop('stops_at', None)  # Only the first ones stop.
    return Run(stepper)

  return make_run
