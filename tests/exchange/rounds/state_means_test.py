"""state_means: averages in lock-step, whichever worker is late, or dies."""

import concurrent.futures
import re
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import batch_norm, optimizers
from distmnist.strategies import bmuf, easgd, sagn, sync_sgd
from distmnist.transport import model_state, strategy
from tests.support import in_process

START = np.float64([1, 2])
TURN = 1 + 2j
# The rule, and its T.
RULES = {
  'sync_sgd': (lambda member: sync_sgd.SyncSgd(member, 2), 1),
  'sync_sgd, by shard': (
    lambda member: sync_sgd.SyncSgd(member, 2, barrier='shard'),
    1,
  ),
  'sagn': (lambda member: sagn.Sagn(member, 3, 2), 3),
  'bmuf': (lambda member: bmuf.Bmuf(member, 3, 0.5, 1), 3),
  'easgd': (lambda member: easgd.Easgd(member, 0.4, 1, is_sync=True), 1),
  'easgd, T = 3': (lambda member: easgd.Easgd(member, 0.4, 3, is_sync=True), 3),
}
each_rule = pytest.mark.parametrize('rule', RULES)


class Worker:
  """A worker whose average moves a tenth of the way to what it is fed."""

  def __init__(self, cluster, index, make_rule):
    with tf.Graph().as_default():
      member = cluster.worker(index)
      with tf.device(member.device_setter()):
        global_step = tf.train.get_or_create_global_step()
        self.fed = tf.placeholder(tf.float32, [2])
        self.is_held = tf.placeholder_with_default(False, [])
        with tf.device(member.cpu_device):
          go = tf.FIFOQueue(-1, tf.bool, (), shared_name='go')
        self.let_go = go.enqueue(True)
        rule = make_rule(member)
        state = model_state.ModelState(member, rule.is_lock_step)
        state.activate()
        with rule.scope():
          w = tf.get_variable('w', [2], initializer=tf.zeros_initializer())
          self.center = [
            tf.get_variable('average', initializer=np.float32(START), **AS_IS),
            tf.get_variable('half', initializer=np.float16(START), **AS_IS),
            tf.get_variable('count', initializer=0, **AS_IS),
            tf.get_variable('is_odd', initializer=False, **AS_IS),
            tf.get_variable(
              'wave', initializer=np.complex64(TURN * START), **AS_IS
            ),
          ]
        self.copies = [model_state.read(variable) for variable in self.center]
        average, half, count, is_odd, wave = self.copies
        for variable, value in zip(
          self.center,
          [
            average + 0.1 * (self.fed - average),
            half + 0.1 * (tf.cast(self.fed, tf.float16) - half),
            count + 1,
            tf.logical_not(is_odd),
            0.9 * wave + 0.1 * TURN * tf.cast(self.fed, tf.complex64),
          ],
          strict=True,
        ):
          model_state.change(variable, value)
        with tf.device(member.cpu_device):
          may_go = tf.cond(self.is_held, go.dequeue, lambda: True)
        with tf.control_dependencies([may_go]):
          loss = tf.reduce_sum(w * tf.identity(self.fed)) / 100
        update = rule.minimize(loss, make_optimizer, global_step)
        state.build_updates()
        self.train_op = batch_norm.after_updates(update.train_op)
        self.read = [variable.read_value() for variable in self.center]
      self.hooks = rule.hooks(in_process.NoStop())
      self.session = cluster.make_session(index, self.hooks)
      self.raw = self.session._tf_sess()

  def step(self, fed, is_held=False):
    feed = {self.fed: fed, self.is_held: is_held}
    self.session.run(self.train_op, feed)

  def kill(self):
    self.raw.close()


AS_IS = {'trainable': False, 'use_resource': True}


def make_optimizer(is_local=False, rate_factor=None):
  del is_local, rate_factor
  return optimizers.make_optimizer('sgd', 0.01)


class Run:
  """Two workers, each of which may wait in its step for the other."""

  def __init__(self, cluster, make_rule):
    self._cluster = cluster
    self._make_rule = make_rule
    self._threads = [concurrent.futures.ThreadPoolExecutor(1) for _ in '01']
    self.workers = [None, None]

  def begin(self, index):
    self.workers[index] = Worker(self._cluster, index, self._make_rule)

  def step(self, index, fed, is_held=False):
    """Returns the Future of a step, which begins after those before it.

    Args:
      index: int, the worker.
      fed: list of float.
      is_held: bool, whether the gradient waits for Worker.let_go.
    """
    return self._threads[index].submit(self.workers[index].step, fed, is_held)

  def wait_for_the_wait(self, index):
    """Returns once a worker waits for the other."""
    deadline = time.monotonic() + in_process.DEADLINE_SECS
    hooks = self.workers[0].hooks
    other = rf'waits for worker {1 - index}(, which has not begun)?(;|$)'
    whom = re.compile(other)
    while not whom.search(strategy.describe_wait(hooks)):
      assert time.monotonic() < deadline
      time.sleep(0.01)

  def play(self, batches):
    """All go on: batches[i] is a list of what worker i is fed."""
    steps = [
      self.step(index, fed)
      for index, of_worker in enumerate(batches)
      for fed in of_worker
    ]
    for step in steps:
      step.result(in_process.DEADLINE_SECS)

  def read(self):
    return self.workers[0].raw.run(self.workers[0].read)

  def close(self):
    for worker in self.workers:
      worker.session.close()
    for thread in self._threads:
      thread.shutdown()


