"""async_sgd: two workers stepped by hand, and a NumPy oracle."""

import numpy as np
import pytest

from distmnist.strategies import async_sgd
from tests.strategies.stepper import draw_events


@pytest.fixture
def make(make_stepper):
  """Returns make(num_ps=1, ...) -> a Stepper of two workers."""
  return lambda num_ps=1, **settings: make_stepper(
    num_ps, 2, async_sgd.make, **settings
  )


def test_two_workers_one_after_the_other(make):
  stepper = make()
  # w <- w - 0.5 (w - x), and nobody is stale.
  assert stepper.step(0, [8]) == (1, 0, [4])
  assert stepper.step(1, [0]) == (2, 0, [2])
  assert stepper.step(1, [10]) == (3, 0, [6])
  assert stepper.step(0, [-2]) == (4, 0, [2])


def test_a_gradient_is_as_stale_as_the_updates_that_came_between(make):
  stepper = make()
  stepper.begin(0, [8])  # Pulls w = 0: the gradient is -8.
  assert stepper.step(1, [4]) == (1, 0, [2])
  assert stepper.step(1, [4]) == (2, 0, [3])
  assert stepper.end(0) == (3, 2, [7])  # 3 + 0.5 * 8
  assert stepper.step(0, [7]) == (4, 0, [7])


def test_two_workers_that_overlap(make):
  stepper = make()
  stepper.begin(0, [6])
  stepper.begin(1, [2])
  assert stepper.read_center() == [0]
  assert stepper.end(1) == (1, 0, [1])
  assert stepper.end(0) == (2, 1, [4])  # Both gradients are of w = 0.


def compute_async_sgd(w, events, rate, momentum):
  """The rule as its docstring has it, slowly.

  Args:
    w: float array, the center at step 0.
    events: list of (worker, x or None): pull and compute with x, or push.
    rate, momentum: float.

  Returns:
    A list of (global_step, staleness, center), one a push.
  """
  velocity, step = np.zeros_like(w), 0
  at_work, found = {}, []
  for worker, x in events:
    if x is not None:
      at_work[worker] = w - x, step
      continue
    gradient, step_read = at_work.pop(worker)
    velocity = momentum * velocity + gradient
    w = w - rate * velocity
    step += 1
    found.append((step, step - 1 - step_read, w))
  return found


@pytest.mark.parametrize('optimizer, momentum', [('sgd', 0), ('momentum', 0.9)])
@pytest.mark.parametrize('num_ps', [1, 2])
def test_random_pulls_and_pushes_agree_with_the_oracle(
  make, num_ps, optimizer, momentum
):
  events = draw_events(np.random.default_rng(num_ps), num_steps=30, size=5)
  expected = compute_async_sgd(np.zeros(5), events, 0.2, momentum)
  assert {staleness for _, staleness, _ in expected} >= {0, 1, 2}
  stepper = make(num_ps, size=5, optimizer=optimizer, rate=0.2)
  found = []
  for worker, x in events:
    if x is None:
      found.append(stepper.end(worker))
    else:
      stepper.begin(worker, x)
  for (*numbers, w), (*expected_numbers, expected_w) in zip(
    found, expected, strict=True
  ):
    assert numbers == expected_numbers
    np.testing.assert_allclose(w, expected_w, rtol=1e-4, atol=1e-5)


def test_all_lives_on_the_ps_and_the_worker_keeps_nothing(
  make,
):
  stepper = make(2, size=5, optimizer='momentum')
  for worker in stepper.workers:
    shared, local = worker.variables()
    assert local == {}
    assert shared == {
      'global_step': '/job:ps/task:0/device:CPU:0',
      'w/part_0': '/job:ps/task:1/device:CPU:0',
      'w/part_1': '/job:ps/task:0/device:CPU:0',
      'w/part_0/Momentum': '/job:ps/task:1/device:CPU:0',
      'w/part_1/Momentum': '/job:ps/task:0/device:CPU:0',
    }
