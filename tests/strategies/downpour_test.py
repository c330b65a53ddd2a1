"""downpour: two workers stepped by hand, and a NumPy oracle."""

import numpy as np
import pytest
from absl import flags

from distmnist.cluster import cluster as cluster_lib
from distmnist.strategies import async_sgd, downpour
from tests.support import oracles, rule


@pytest.fixture
def make(make_stepper):
  """Returns make(num_ps=1, n_fetch=1, ...) -> a Stepper of two workers."""

  def make(num_ps=1, n_fetch=1, n_push=1, pulls_ahead=False, **settings):
    return make_stepper(
      num_ps,
      2,
      lambda member: downpour.Downpour(member, n_fetch, n_push, pulls_ahead),
      **settings,
    )

  return make


@pytest.mark.slow
def test_two_workers_one_after_the_other(make):
  stepper = make()
  # g = x^i - x, x~ <- x~ - 0.5 g, x^i <- x~.
  assert stepper.step(0, [8]) == (1, 0, [4])
  assert stepper.read_copy(0) == [4]
  # Worker 1 has fetched 0 at its start: g = -2.
  assert stepper.read_copy(1) == [0]
  assert stepper.step(1, [2]) == (2, 1, [5])
  assert stepper.read_copy(1) == [5]
  assert stepper.step(1, [3]) == (3, 0, [4])
  assert stepper.step(0, [6]) == (4, 2, [5])  # g = 4 - 6
  assert stepper.read_copy(0) == [5]


@pytest.mark.slow
def test_a_push_is_the_sum_and_a_fetch_forgets_the_local_steps(make):
  stepper = make(n_fetch=2, n_push=3)
  assert stepper.step(0, [8]) == (0, -1, [0])  # g = -8
  assert stepper.read_copy(0) == [4]
  assert stepper.step(0, [8]) == (0, -1, [0])  # g = -4, and a fetch of 0.
  assert stepper.read_copy(0) == [0]
  assert stepper.step(0, [8]) == (1, 0, [10])  # g = -8: a = -20
  assert stepper.read_copy(0) == [4]
  assert stepper.step(0, [8]) == (1, -1, [10])  # g = -4, and a fetch of 10.
  assert stepper.read_copy(0) == [10]
  assert stepper.step(0, [8]) == (1, -1, [10])  # g = 2
  assert stepper.read_copy(0) == [9]
  # g = 1: a = -4 + 2 + 1. The fetch of the same step sees the push.
  assert stepper.step(0, [8]) == (2, 0, [10.5])
  assert stepper.read_copy(0) == [10.5]


@pytest.mark.slow
def test_own_pushes_since_the_fetch_make_a_worker_stale(make):
  stepper = make(n_fetch=4, n_push=1)
  assert stepper.step(0, [8]) == (1, 0, [4])
  assert stepper.step(0, [8]) == (2, 1, [6])
  assert stepper.step(1, [-8]) == (3, 2, [2])  # g = 8: the copy is still 0.
  assert stepper.step(0, [8]) == (4, 3, [3])  # g = 6 - 8
  assert stepper.read_copy(0) == [7]
  assert stepper.step(0, [8]) == (5, 4, [3.5])  # g = -1, and a fetch.
  assert stepper.read_copy(0) == [3.5]
  assert stepper.step(0, [9.5]) == (6, 0, [6.5])


@pytest.mark.slow
@pytest.mark.parametrize('staleness, center', [(0, 4), (3, 7.5)])
def test_a_stale_push_counts_in_full(make, staleness, center):
  stepper = make()
  stepper.begin(0, [8])  # g = -8, of x^0 = 0.
  for _ in range(staleness):
    stepper.step(1, [4])  # The center goes to 2, 3, 3.5.
  assert stepper.read_copy(0) == [0]
  assert stepper.end(0) == (staleness + 1, staleness, [center])
  assert stepper.read_copy(0) == [center]


