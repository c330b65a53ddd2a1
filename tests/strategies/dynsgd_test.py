"""dynsgd: two workers stepped by hand, and a NumPy oracle."""

import functools

import pytest

from distmnist.cluster import cluster
from distmnist.strategies import dynsgd
from tests.support import oracles, rule


@pytest.fixture
def make(make_stepper):
  """Returns make(period, num_ps=1, ...) -> a Stepper of two workers."""

  def make(period, num_ps=1, **settings):
    make_rule = functools.partial(dynsgd.DynSgd, communication_period=period)
    return make_stepper(num_ps, 2, make_rule, **settings)

  return make


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_change_counts_the_less_the_staler_it_is(make):
  stepper, step = make(period=1), 0
  for staleness, moved in [(0, 6), (1, 3), (2, 2), (3, 1.5)]:
    step += staleness + 1
    found = stepper.push_stale(staleness, 12)
    assert found == (step, staleness, [moved])  # 6 / (s + 1)
    assert stepper.read_copy(0) == stepper.read_center()


@pytest.mark.slow
def test_the_local_velocity_outlives_a_pull(make):
  stepper = make(period=1, optimizer='momentum')
  stepper.begin(0, [12])
  stepper.step(1, [0])
  # v = -12; the change is 6 and half of it counts.
  assert stepper.end(0) == (2, 1, [3])
  # At x = copy: v = 0.9 * -12, whole. The velocity of worker 1 is still 0.
  step, staleness, (w,) = stepper.step(0, [3])
  assert (step, staleness, w) == (3, 0, pytest.approx(3 + 5.4))
  step, staleness, (w,) = stepper.step(1, [0])
  assert (step, staleness, w) == (4, 2, pytest.approx(8.4))


class Oracle(oracles.Oracle):
  """A change by T local steps is divided by s + 1; then the worker pulls."""

  def __init__(self, period, **how):
    super().__init__(**how)
    self._period = period

  def end(self, i):
    self.step_locally(i)
    if self.local_steps[i] % self._period:
      return {i: (self.known_step[i], -1)}
    delta = self.wire(self.copies[i] - self.pulled[i])
    s = self.step - self.pulled_step[i]
    self.center = self.center + delta / (s + 1)
    told = self.count(i)
    self.pull(i)
    return {i: told}


RULE = rule.Rule(
  lambda member, period: dynsgd.DynSgd(member, period),
  Oracle,
  flags=('--communication_period=2',),
  settings={'period': 2},
  placement=[
    rule.Placement(
      ['{w}'],
      [
        'local_copy/w',
        'local_copy/w/Momentum',
        'dynsgd/as_pulled',
        'dynsgd/pulled_step',
        'dynsgd/local_step',
      ],
      {'period': 3},
    )
  ],
  traffic=[rule.Traffic([(0, 0), (0, 0), (20, 20)] * 2, {'period': 3})],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, {'period': period}, {0, 1, 2})
    for num_ps, optimizer, period in (
      (1, 'sgd', 1),
      (2, 'momentum', 3),
    )
  ],
)


@pytest.mark.parametrize('words, expected', [([], 5), (['1'], 1), (['7'], 7)])
def test_the_flag_says_how_many_local_steps(set_flags, words, expected):
  set_flags(*(f'--communication_period={word}' for word in words))
  rule = dynsgd.make(cluster.Cluster())
  assert rule.batches_per_update == expected
