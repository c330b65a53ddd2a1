"""ssp: workers that die or are asked to stop, and an oracle of clocks."""

import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.strategies import ssp
from tests.strategies import async_sgd_test
from tests.support import in_process, oracles, rule
from tests.support import stepper as stepper_lib


class _KeepSession(tf.train.SessionRunHook):
  def __init__(self, rule):
    self._rule = rule

  def after_create_session(self, session, coord):
    self._rule.raw_session = session


class Ssp(ssp.Ssp):
  """The rule of a worker that can be asked to stop, and can be killed.

  Attributes:
    stop: in_process.AskedStop.
    raw_session: tf.Session. Where it is closed the worker has died: no hook
      runs at its end.
  """

  def hooks(self, stop):
    self.stop = in_process.AskedStop()
    return [_KeepSession(self), *super().hooks(self.stop)]


class Run:
  """A stepper of workers that may wait, die, leave and come back."""

  def __init__(self, stepper, cluster):
    self.stepper = stepper
    self.leave, self.come_back = stepper.leave, stepper.come_back
    chief = stepper.workers[0]
    self._reader = tf.Session(cluster.servers[0].target, graph=chief.graph)
    self._global_step = tf.train.get_global_step(chief.graph)

  def start(self, worker, x):
    """Starts a step and goes on when it is applied; it may wait at its end."""
    self.stepper.begin(worker, x)
    self.finish(worker)

  def finish(self, worker):
    """Lets the gradients of `worker` be applied, and goes on when they are."""
    expected = self.read_step() + 1
    self.stepper.release(worker)
    deadline = time.monotonic() + stepper_lib.DEADLINE_SECS
    while self.read_step() < expected:
      assert time.monotonic() < deadline

  def read_step(self):
    return int(self._reader.run(self._global_step))

  def is_waiting(self, worker):
    return not self.stepper.is_done(worker, wait_secs=0.1)

  def check_turn(self, worker, other):
    """A step of `worker` waits for one of the other, and not longer."""
    self.start(worker, [0])
    assert self.is_waiting(worker)
    self.start(other, [0])
    self.stepper.join(worker)
    self.stepper.join(other)

  def kill(self, worker):
    self.leave(worker, self.stepper.workers[worker].rule.raw_session.close)

  def close(self):
    self._reader.close()


@pytest.fixture
def make(make_stepper, make_cluster):
  """Returns make(bound, num_ps=1, num_workers=2, ...) -> a Run."""
  made = []

  def make_run(bound, num_ps=1, num_workers=2, **settings):
    stepper = make_stepper(
      num_ps, num_workers, lambda member: Ssp(member, bound), **settings
    )
    made.append(Run(stepper, make_cluster(num_ps, num_workers)))
    return made[-1]

  yield make_run
  for run in made:
    run.close()


@pytest.mark.slow
def test_after_all_have_left_any_of_them_can_start_anew(make):
  run = make(bound=1)
  stepper = run.stepper
  stepper.step(0, [0])
  run.leave(0)
  run.leave(1)
  run.come_back(1)
  for step in range(2, 6):
    assert stepper.step(1, [0])[:2] == (step, 0)
  run.come_back(0)
  stepper.step(0, [0])
  run.check_turn(0, 1)


@pytest.mark.slow
def test_one_that_died_in_its_wait_comes_back_within_the_bound(make):
  run = make(bound=3)
  stepper = run.stepper
  for _ in range(3):
    stepper.step(0, [0])
  run.start(0, [0])
  assert run.is_waiting(0)
  run.kill(0)
  with pytest.raises(tf.errors.CancelledError):
    stepper.join(0)
  run.come_back(0)
  # It may start the step that it did not get to, and no other.
  run.check_turn(0, 1)
  run.start(0, [0])
  assert run.is_waiting(0)
  run.start(1, [0])
  stepper.join(0)


@pytest.mark.slow
def test_the_others_wait_for_one_that_died_until_it_is_back(make):
  run = make(bound=1)
  stepper = run.stepper
  stepper.step(0, [0])
  stepper.begin(1, [0])
  run.kill(1)
  with pytest.raises(tf.errors.CancelledError):
    stepper.join(1)
  run.start(0, [0])
  assert run.is_waiting(0)
  run.come_back(1)
  assert run.is_waiting(0)
  run.start(1, [0])
  stepper.join(0)
  stepper.join(1)
  run.start(0, [0])  # 3 and 1.
  assert run.is_waiting(0)


@pytest.mark.slow
def test_one_that_is_asked_to_stop_gets_out_of_a_run_of_several_steps(make):
  run = make(bound=0, steps_per_run=3)
  stepper = run.stepper
  stepper.begin(0, [8])
  stepper.release(0)  # It waits for the clock of worker 1, which never moves.
  stepper.workers[0].rule.stop.request()
  for _ in range(2):
    stepper.begin(0, [8])
    stepper.release(0)
  assert stepper.join(0)[0] == 3
  run.leave(0)