@pytest.mark.slow
def test_the_staleness_of_a_push_is_since_the_last_fetch(make):
  stepper = make(n_fetch=2, n_push=3)
  for _ in range(3):
    stepper.step(1, [1])  # Pushes once, before worker 0 fetches.
  for _ in range(2):
    assert stepper.step(0, [1])[1] == -1
  for _ in range(6):
    stepper.step(1, [1])  # Pushes twice after that.
  assert stepper.step(0, [1])[:2] == (4, 2)


@pytest.mark.slow
def test_with_a_pull_ahead_a_fetch_is_of_the_start_of_its_step(make):
  stepper = make(num_ps=2, size=2, pulls_ahead=True)
  # x~ <- x~ - 0.5 (x^i - x); what comes lacks that push.
  assert stepper.step(0, [8, 8]) == (1, 0, [4, 4])
  assert stepper.read_copy(0) == [0, 0]
  assert stepper.step(0, [8, 8]) == (2, 1, [8, 8])
  assert stepper.read_copy(0) == [4, 4]
  stepper.begin(0, [8, 8])  # Pulls 8.
  assert stepper.step(1, [2, 2]) == (3, 2, [9, 9])  # Its copy is still 0.
  assert stepper.read_copy(1) == [8, 8]
  assert stepper.end(0) == (4, 2, [11, 11])  # g = 4 - 8
  assert stepper.read_copy(0) == [8, 8]


@pytest.mark.slow
def test_a_pull_ahead_is_of_the_steps_that_fetch(make):
  stepper = make(n_fetch=2, n_push=2, pulls_ahead=True)
  assert stepper.step(0, [8]) == (0, -1, [0])  # g = -8
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (0, 0)
  assert stepper.step(0, [8]) == (1, 0, [6])  # g = -4
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (4, 4)
  assert stepper.read_copy(0) == [0]
  stepper.step(0, [8])
  # The known step is not that before its own push.
  assert stepper.step(0, [8]) == (2, 1, [12])
  assert stepper.read_copy(0) == [6]


@pytest.mark.slow
def test_a_pull_ahead_goes_with_two_steps_in_a_run(make):
  stepper = make(pulls_ahead=True, steps_per_run=2)
  for _ in range(2):
    stepper.begin(0, [8])
    stepper.release(0)
  # The second one was begun with 0, and pulls 4.
  assert stepper.join(0) == (2, 1, [8])
  assert stepper.workers[0].done == [(1, 0), (2, 1)]
  assert stepper.read_copy(0) == [4]


@pytest.mark.slow
def test_a_step_that_fetches_nothing_pulls_nothing_ahead(make):
  stepper = make(n_fetch=4, n_push=4, pulls_ahead=True, steps_per_run=2)
  pulls = []
  for _ in range(2):
    steps = stepper.workers[0]._steps
    left = [x.op for x in steps.before_run(None).fetches]
    ops = set()
    while left:
      op = left.pop()
      if op not in ops:
        ops.add(op)
        left += [x.op for x in op.inputs] + op.control_inputs
    read = [op.inputs[0].op for op in ops if op.type == 'ReadVariableOp']
    pulls.append('w' in [op.name for op in read])
    for _ in range(2):
      stepper.begin(0, [8])
      stepper.release(0)
    stepper.join(0)
  assert pulls == [False, True]
  # A sum of -8 - 4 - 2 - 1, and then the center as the last step began.
  assert stepper.read_center() == [7.5]
  assert stepper.read_copy(0) == [0]


class Oracle(oracles.Oracle):
  """Sums are pushed each n_push steps, the center fetched each n_fetch."""

  def __init__(self, n_fetch, n_push, pulls_ahead=False, **how):
    super().__init__(**how)
    self._pulls_ahead = pulls_ahead
    self._next = [None] * self.num_workers
    self._n_fetch, self._n_push = n_fetch, n_push

  def begin(self, i, x):
    super().begin(i, x)
    self._next[i] = self.wire(self.center), self.step

  def end(self, i):
    self.unsent[i] = self.unsent[i] + self.step_locally(i)
    staleness = -1
    if self.local_steps[i] % self._n_push == 0:
      a, self.unsent[i] = self.wire(self.unsent[i]), 0
      self.center = self.optimizer(self.center, a, self.begun[i])
      _, staleness = self.count(i)
    if self.local_steps[i] % self._n_fetch == 0:
      if self._pulls_ahead:
        self.copies[i], self.pulled_step[i] = self._next[i]
        self.known_step[i] = max(self.known_step[i], self.pulled_step[i])
      else:
        self.pull(i)
    return {i: (self.known_step[i], staleness)}


