"""staleness_aware: two workers stepped by hand, and a NumPy oracle."""

import pytest

from distmnist.strategies import staleness_aware
from tests.support import oracles, rule


@pytest.fixture
def make(make_stepper):
  """Returns make(num_ps=1, ...) -> a Stepper of two workers."""
  return lambda num_ps=1, **settings: make_stepper(
    num_ps, 2, staleness_aware.make, **settings
  )


@pytest.mark.slow
def test_two_workers_one_after_the_other(make):
  stepper = make()
  # Rate 0.5. The gradient is (copy - x); a copy is as old as its last step.
  assert stepper.step(0, [8]) == (1, 0, [4])  # 0 + 0.5 * 8
  assert stepper.step(1, [6]) == (2, 1, [7])  # Copy 0: 4 + 0.5 / 1 * 6
  assert stepper.step(1, [8]) == (3, 0, [7.5])  # Copy 7: 7 + 0.5 * 1
  assert stepper.step(0, [0]) == (4, 2, [6.5])  # Copy 4: 7.5 - 0.5 / 2 * 4
  assert stepper.read_copy(0) == [6.5]
  assert stepper.read_copy(1) == [7.5]


@pytest.mark.slow
def test_the_rate_is_divided_by_the_staleness_but_not_by_0(make):
  stepper, step = make(), 0
  for staleness, moved in [(0, 6), (1, 6), (2, 3), (3, 2), (4, 1.5)]:
    step += staleness + 1
    found = stepper.push_stale(staleness, 12)
    assert found == (step, staleness, [moved])  # 6 / max(1, s)


@pytest.mark.slow
def test_the_velocity_takes_a_stale_gradient_whole(make):
  stepper = make(optimizer='momentum')
  stepper.begin(0, [12])
  stepper.step(1, [0])
  stepper.step(1, [0])
  # v = -12, and the rate is 0.5 / 2.
  assert stepper.end(0) == (3, 2, [3])
  # v = 0.9 * -12: not half of it, as with a gradient cut in two.
  step, staleness, (w,) = stepper.step(0, [3])
  assert (step, staleness, w) == (4, 0, pytest.approx(3 + 0.5 * 10.8))


class Oracle(oracles.Oracle):
  """eta is divided by the staleness s, but not by 0."""

  def end(self, i):
    s = self.step - self.pulled_step[i]
    g = self.wire(self.gradients[i])
    self.center = self.optimizer(self.center, g, self.begun[i], 1 / max(1, s))
    told = self.count(i)
    self.pull(i)
    return {i: told}


RULE = rule.Rule(
  staleness_aware.make,
  Oracle,
  placement=[
    rule.Placement(
      ['{w}', '{w}/Momentum'], ['local_copy/w', 'staleness_aware/pulled_step']
    )
  ],
  traffic=[rule.Traffic([(20, 20)])],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, staleness={0, 1, 2, 3})
    for num_ps, optimizer in ((1, 'sgd'), (2, 'momentum'))
  ],
)


@pytest.mark.slow
def test_a_worker_that_comes_back_starts_from_the_center(make):
  stepper = make(2, size=2)
  stepper.step(0, [8, 2])
  stepper.leave(1)
  stepper.come_back(1)
  assert stepper.read_copy(1) == stepper.read_center() == [4, 1]
  assert stepper.step(1, [4, 1]) == (2, 0, [4, 1])  # Not stale.
