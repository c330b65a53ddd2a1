"""downpour: two workers stepped by hand, and a NumPy oracle."""

import contextlib

import numpy as np
import pytest
from absl import flags

from distmnist.strategies import async_sgd, downpour
from tests.strategies import stepper as stepper_lib
from tests.strategies.stepper import (
  Momentum,
  check_equal,
  draw_events,
  run_events,
)


@pytest.fixture
def make(make_stepper):
  """Returns make(num_ps=1, n_fetch=1, ...) -> a Stepper of two workers."""

  def make(num_ps=1, n_fetch=1, n_push=1, **settings):
    return make_stepper(
      num_ps,
      2,
      lambda member: downpour.Downpour(member, n_fetch, n_push),
      **settings,
    )

  return make


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
@pytest.mark.parametrize(
  'staleness, center', [(0, 4), (1, 6), (2, 7), (3, 7.5)]
)
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


def compute_downpour(events, size, n_fetch, n_push, eta, momentum):
  """The rule as its docstring has it, slowly.

  Args:
    events: list of (worker, batch or None): compute with the batch, or go on.
    size: int, of x~, which starts at 0.
    n_fetch, n_push: int, in local steps.
    eta, momentum: float, of all optimizers.

  Returns:
    A list of (global_step, staleness, x~, [x^0, x^1]), one a step.
  """
  opt = Momentum(eta, momentum)
  local_opts = [Momentum(eta, momentum) for _ in range(2)]
  x_center, c = np.zeros(size), 0
  x, a = np.zeros((2, size)), np.zeros((2, size))
  t, c_known, c_fetched, g = [0, 0], [0, 0], [0, 0], [None, None]
  found = []
  for i, batch in events:
    if batch is not None:
      g[i] = x[i] - batch
      continue
    t[i] += 1
    staleness = -1
    a[i] += g[i]
    x[i] = local_opts[i](x[i], g[i])
    if t[i] % n_push == 0:
      x_center = opt(x_center, a[i])
      a[i] = 0
      staleness = c - c_fetched[i]
      c += 1
      c_known[i] = c
    if t[i] % n_fetch == 0:
      x[i] = x_center
      c_known[i] = c_fetched[i] = c
    found.append((c_known[i], staleness, x_center, x.copy()))
  return found


SGD, MOMENTUM = ('sgd', 0), ('momentum', 0.9)


@pytest.mark.slow
@pytest.mark.parametrize(
  'num_ps, optimizer_momentum, n_fetch, n_push, stalenesses',
  [
    (1, SGD, 2, 3, {-1, 0, 1}),
    (1, MOMENTUM, 2, 3, {-1, 0, 1}),
    (2, SGD, 2, 3, {-1, 0, 1}),
    (2, MOMENTUM, 2, 3, {-1, 0, 1}),
    (2, SGD, 1, 1, {0, 1, 2, 3}),
    (1, MOMENTUM, 4, 1, {0, 1, 2, 3, 4, 5}),
  ],
)
def test_random_steps_agree_with_the_oracle(
  make, num_ps, optimizer_momentum, n_fetch, n_push, stalenesses
):
  optimizer, momentum = optimizer_momentum
  events = draw_events(np.random.default_rng(n_push), num_steps=50, size=5)
  expected = compute_downpour(events, 5, n_fetch, n_push, 0.1, momentum)
  assert {staleness for _, staleness, _, _ in expected} >= stalenesses
  stepper = make(num_ps, n_fetch, n_push, size=5, optimizer=optimizer, rate=0.1)
  check_equal(run_events(stepper, events), expected)


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


@pytest.mark.slow
def test_center_and_its_slots_are_on_the_ps_and_all_else_on_the_worker(make):
  stepper = make(2, size=5, optimizer='momentum')
  for index, worker in enumerate(stepper.workers):
    shared, local = worker.variables()
    assert shared == {
      'global_step': '/job:ps/task:0/device:CPU:0',
      'w/part_0': '/job:ps/task:1/device:CPU:0',
      'w/part_1': '/job:ps/task:0/device:CPU:0',
      'w/part_0/Momentum': '/job:ps/task:1/device:CPU:0',
      'w/part_1/Momentum': '/job:ps/task:0/device:CPU:0',
    }
    here = f'/job:worker/task:{index}/device:CPU:0'
    assert local == {
      'local_copy/w': here,
      'local_copy/w/Momentum': here,
      'downpour/gradient_sum': here,
      'downpour/known_step': here,
      'downpour/local_step': here,
      'downpour/pulled_step': here,
    }


@pytest.mark.slow
def test_a_worker_that_comes_back_starts_from_the_center(make_cluster):
  def make_rule(member):
    return downpour.Downpour(member, 2, 2)

  cluster = make_cluster(1, 2)
  with contextlib.closing(stepper_lib.Stepper(cluster, make_rule)) as stepper:
    stepper.step(1, [1])  # Its sum will be lost with it.
    stepper.step(0, [8])
    assert stepper.step(0, [8]) == (1, 0, [6])
    stepper.workers[1].session.close()
    stepper.workers[1] = stepper_lib.Worker(
      cluster, 1, make_rule, 1, 'sgd', 0.5
    )
    assert stepper.read_copy(1) == [6]
    assert stepper.step(1, [4]) == (1, -1, [6])  # g = 2
    assert stepper.step(1, [4]) == (2, 0, [4.5])  # g = 1
    assert stepper.read_copy(1) == [4.5]


def read_traffic(stepper, num_steps):
  """Returns the list of (bytes pulled, bytes pushed) of worker 0's steps."""
  traffic = []
  for _ in range(num_steps):
    stepper.step(0, [1] * 5)
    traffic.append((stepper.bytes_pulled, stepper.bytes_pushed))
  return traffic


@pytest.mark.slow
def test_bytes_go_when_a_fetch_or_a_push_is_due(make):
  stepper = make(2, n_fetch=2, n_push=3, size=5)
  assert read_traffic(stepper, 6) == [
    (0, 0),
    (20, 0),
    (0, 20),
    (20, 0),
    (0, 0),
    (20, 20),
  ]


@pytest.mark.slow
def test_the_flags_reach_the_rule(make_stepper, set_flags):
  set_flags('--n_fetch=3', '--n_push=2')
  stepper = make_stepper(1, 2, downpour.make, size=5)
  assert stepper.workers[0].rule.batches_per_update == 2
  assert read_traffic(stepper, 3) == [(0, 0), (0, 20), (20, 0)]


@pytest.mark.slow
def test_by_default_each_step_pushes_and_fetches(make_stepper, set_flags):
  set_flags()
  stepper = make_stepper(1, 2, downpour.make, size=5)
  assert stepper.workers[0].rule.batches_per_update == 1
  assert read_traffic(stepper, 2) == [(20, 20), (20, 20)]


@pytest.mark.parametrize('name', ['n_fetch', 'n_push'])
def test_a_period_is_at_least_1(set_flags, name):
  with pytest.raises(
    flags.IllegalFlagValueError,
    match=f'^flag --{name}=0: 0 is not a positive integer$',
  ):
    set_flags(f'--{name}=0')