def periods(n_fetch, n_push, **more):
  return {'n_fetch': n_fetch, 'n_push': n_push, **more}


RULE = rule.Rule(
  lambda member, n_fetch=1, n_push=1, pulls_ahead=False: downpour.Downpour(
    member, n_fetch, n_push, pulls_ahead
  ),
  Oracle,
  flags=('--n_push=2', '--n_fetch=2'),
  settings=periods(2, 2),
  placement=[
    rule.Placement(
      ['{w}', '{w}/Momentum'],
      [
        'local_copy/w',
        'local_copy/w/Momentum',
        'downpour/gradient_sum',
        'downpour/known_step',
        'downpour/local_step',
        'downpour/pulled_step',
      ],
    )
  ],
  traffic=[
    rule.Traffic(
      [(0, 0), (20, 0), (0, 20), (20, 0), (0, 0), (20, 20)], periods(2, 3)
    )
  ],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, settings, staleness, rate=0.1)
    for num_ps, optimizer, settings, staleness in (
      (2, 'momentum', periods(2, 3), {-1, 0, 1}),
      (2, 'sgd', periods(1, 1), {0, 1, 2, 3}),
      (1, 'momentum', periods(4, 1), {0, 1, 2, 3, 4, 5}),
      (2, 'sgd', periods(1, 1, pulls_ahead=True), {0, 1, 2, 3}),
      (1, 'momentum', periods(3, 2, pulls_ahead=True), {-1, 0, 1, 2}),
    )
  ],
)


@pytest.mark.slow
def test_with_1_and_1_the_center_moves_as_in_async_sgd(make, make_stepper):
  # async_sgd pulls when a step begins and downpour when the one before ends:
  # workers without a pause between their steps do so at the same moment.
  rng = np.random.default_rng(0)
  pushers = rng.integers(2, size=30)
  batches = rng.normal(size=(32, 5))
  trajectories = []
  # Two clusters, as the variables of both rules have the same names.
  for stepper in (
    make(1, size=5, optimizer='momentum'),
    make_stepper(2, 2, async_sgd.make, size=5, optimizer='momentum'),
  ):
    left, steps = iter(batches), []
    for i in range(2):
      stepper.begin(i, next(left))
    for i in pushers:
      steps.append(stepper.end(i))
      stepper.begin(i, next(left))
    for i in range(2):
      steps.append(stepper.end(i))
    trajectories.append(steps)
  assert {step.staleness for step in trajectories[1]} >= {0, 1, 2}
  for ours, other in zip(*trajectories, strict=True):
    assert ours[:2] == other[:2]
    np.testing.assert_allclose(ours.center, other.center, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('name', ['n_fetch', 'n_push'])
def test_a_period_is_at_least_1(set_flags, name):
  with pytest.raises(
    flags.IllegalFlagValueError,
    match=f'^flag --{name}=0: 0 is not a positive integer$',
  ):
    set_flags(f'--{name}=0')


def test_a_pull_ahead_is_asked_for_and_needs_a_ps(set_flags):
  member = cluster_lib.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 1)
  set_flags()
  assert not downpour.make(member).overlaps_exchange
  set_flags('--pull_ahead=1')
  assert downpour.make(member).overlaps_exchange
  alone = cluster_lib.make_cluster((), ('w0:1',), 'worker', 0)
  assert not downpour.make(alone).overlaps_exchange


@pytest.mark.parametrize(
  'words, expected',
  [([], (1, 1, False)), (['--n_fetch=3', '--n_push=2'], (3, 2, False))],
)
def test_the_flags_reach_the_rule(set_flags, monkeypatch, words, expected):
  set_flags(*words)
  assert downpour.make(cluster_lib.Cluster()).batches_per_update == expected[1]
  assert rule.read_made_with(monkeypatch, downpour, 'Downpour') == expected
