"""dynsgd: two workers stepped by hand, and a NumPy oracle."""

import functools

import numpy as np
import pytest
from absl import flags

from distmnist import cluster as cluster_lib
from distmnist.strategies import dynsgd
from tests.strategies import stepper as stepper_lib
from tests.strategies.stepper import draw_events


@pytest.fixture
def make(make_stepper):
  """Returns make(period, num_ps=1, ...) -> a Stepper of two workers."""

  def make(period, num_ps=1, **settings):
    make_rule = functools.partial(dynsgd.DynSgd, communication_period=period)
    return make_stepper(num_ps, 2, make_rule, **settings)

  return make


def test_two_workers_one_after_the_other(make):
  stepper = make(period=1)
  # Rate 0.5. The change is 0.5 (x - copy); a copy is as old as its last push.
  assert stepper.step(0, [8]) == (1, 0, [4])  # 0 + 4
  assert stepper.step(1, [12]) == (2, 1, [7])  # Copy 0: 4 + 6 / 2
  assert stepper.step(1, [9]) == (3, 0, [8])  # Copy 7: 7 + 1
  assert stepper.step(0, [-8]) == (4, 2, [6])  # Copy 4: 8 - 6 / 3
  assert stepper.read_copy(0) == [6]
  assert stepper.read_copy(1) == [8]


@pytest.mark.slow
def test_two_local_steps_a_push(make):
  stepper = make(period=2)
  # A step that pushes nothing tells the last known step, and staleness -1.
  assert stepper.step(0, [8]) == (0, -1, [0])
  assert stepper.read_copy(0) == [4]
  assert stepper.step(1, [4]) == (0, -1, [0])
  assert stepper.read_copy(1) == [2]
  assert stepper.step(0, [8]) == (1, 0, [6])  # 0 + 6: it went 0, 4, 6.
  assert stepper.read_copy(0) == [6]
  assert stepper.step(1, [10]) == (2, 1, [9])  # It went 0, 2, 6: 6 + 6 / 2
  assert stepper.read_copy(1) == [9]
  assert stepper.step(0, [0]) == (1, -1, [9])
  assert stepper.read_copy(0) == [3]
  assert stepper.step(0, [0]) == (3, 1, [6.75])  # 6, 3, 1.5: 9 - 4.5 / 2
  assert stepper.read_copy(0) == [6.75]


@pytest.mark.parametrize('staleness, w', [(0, 6), (1, 3), (2, 2), (3, 1.5)])
def test_a_change_counts_the_less_the_staler_it_is(make, staleness, w):
  stepper = make(period=1)
  stepper.begin(0, [12])
  for _ in range(staleness):
    stepper.step(1, [0])  # Its change is 0: it moves the clock alone.
  assert stepper.end(0) == (staleness + 1, staleness, [w])  # 6 / (s + 1)
  assert stepper.read_copy(0) == [w]


@pytest.mark.slow
def test_the_local_velocity_outlives_a_pull(make):
  stepper = make(period=1, optimizer='momentum')
  stepper.begin(0, [12])
  stepper.step(1, [0])
  # v = -12; the change is 6 and the half of it counts.
  assert stepper.end(0) == (2, 1, [3])
  # At x = copy: v = 0.9 * -12, whole. The velocity of worker 1 is still 0.
  step, staleness, (w,) = stepper.step(0, [3])
  assert (step, staleness, w) == (3, 0, pytest.approx(3 + 5.4))
  step, staleness, (w,) = stepper.step(1, [0])
  assert (step, staleness, w) == (4, 2, pytest.approx(8.4))


@pytest.mark.slow
def test_only_a_step_with_a_push_sends_bytes(make):
  stepper = make(period=3, num_ps=2, size=5)
  found = []
  for _ in range(6):
    stepper.step(0, [1] * 5)
    found.append((stepper.bytes_pulled, stepper.bytes_pushed))
  assert found == [(0, 0), (0, 0), (20, 20)] * 2