@pytest.fixture
def make_run(make_cluster):
  """Returns make_run(rule, num_ps=1) -> (Run, T) without workers."""
  runs = []

  def make(rule, num_ps=1):
    make_rule, period = RULES[rule]
    runs.append(Run(make_cluster(num_ps, 2), make_rule))
    return runs[0], period

  yield make
  for run in runs:
    run.close()


def make_batches(num_rounds, period, seed=3):
  """Returns [num_workers, steps, 2], as many batches as rounds need."""
  rng = np.random.default_rng(seed)
  return rng.normal(size=(2, num_rounds * period, 2)) + [[[3, 9]], [[5, 7]]]


def compute(batches):
  """Returns the average of a process that has the whole batch in each step."""
  average = START
  for mean in np.mean(batches, axis=0):
    average = average + 0.1 * (mean - average)
  return average


def check(run, batches):
  average, half, count, is_odd, wave = run.read()
  expected = compute(batches)
  np.testing.assert_allclose(average, expected, rtol=1e-5)
  np.testing.assert_allclose(half, expected, rtol=2e-2)
  assert count == len(batches[0])
  assert is_odd == count % 2
  np.testing.assert_allclose(wave, TURN * expected, rtol=1e-5)
  for worker in run.workers:  # All begin the next round with the center.
    copies = worker.raw.run(worker.copies)
    np.testing.assert_array_equal(copies[0], average)
    assert copies[2:4] == [count, is_odd]


@pytest.mark.daily(but=['2-sync_sgd, by shard'])
@pytest.mark.slow
@each_rule
@pytest.mark.parametrize('num_ps', [1, 2])
def test_it_is_the_average_of_the_mean_of_the_batches(make_run, rule, num_ps):
  run, period = make_run(rule, num_ps)
  for index in range(2):
    run.begin(index)
  batches = make_batches(4, period)
  run.play(batches)
  check(run, batches)


@pytest.mark.daily
@pytest.mark.slow
@each_rule
def test_one_that_begins_late_changes_nothing(make_run, rule):
  run, period = make_run(rule)
  batches = make_batches(3, period)
  run.begin(0)
  first = [run.step(0, fed) for fed in batches[0][:period]]
  run.wait_for_the_wait(0)
  run.begin(1)
  run.play([batches[0][period:], batches[1]])
  assert all(step.done() for step in first)
  check(run, batches)


@pytest.mark.daily(but=['sync_sgd'])
@pytest.mark.slow
@pytest.mark.parametrize('rule', ['sync_sgd', 'sync_sgd, by shard'])
def test_it_moves_with_the_weights_or_not_at_all(make_run, rule):
  run, _ = make_run(rule)
  for index in range(2):
    run.begin(index)
  batches = make_batches(2, 1)
  steps = [run.step(0, batches[0][0]), run.step(1, batches[1][0], True)]
  run.wait_for_the_wait(0)
  time.sleep(0.5)  # All changes are there, and one of the gradients is not.
  assert run.read()[2] == 0
  # So a chief that is lost now leaves nothing that would count twice.
  run.workers[1].raw.run(run.workers[1].let_go)
  concurrent.futures.wait(steps, in_process.DEADLINE_SECS)
  run.play(batches[:, 1:])
  check(run, batches)


# What it had not contributed is lost, or some of it counts twice: for a while.
@pytest.mark.daily
@pytest.mark.slow
@each_rule
@pytest.mark.parametrize('waits', [False, True])
def test_one_that_dies_is_forgotten(make_run, rule, waits):
  run, period = make_run(rule)
  for index in range(2):
    run.begin(index)
  batches = make_batches(2, period)
  run.play(batches)
  if waits:
    last = [run.step(1, [50, 50]) for _ in range(period)]
    run.wait_for_the_wait(1)
  else:
    last = [run.step(1, [50, 50]) for _ in range(period - 1)]
    concurrent.futures.wait(last)
  run.workers[1].kill()
  concurrent.futures.wait(last)
  away = [run.step(0, [20, 20]) for _ in range(period)]
  if not waits:
    run.wait_for_the_wait(0)
  run.begin(1)
  # Of one that had contributed, the round is over.
  rounds = 120 // period
  play = [[[3, 1]] * rounds * period, [[5, 0]] * rounds * period]
  if not waits:
    play[1] += [[5, 0]] * period
  run.play(play)
  assert all(step.done() for step in away)
  average, *_ = run.read()
  np.testing.assert_allclose(average, [4, 0.5], atol=5e-4)
