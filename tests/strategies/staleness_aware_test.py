"""staleness_aware: two workers stepped by hand, and a NumPy oracle."""

import numpy as np
import pytest

from distmnist.strategies import staleness_aware
from tests.strategies import stepper as stepper_lib
from tests.strategies.stepper import draw_events


@pytest.fixture
def make(make_stepper):
  """Returns make(num_ps=1, ...) -> a Stepper of two workers."""
  return lambda num_ps=1, **settings: make_stepper(
    num_ps, 2, staleness_aware.make, **settings
  )


def test_two_workers_one_after_the_other(make):
  stepper = make()
  # Rate 0.5. The gradient is (copy - x); a copy is as old as its last step.
  assert stepper.step(0, [8]) == (1, 0, [4])  # 0 + 0.5 * 8
  assert stepper.step(1, [6]) == (2, 1, [7])  # Copy 0: 4 + 0.5 / 1 * 6
  assert stepper.step(1, [8]) == (3, 0, [7.5])  # Copy 7: 7 + 0.5 * 1
  assert stepper.step(0, [0]) == (4, 2, [6.5])  # Copy 4: 7.5 - 0.5 / 2 * 4
  assert stepper.read_copy(0) == [6.5]
  assert stepper.read_copy(1) == [7.5]


@pytest.mark.parametrize(
  'staleness, w', [(0, 6), (1, 6), (2, 3), (3, 2), (4, 1.5)]
)
def test_the_rate_is_divided_by_the_staleness_but_not_by_0(make, staleness, w):
  stepper = make()
  stepper.begin(0, [12])
  for _ in range(staleness):
    stepper.step(1, [0])  # Its gradient is 0: it moves the clock alone.
  assert stepper.end(0) == (staleness + 1, staleness, [w])  # 6 / max(1, s)


def test_the_velocity_takes_a_stale_gradient_whole(make):
  stepper = make(optimizer='momentum')
  stepper.begin(0, [12])
  stepper.step(1, [0])
  stepper.step(1, [0])
  # v = -12, and the rate is 0.5 / 2.
  assert stepper.end(0) == (3, 2, [3])
  # v = 0.9 * -12: not a half of it, as it were with a gradient cut in two.
  step, staleness, (w,) = stepper.step(0, [3])
  assert (step, staleness, w) == (4, 0, pytest.approx(3 + 0.5 * 10.8))


@pytest.mark.slow
def test_a_step_pulls_and_pushes_the_whole_center(make):
  stepper = make(2, size=5)
  stepper.step(0, [1] * 5)
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (20, 20)


def compute_staleness_aware(w, events, rate, momentum):
  """The rule as its docstring has it, slowly.

  Args:
    w: float array, x~ at step 0.
    events: list of (worker, x or None): compute with x, or push and pull.
    rate, momentum: float; eta, and what is left of the velocity at each step.

  Returns:
    A list of (c, s, x~, the copies), one a push.
  """
  velocity, c = np.zeros_like(w), 0
  copies, clocks, gradients, found = [w, w], [0, 0], [None, None], []
  for i, x in events:
    if x is not None:
      gradients[i] = copies[i] - x
      continue
    s = c - clocks[i]
    velocity = momentum * velocity + gradients[i]
    w = w - rate / max(1, s) * velocity
    c += 1
    copies[i], clocks[i] = w, c
    found.append((c, s, w, list(copies)))
  return found


@pytest.mark.slow
@pytest.mark.parametrize('optimizer, momentum', [('sgd', 0), ('momentum', 0.9)])
@pytest.mark.parametrize('num_ps', [1, 2])
def test_random_steps_agree_with_the_oracle(make, num_ps, optimizer, momentum):
  rng = np.random.default_rng(num_ps)
  events = draw_events(rng, num_steps=50, size=5)
  expected = iter(compute_staleness_aware(np.zeros(5), events, 0.2, momentum))
  stepper, seen = make(num_ps, size=5, optimizer=optimizer, rate=0.2), []
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
  assert set(seen) >= {0, 1, 2, 3}


@pytest.mark.slow
def test_the_center_is_on_the_ps_and_the_copy_on_the_worker(make):
  stepper = make(2, size=5, optimizer='momentum')
  for worker in stepper.workers:
    shared, local = worker.variables()
    assert shared == {
      'global_step': '/job:ps/task:0/device:CPU:0',
      'w/part_0': '/job:ps/task:1/device:CPU:0',
      'w/part_1': '/job:ps/task:0/device:CPU:0',
      'w/part_0/Momentum': '/job:ps/task:1/device:CPU:0',
      'w/part_1/Momentum': '/job:ps/task:0/device:CPU:0',
    }
    here = f'/job:worker/task:{worker.index}/device:CPU:0'
    assert local == {
      'local_copy/w': here,
      'staleness_aware/pulled_step': here,
    }


@pytest.mark.slow
def test_a_worker_that_comes_back_starts_from_the_center(make, make_cluster):
  stepper = make(2, size=2)
  stepper.step(0, [8, 2])
  stepper.workers[1].session.close()
  stepper.workers[1] = stepper_lib.Worker(
    make_cluster(2, 2), 1, staleness_aware.make, 2, 'sgd', 0.5
  )
  assert stepper.read_copy(1) == stepper.read_center() == [4, 1]
  assert stepper.step(1, [4, 1]) == (2, 0, [4, 1])  # Not stale.