@pytest.mark.slow
def test_one_that_is_asked_to_stop_gets_out_of_its_wait(make):
  run = make(bound=0)
  stepper = run.stepper
  run.start(0, [8])
  assert run.is_waiting(0)
  stepper.workers[0].rule.stop.request()
  assert stepper.join(0) == (1, 0, [4])
  run.leave(0)
  for step in range(2, 5):
    assert stepper.step(1, [4])[:2] == (step, 0)


class Oracle(async_sgd_test.Oracle):
  """Asynchronous SGD and the vector of clocks.

  Attributes:
    clocks: {worker: c^i} of those that are there.
  """

  def __init__(self, bound, **how):
    super().__init__(**how)
    self._bound, self.clocks = bound, dict.fromkeys(range(self.num_workers), 0)

  def end(self, i):
    self.clocks[i] += 1
    return super().end(i)

  def may_start(self, i):
    return self.clocks[i] - min(self.clocks.values()) <= self._bound

  def come_back(self, i):
    self.clocks[i] = min(self.clocks.values())


RULE = rule.Rule(
  lambda member, bound: ssp.Ssp(member, bound),
  Oracle,
  flags=('--ssp_bound=1000',),
  settings={'bound': 1000},
  placement=[rule.Placement(['{w}', '{w}/Momentum'], [], {'bound': 3})],
  traffic=[rule.Traffic([(20, 20)], {'bound': 3})],
)


@pytest.mark.daily(but=['2-2-3-sgd-0'])
@pytest.mark.slow
# The clocks know nothing of the optimizer: each case has one.
@pytest.mark.parametrize(
  'num_ps, num_workers, bound, optimizer, momentum',
  [
    (1, 2, 0, 'momentum', 0.9),
    (2, 2, 3, 'sgd', 0),
    (1, 3, 1, 'sgd', 0),
  ],
)
def test_random_steps_agree_with_the_oracle(
  make, num_ps, num_workers, bound, optimizer, momentum
):
  rng = np.random.default_rng(bound)
  run = make(bound, num_ps, num_workers, size=5, optimizer=optimizer, rate=0.1)
  stepper = run.stepper
  oracle = Oracle(bound, num_workers=num_workers, rate=0.1, momentum=momentum)
  # Some workers are quicker than others, or the bound would do nothing.
  speed = np.arange(1, num_workers + 1) ** 2.0
  at_work, waiting, away, num_waits = set(), {}, set(), 0
  # From 25 on, as soon as it has no step at work, worker 0 leaves.
  leaves_at, comes_back_at = 25, 50
  for event in range(75):
    free = [i for i in range(num_workers) if i not in waiting and i not in away]
    odds = speed[free] / speed[free].sum()
    worker = int(rng.choice(free, p=odds))
    if event >= leaves_at and 0 not in at_work and 0 not in waiting:
      run.leave(0)
      del oracle.clocks[0]
      away, leaves_at = {0}, np.inf
    elif away and event >= comes_back_at:
      run.come_back(0)
      oracle.come_back(0)
      away = set()
    elif worker not in at_work:
      x = rng.normal(size=5)
      oracle.begin(worker, x)
      stepper.begin(worker, x)
      at_work.add(worker)
      continue
    else:
      at_work.discard(worker)
      waiting.update(oracle.end(worker))
      run.finish(worker)
    for i in [i for i in waiting if oracle.may_start(i)]:
      assert stepper.join(i)[:2] == waiting.pop(i)
    for i in waiting:
      assert not stepper.is_done(i, wait_secs=0.01)
    num_waits += len(waiting)
    oracles.check(stepper, oracle)
  assert leaves_at == np.inf and not away
  assert num_waits >= 3
  assert oracle.step >= 25


@pytest.mark.slow
def test_the_clocks_are_on_a_ps_and_in_no_checkpoint():
  cluster = stepper_lib.NoSessions()
  worker = stepper_lib.Worker(cluster, 1, RULE.make_with({'bound': 3}), 5)
  clocks = [
    op.device
    for op in worker.graph.get_operations()
    if op.type == 'VarHandleOp' and op.name.endswith('clocks')
  ]
  assert clocks == ['/job:ps/task:0/device:CPU:0']
  for names in worker.variables():
    assert not [name for name in names if name.endswith('clocks')]


@pytest.mark.parametrize('words, bound', [([], 3), (['--ssp_bound=0'], 0)])
def test_the_bound_is_three_or_that_of_the_flag(
  set_flags, monkeypatch, words, bound
):
  set_flags(*words)
  assert rule.read_made_with(monkeypatch, ssp, 'Ssp') == (bound, False)
