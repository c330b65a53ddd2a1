"""rounds: who gives, who waits, who is let go; the comings and goings."""

import concurrent.futures
import threading
import time

import pytest
import tensorflow.compat.v1 as tf

from distmnist import entry as entry_lib
from distmnist import local_copies, rounds, strategy
from tests.strategies import stepper as stepper_lib


class StopRequest:
  """Stands for preemption.StopRequest; the test asks for the stop."""

  def __init__(self):
    self.is_requested = False
    self._callbacks = []

  def on_request(self, callback):
    self._callbacks.append(callback)

  def wait(self, secs):
    time.sleep(secs)

  def request(self):
    """Returns the started threads of the callbacks."""
    self.is_requested = True
    threads = [threading.Thread(target=c) for c in self._callbacks]
    for thread in threads:
      thread.start()
    return threads


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
    stop: StopRequest.
    raw_session: tf.Session; where it is closed the worker has died.
  """

  def __init__(
    self, cluster, num_gifts, first_step=0, is_broken=False, stops_at=None
  ):
    """
    Args:
      stops_at: 'one' or 'all': the update stops for ever once one of the
        accumulators, or all of them, are taken.
    """
    super().__init__(cluster)
    self._stops_at = stops_at
    self._num_gifts = num_gifts
    self._first_step = first_step
    self._is_broken = is_broken
    self._copies = local_copies.LocalCopies(cluster)

  def scope(self):
    return self._copies.scope()

  def minimize(self, loss, make_optimizer, global_step):
    copies, optimizer = self._copies, make_optimizer()
    self.round = rounds.make_round(
      self.cluster, self._num_gifts, global_step, copies
    )
    gradients = copies.compute_gradients(optimizer, loss)

    def apply(means):
      # With `means`, so that it comes when R have given.
      with tf.control_dependencies(means):
        check = tf.debugging.Assert(not self._is_broken, ['broken'])
      if self._stops_at:
        taken, never = build_stop()
        before = means if self._stops_at == 'all' else means[-1:]
        with tf.control_dependencies(before):
          is_there = taken.enqueue(True)
        with tf.control_dependencies([is_there]):
          check = never.dequeue()
      with tf.control_dependencies([check]):
        means = [tf.identity(mean) for mean in means]
      return optimizer.apply_gradients(
        list(zip(means, copies.shards, strict=True))
      )

    self.round.build_update(apply)
    gifts = [part for part, _ in copies.to_shards(gradients)]
    new_step, self.staleness = self.round.give_and_wait(gifts)
    self._set_step = tf.no_op()
    if self._first_step and self.cluster.is_chief:
      self._set_step = global_step.assign(self._first_step).op
    with tf.control_dependencies([new_step, self.staleness]):
      pulled = copies.pull()
    with tf.control_dependencies([pulled]):
      return tf.identity(new_step)

  def hooks(self, stop):
    self.stop = StopRequest()
    self.hook = self.round.hook(self.stop)
    return [_AtStart(self, self._set_step), self.hook]


def build_stop():
  """Returns the queues (taken, never) of an update that stops."""
  with tf.device('/job:ps/task:0/device:CPU:0'):
    return [
      tf.FIFOQueue(-1, tf.bool, (), shared_name=f'stop/{name}')
      for name in ('taken', 'never')
    ]


class Run:
  """A stepper of workers that may die, leave and come back."""

  def __init__(self, stepper, make_worker):
    self.stepper = stepper
    self._make_worker = make_worker
    self._gone = set()

  def give(self, worker, *x):
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

  def play(self, xs, last_step):
    """All go on until `last_step`; returns the (step, staleness) of each."""

    def work(worker):
      found, step = [], 0
      while step < last_step:
        self.give(worker, *xs[worker])
        step, staleness, _ = self.stepper.join(worker)
        found.append((step, staleness))
      return found

    with concurrent.futures.ThreadPoolExecutor(len(xs)) as threads:
      return list(threads.map(work, range(len(xs))))

  def leave(self, worker):
    """Ends the session in order, as at the end of a training."""
    self._gone.add(worker)
    self.stepper.workers[worker].session.close()

  def kill(self, worker):
    self._gone.add(worker)
    rule = self.stepper.workers[worker].rule
    rule.raw_session.close()
    rule.hook._end_updates()

  def come_back(self, worker):
    new = self._make_worker(worker)
    # The stepper reads the center by the graph of its first worker 0.
    new.center = self.stepper.workers[worker].center
    self.stepper.workers[worker] = new
    self._gone.remove(worker)

  def close(self):
    # The stepper closes the sessions of those who are there.
    workers = self.stepper.workers
    self.stepper.workers = [w for w in workers if w.index not in self._gone]


@pytest.fixture
def make(make_stepper, make_cluster):
  """Returns make(num_workers=2, num_gifts=n, num_ps=1, ...) -> a Run."""
  made = []

  def make_run(num_workers=2, num_gifts=None, num_ps=1, size=1, **settings):
    def make_rule(member):
      return Mean(member, num_gifts or num_workers, **settings)

    def make_worker(index):
      settings.pop('stops_at', None)  # Only the first ones stop.
      return stepper_lib.Worker(cluster, index, make_rule, size, **how)

    how = {'steps_per_run': settings.pop('steps_per_run', 1)}
    cluster = make_cluster(num_ps, num_workers)
    stepper = make_stepper(num_ps, num_workers, make_rule, size=size, **how)
    made.append(Run(stepper, make_worker))
    return made[-1]

  yield make_run
  for run in made:
    run.close()


def test_all_wait_for_all_and_then_have_the_new_center(make):
  run = make()
  stepper = run.stepper
  run.give(0, 8)
  assert not stepper.is_done(0)
  run.give(1, 4)
  # The mean of the gradients -8 and -4 is -6.
  assert stepper.join(0) == stepper.join(1) == (1, 0, [3])
  assert stepper.read_copy(0) == stepper.read_copy(1) == [3]
  assert stepper.step_together([[3], [7]]) == [(2, 0, [4])] * 2


@pytest.mark.slow
@pytest.mark.parametrize('num_gifts', [1, 2, 3])
def test_a_round_is_over_after_its_gifts_and_drops_what_comes_later(
  make, num_gifts
):
  run = make(num_workers=3, num_gifts=num_gifts)
  stepper = run.stepper
  late = range(num_gifts, 3)
  for worker in late:
    stepper.begin(worker, [100])
  for worker in range(num_gifts):
    run.give(worker, 8)
  for worker in range(num_gifts):
    assert stepper.join(worker) == (1, 0, [4])
  for worker in late:
    assert stepper.end(worker) == (1, 1, [4])
    assert stepper.read_copy(worker) == [4]
  # None of the three tokens of the round is left over.
  run.give(2, 4)
  if num_gifts > 1:
    assert not stepper.is_done(2)
  for worker in range(num_gifts - 1):
    run.give(worker, 4)
  assert stepper.join(2) == (2, 0, [4])
  for worker in range(num_gifts - 1):
    assert stepper.join(worker) == (2, 0, [4])


@pytest.mark.parametrize(
  'num_gifts, num_each', [(1, [2]), (2, [1, 1]), (3, [3]), (5, [5])]
)
def test_a_round_has_a_token_for_each_worker_and_each_gift(
  tf_session, make_cluster, num_gifts, num_each
):
  global_step = tf.train.get_or_create_global_step()
  member = make_cluster(1, 2).worker(0)
  entry = entry_lib.Entry(member, num_gifts, global_step)
  tokens = rounds.Tokens(member, num_gifts, entry, global_step.device)
  assert tokens.num_each == num_each


@pytest.mark.slow
def test_with_two_gifts_to_spare_a_worker_gives_three(make):
  run = make(num_gifts=4)
  stepper = run.stepper
  assert stepper.step(0, [4]) == (0, 0, [0])
  assert stepper.step(0, [4]) == (0, 0, [0])
  run.give(0, 4)
  assert not stepper.is_done(0)
  run.give(1, 20)
  assert stepper.join(0) == stepper.join(1) == (1, 0, [4])  # 0.5 * 32 / 4
  # Two tokens of this round are to spare again.
  assert stepper.step(1, [4]) == (1, 0, [4])
  assert stepper.step(1, [4]) == (1, 0, [4])
  assert stepper.step_together([[4], [12]]) == [(2, 0, [5])] * 2


def test_after_a_restart_the_rounds_go_on_from_the_restored_step(make):
  run = make(first_step=7)
  found = run.stepper.step_together([[8], [4]])
  assert found == [(8, 0, [3])] * 2


@pytest.mark.slow
def test_a_worker_that_comes_back_is_told_the_current_step(make):
  run = make()
  stepper = run.stepper
  assert stepper.step_together([[8], [4]]) == [(1, 0, [3])] * 2
  run.kill(1)
  run.give(0, 3)
  assert not stepper.is_done(0)  # All wait for one that has died.
  run.come_back(1)
  run.give(1, 7)
  assert stepper.join(0) == stepper.join(1) == (2, 0, [4])


@pytest.mark.slow
def test_a_chief_that_comes_back_lets_go_who_waits(make):
  run = make()
  stepper = run.stepper
  assert stepper.step_together([[8], [4]]) == [(1, 0, [3])] * 2
  run.give(1, 3)
  assert not stepper.is_done(1)
  run.kill(0)
  run.come_back(0)
  assert stepper.join(1) == (1, 1, [3])  # Its gift was thrown away.

  def work(worker):
    step = 0
    while step < 5:
      run.give(worker, 3)
      step = stepper.join(worker).global_step
    return step

  # In lock-step again.
  with concurrent.futures.ThreadPoolExecutor(2) as threads:
    steps = list(threads.map(work, range(2)))
  assert steps == [5, 5]
  assert stepper.read_center() == [3]


@pytest.mark.slow
def test_a_worker_that_died_in_its_wait_takes_the_token_meant_for_it(make):
  run = make()
  stepper = run.stepper
  run.give(1, 8)
  assert not stepper.is_done(1)
  run.kill(1)  # Its gift counts, and it has not been told so.
  run.give(0, 4)
  assert stepper.join(0) == (1, 0, [3])
  run.come_back(1)
  run.give(1, 7)
  assert not stepper.is_done(1)  # It is not a gift ahead.
  run.give(0, 3)
  assert stepper.join(0) == stepper.join(1) == (2, 0, [4])


@pytest.mark.slow
def test_nobody_takes_the_token_of_a_worker_that_died_in_its_wait(make):
  run = make(num_workers=3)
  stepper = run.stepper
  run.give(1, 8)
  run.give(2, 8)
  assert not stepper.is_done(1)
  run.kill(1)
  run.give(0, 8)
  assert stepper.join(0) == stepper.join(2) == (1, 0, [4])
  for worker in (0, 2):
    run.give(worker, 4)
  # With the token of worker 1 one of the two would give once more.
  assert not stepper.is_done(0)
  assert not stepper.is_done(2)
  run.come_back(1)
  run.give(1, 4)
  assert [stepper.join(i) for i in range(3)] == [(2, 0, [4])] * 3


@pytest.mark.slow
def test_a_chief_that_leaves_in_order_lets_go_who_waits(make):
  run = make()
  stepper = run.stepper
  run.give(1, 8)
  assert not stepper.is_done(1)
  run.leave(0)
  assert stepper.join(1) == (0, 1, [0])


@pytest.mark.slow
def test_a_worker_that_leaves_in_order_touches_no_round(make):
  run = make(num_workers=3, num_gifts=2)
  stepper = run.stepper
  run.leave(2)
  for worker in (0, 1):
    run.give(worker, 8)
  for worker in (0, 1):
    assert stepper.join(worker) == (1, 0, [4])


@pytest.mark.slow
def test_a_worker_that_is_asked_to_stop_gets_out_of_its_wait(make):
  run = make()
  stepper = run.stepper
  run.give(1, 8)
  assert not stepper.is_done(1)
  for thread in stepper.workers[1].rule.stop.request():
    thread.join(stepper_lib.DEADLINE_SECS)
  with pytest.raises(tf.errors.CancelledError):
    stepper.join(1)
  run.kill(1)


@pytest.mark.slow
def test_a_chief_that_is_asked_to_stop_gets_out_and_can_come_back(make):
  run = make()
  stepper = run.stepper
  run.give(0, 8)
  assert not stepper.is_done(0)
  threads = stepper.workers[0].rule.stop.request()
  assert stepper.join(0) == (0, 1, [0])
  run.leave(0)
  for thread in threads:
    thread.join(stepper_lib.DEADLINE_SECS)
    assert not thread.is_alive()
  # The token queue is still open for the next chief, and the round is begun
  # again: what the old one gave does not count.
  run.come_back(0)
  # What the other one gives for tokens of the old chief does not count either.
  run.give(1, 8)
  while stepper.is_done(1):
    assert stepper.join(1) == (0, 1, [0])
    run.give(1, 8)
  run.give(0, 4)
  assert stepper.join(0) == stepper.join(1) == (1, 0, [3])


@pytest.mark.slow
def test_an_error_of_the_update_reaches_the_chief_that_waits(make):
  run = make(is_broken=True)
  stepper = run.stepper
  run.give(0, 8)
  run.give(1, 4)
  with pytest.raises(tf.errors.OpError):
    stepper.join(0)
  run.kill(0)


@pytest.mark.slow
def test_who_comes_while_the_update_is_applied_is_told_so(make):
  run = make(num_workers=3, num_gifts=2, stops_at='all')
  stepper = run.stepper
  run.give(0, 8)
  run.give(1, 8)
  run.wait_for_stop()
  # The global step is what it was, and the accumulators have moved on.
  run.give(2, 100)
  assert not stepper.is_done(2)
  run.kill(0)
  with pytest.raises(tf.errors.OpError):
    stepper.join(0)
  run.come_back(0)
  found = [stepper.join(worker) for worker in (1, 2)]
  assert found == [(0, 1, [0])] * 2
  results = run.play([[8]] * 3, 50)
  told = [staleness for each in results for _, staleness in each]
  assert told.count(0) in (100, 101)  # One may be in a round that is not over.


@pytest.mark.slow
@pytest.mark.parametrize('num_ps, stops_at', [(1, 'all'), (2, 'one')])
@pytest.mark.parametrize('num_gifts', [2, 3, 4])
def test_a_chief_that_is_replaced_amid_an_update_begins_the_round_again(
  make, num_gifts, num_ps, stops_at
):
  run = make(3, num_gifts, num_ps, size=2, stops_at=stops_at)
  stepper = run.stepper
  if num_gifts == 4:
    assert stepper.step(1, [8, 8]) == (0, 0, [0, 0])
  givers = (1, 2) if num_gifts == 2 else (0, 1, 2)
  for worker in givers:
    run.give(worker, 100, 100)
  run.wait_for_stop()
  run.kill(0)
  if 0 in givers:
    with pytest.raises(tf.errors.OpError):
      stepper.join(0)
  run.come_back(0)
  for worker in (1, 2):
    assert stepper.join(worker) == (0, 1, [0, 0])
  # If one gave twice to a round, the mean would not be that of all three.
  xs = [[6, 9], [12, 9], [18, 9]] if num_gifts == 3 else [[12, 9]] * 3
  results = run.play(xs, 3)
  assert stepper.read_center() == [10.5, 7.875]
  if num_gifts == 3:
    assert results == [[(1, 0), (2, 0), (3, 0)]] * 3


@pytest.mark.slow
@pytest.mark.parametrize('num_gifts', [2, 3])
@pytest.mark.parametrize('is_first', [True, False])
def test_who_gives_while_a_chief_takes_over_gives_once(
  make, monkeypatch, num_gifts, is_first
):
  """A gift comes before, or after, the new chief throws away what is there."""
  run = make(3, num_gifts)
  stepper = run.stepper
  stepper.begin(1, [100])  # At work when the chief dies.
  run.give(2, 100)
  assert not stepper.is_done(2)
  run.kill(0)
  empty = rounds.RoundHook._empty

  def empty_held(hook, token):
    def stop(ops):
      taken, go = build_stop()
      with tf.control_dependencies(ops):
        is_there = taken.enqueue(True)
      with tf.control_dependencies([is_there]):
        return go.dequeue().op

    if not is_first:
      return stop([empty(hook, token)])
    with tf.control_dependencies([stop([token])]):
      return empty(hook, tf.identity(token))

  with monkeypatch.context() as patch:
    patch.setattr(rounds.RoundHook, '_empty', empty_held)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
      back = threads.submit(run.come_back, 0)
      target = stepper.workers[1].rule.raw_session.sess_str
      with tf.Graph().as_default(), tf.Session(target) as session:
        taken, go = build_stop()
        session.run(
          taken.dequeue(), options=tf.RunOptions(timeout_in_ms=60_000)
        )
        stepper.release(1)
        assert not stepper.is_done(1)
        session.run(go.enqueue(True))
      back.result(stepper_lib.DEADLINE_SECS)
  for worker in (1, 2):
    step, staleness, center = stepper.join(worker)
    assert (step, staleness >= 1, center) == (0, True, [0])
  xs = [[6], [12], [18]] if num_gifts == 3 else [[12]] * 3
  run.play(xs, 3)
  assert stepper.read_center() == [10.5]


@pytest.mark.slow
def test_while_a_chief_leaves_the_wait_nobody_gives_twice(make):
  run = make(num_workers=3)
  stepper = run.stepper
  run.give(0, 100)
  run.give(1, 100)
  assert not stepper.is_done(0)
  run.stepper.workers[0].rule.stop.request()
  stepper.join(0)
  # The chief has a token, worker 1 must wait for worker 2.
  assert not stepper.is_done(1)
  run.leave(0)
  assert stepper.join(1) == (0, 1, [0])
  run.give(1, 100)
  # With those before there are R, and nobody takes them.
  assert stepper.step(2, [100]) == (0, 1, [0])
  run.give(2, 100)
  assert not stepper.is_done(2)
  assert stepper.read_center() == [0]
  run.come_back(0)
  for worker in (1, 2):
    assert stepper.join(worker) == (0, 1, [0])
  assert run.play([[6], [12], [18]], 1) == [[(1, 0)]] * 3
  assert stepper.read_center() == [6]


@pytest.mark.slow
def test_a_chief_gets_out_of_a_run_of_several_steps(make):
  run = make(steps_per_run=3)
  stepper = run.stepper
  for worker in range(2):
    run.give(worker, 8)
  for worker in range(2):
    stepper.begin(worker, [100])
  assert stepper.read_center() == [4]
  stepper.release(0)
  run.kill(1)
  threads = stepper.workers[0].rule.stop.request()
  stepper.begin(0, [100])
  stepper.release(0)
  stepper.join(0)
  run.leave(0)
  for thread in threads:
    thread.join(stepper_lib.DEADLINE_SECS)
  # It has given twice more, and to this round once.
  assert stepper.read_center() == [4]
