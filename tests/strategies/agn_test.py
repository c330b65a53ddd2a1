"""agn: two workers stepped by hand, and a NumPy oracle."""

import numpy as np
import pytest

from distmnist.cluster import cluster
from distmnist.strategies import agn, downpour
from tests.support import oracles, rule


@pytest.fixture
def make(make_stepper):
  """Returns make(num_ps=1, period=2, ...) -> a Stepper of two workers."""

  def make(num_ps=1, period=2, **settings):
    return make_stepper(
      num_ps, 2, lambda member: agn.Agn(member, period), **settings
    )

  return make


@pytest.mark.slow
def test_two_workers_one_after_the_other(make):
  stepper = make()
  # T = 2: g = x^i - x and x^i <- x^i - 0.5 g, twice.
  assert stepper.step(0, [8]) == (0, -1, [0])  # g = -8
  assert stepper.read_copy(0) == [4]
  # g = -4: x~ <- 0 + 0.5 * (8 + 4) / 2, and x^0 <- x~ in place of its 6.
  assert stepper.step(0, [8]) == (1, 0, [3])
  assert stepper.read_copy(0) == [3]
  # Worker 1 has pulled 0 at its start.
  assert stepper.step(1, [-4]) == (0, -1, [3])  # g = 4
  assert stepper.read_copy(1) == [-2]
  assert stepper.step(1, [-4]) == (2, 1, [1.5])  # g = 2: a / T = 3
  assert stepper.read_copy(1) == [1.5]
  # The sum is empty again: g = 3 - 7 and 5 - 7.
  assert stepper.step(0, [7]) == (1, -1, [1.5])
  assert stepper.step(0, [7]) == (3, 1, [3])
  assert stepper.read_copy(0) == [3]


@pytest.mark.slow
@pytest.mark.parametrize('staleness, center', [(0, 3), (3, 6.0234375)])
def test_a_stale_push_counts_in_full(make, staleness, center):
  stepper = make()
  stepper.step(0, [8])
  stepper.begin(0, [8])
  for _ in range(staleness):
    # g = x~ - 4 and then half of that: a push goes 3/8 of the way to 4.
    stepper.step(1, [4])
    stepper.step(1, [4])
  assert stepper.read_copy(0) == [4]
  assert stepper.end(0) == (staleness + 1, staleness, [center])
  assert stepper.read_copy(0) == [center]


class Oracle(oracles.Oracle):
  """Each T-th step pushes the mean of T gradients, and pulls."""

  def __init__(self, period, **how):
    super().__init__(**how)
    self._period = period

  def end(self, i):
    self.unsent[i] = self.unsent[i] + self.step_locally(i)
    if self.local_steps[i] % self._period:
      return {i: (self.known_step[i], -1)}
    mean, self.unsent[i] = self.unsent[i] / self._period, 0
    self.center = self.optimizer(self.center, self.wire(mean), self.begun[i])
    told = self.count(i)
    self.pull(i)
    return {i: told}


RULE = rule.Rule(
  lambda member, period: agn.Agn(member, period),
  Oracle,
  flags=('--communication_period=2',),
  settings={'period': 2},
  placement=[
    rule.Placement(
      ['{w}', '{w}/Momentum'],
      [
        'local_copy/w',
        'local_copy/w/Momentum',
        'agn/gradient_sum',
        'agn/local_step',
        'agn/pulled_step',
      ],
      {'period': 2},
    )
  ],
  traffic=[rule.Traffic([(0, 0), (0, 0), (20, 20)] * 2, {'period': 3})],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, {'period': 3}, {-1, 0, 1, 2})
    for num_ps, optimizer in ((1, 'sgd'), (2, 'momentum'))
  ],
)


class Twin:
  """A Stepper of another rule, in place of an oracle."""

  keeps_copies = True

  def __init__(self, stepper):
    self._stepper, self.begin = stepper, stepper.begin

  def end(self, i):
    *numbers, self.center = self._stepper.end(i)
    self.copies = self._stepper.read_copies()
    return {i: tuple(numbers)}


@pytest.mark.slow
def test_with_a_period_of_1_it_is_downpour(make, make_stepper):
  ours = make(1, 1, size=5, optimizer='momentum')
  # Two clusters, as the variables of both rules have the same names.
  other = make_stepper(2, 2, downpour.Downpour, size=5, optimizer='momentum')
  steps = oracles.play(
    ours, Twin(other), np.random.default_rng(1), 60, rtol=1e-5, atol=1e-6
  )
  assert {staleness for *_, staleness in steps} >= {0, 1, 2}


@pytest.mark.parametrize('words, expected', [([], 10), (['2'], 2)])
def test_the_flag_says_after_how_many_steps_it_pushes(
  set_flags, words, expected
):
  set_flags(*(f'--communication_period={word}' for word in words))
  assert agn.make(cluster.Cluster()).batches_per_update == expected