def compute_dynsgd(w, events, rate, momentum, period):
  """The rule as its docstring has it, slowly.

  Args:
    w: float array, x~ at step 0.
    events: list of (worker, x or None): compute with x, or step.
    rate, momentum: float, of each worker's own optimizer.
    period: int, T.

  Returns:
    A list of (c, s, x~, the copies), one a step; without a push c is what the
    worker pulled at and s is -1.
  """
  c, found = 0, []
  copies, as_pulled, clocks, num_steps = [w, w], [w, w], [0, 0], [0, 0]
  velocities, gradients = [np.zeros_like(w)] * 2, [None, None]
  for i, x in events:
    if x is not None:
      gradients[i] = copies[i] - x
      continue
    velocities[i] = momentum * velocities[i] + gradients[i]
    copies[i] = copies[i] - rate * velocities[i]
    num_steps[i] += 1
    s = -1
    if num_steps[i] % period == 0:
      delta = copies[i] - as_pulled[i]
      s = c - clocks[i]
      w = w + delta / (s + 1)
      c += 1
      copies[i] = as_pulled[i] = w
      clocks[i] = c
    found.append((clocks[i], s, w, list(copies)))
  return found


@pytest.mark.slow
@pytest.mark.parametrize(
  'num_ps, optimizer, momentum, period',
  [
    (1, 'sgd', 0, 3),
    (2, 'sgd', 0, 1),
    (1, 'momentum', 0.9, 1),
    (2, 'momentum', 0.9, 3),
  ],
)
def test_random_steps_agree_with_the_oracle(
  make, num_ps, period, optimizer, momentum
):
  rng = np.random.default_rng(num_ps)
  events = draw_events(rng, num_steps=60, size=5)
  expected = iter(compute_dynsgd(np.zeros(5), events, 0.2, momentum, period))
  stepper = make(period, num_ps, size=5, optimizer=optimizer, rate=0.2)
  seen = []
  for worker, x in events:
    if x is not None:
      stepper.begin(worker, x)
      continue
    step, staleness, w = stepper.end(worker)
    expected_step, expected_staleness, *expected_values = next(expected)
    assert (step, staleness) == (expected_step, expected_staleness)
    copies = [stepper.read_copy(i) for i in range(2)]
    for found, value in zip([w, copies], expected_values, strict=True):
      np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)
    seen.append(staleness)
  assert len(seen) >= 50
  assert set(seen) >= {0, 1, 2}


@pytest.mark.slow
def test_the_center_is_on_the_ps_and_all_else_on_the_worker(make):
  stepper = make(period=3, num_ps=2, size=5, optimizer='momentum')
  for worker in stepper.workers:
    shared, local = worker.variables()
    assert shared == {
      'global_step': '/job:ps/task:0/device:CPU:0',
      'w/part_0': '/job:ps/task:1/device:CPU:0',
      'w/part_1': '/job:ps/task:0/device:CPU:0',
    }
    here = f'/job:worker/task:{worker.index}/device:CPU:0'
    assert local == {
      'local_copy/w': here,
      'local_copy/w/Momentum': here,
      'dynsgd/as_pulled': here,
      'dynsgd/pulled_step': here,
      'dynsgd/local_step': here,
    }


@pytest.mark.slow
def test_a_worker_that_comes_back_starts_from_the_center(make, make_cluster):
  stepper = make(period=2, num_ps=2, size=2)
  stepper.step(1, [100, 100])  # What it did on its own is lost.
  for _ in range(2):
    stepper.step(0, [8, 4])
  stepper.workers[1].session.close()
  stepper.workers[1] = stepper_lib.Worker(
    make_cluster(2, 2),
    1,
    lambda member: dynsgd.DynSgd(member, 2),
    2,
    'sgd',
    0.5,
  )
  assert stepper.read_copy(1) == stepper.read_center() == [6, 3]
  # Not stale, and two local steps from its new start to its push.
  assert stepper.step(1, [6, 3]) == (1, -1, [6, 3])
  assert stepper.step(1, [8, 3]) == (2, 0, [7, 3])


@pytest.mark.parametrize('words, expected', [([], 5), (['1'], 1), (['7'], 7)])
def test_the_flag_says_how_many_local_steps(set_flags, words, expected):
  set_flags(*(f'--communication_period={word}' for word in words))
  rule = dynsgd.make(cluster_lib.Cluster())
  assert rule.batches_per_update == expected


def test_a_push_has_at_least_one_local_step(set_flags):
  message = '--communication_period=0'
  with pytest.raises(flags.IllegalFlagValueError, match=message):
    set_flags('--communication_period=0')
