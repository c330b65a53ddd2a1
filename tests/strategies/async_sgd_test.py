"""async_sgd: two workers stepped by hand, and a NumPy oracle."""

import pytest

from distmnist.strategies import async_sgd
from tests.support import oracles, rule


@pytest.fixture
def make(make_stepper):
  """Returns make(num_ps=1, ...) -> a Stepper of two workers."""
  return lambda num_ps=1, **settings: make_stepper(
    num_ps, 2, async_sgd.make, **settings
  )


@pytest.mark.slow
def test_two_workers_one_after_the_other(make):
  stepper = make()
  # w <- w - 0.5 (w - x), and none is stale.
  assert stepper.step(0, [8]) == (1, 0, [4])
  assert stepper.step(1, [0]) == (2, 0, [2])
  assert stepper.step(1, [10]) == (3, 0, [6])
  assert stepper.step(0, [-2]) == (4, 0, [2])


@pytest.mark.slow
def test_a_gradient_is_as_stale_as_the_updates_that_came_between(make):
  stepper = make()
  stepper.begin(0, [8])  # Pulls w = 0: the gradient is -8.
  assert stepper.step(1, [4]) == (1, 0, [2])
  assert stepper.step(1, [4]) == (2, 0, [3])
  assert stepper.end(0) == (3, 2, [7])  # 3 + 0.5 * 8
  assert stepper.step(0, [7]) == (4, 0, [7])


@pytest.mark.slow
def test_two_workers_that_overlap(make):
  stepper = make()
  stepper.begin(0, [6])
  stepper.begin(1, [2])
  assert stepper.read_center() == [0]
  assert stepper.end(1) == (1, 0, [1])
  assert stepper.end(0) == (2, 1, [4])  # Both gradients are of w = 0.


class Oracle(oracles.Oracle):
  """A step reads the center and is applied to what it is by then."""

  keeps_copies = False

  def begin(self, i, x):
    self.pull(i)
    super().begin(i, x)

  def end(self, i):
    g = self.wire(self.gradients[i])
    self.center = self.optimizer(self.center, g, self.begun[i])
    return {i: self.count(i)}


RULE = rule.Rule(
  async_sgd.make,
  Oracle,
  placement=[rule.Placement(['{w}', '{w}/Momentum'], [])],
  traffic=[rule.Traffic([(20, 20)] * 2)],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, staleness={0, 1, 2}, num_events=40)
    for num_ps, optimizer in ((1, 'sgd'), (2, 'momentum'))
  ],
)
