"""ringmaster: what is too old is not sent; a NumPy oracle."""

import pytest

from distmnist.cluster import cluster
from distmnist.strategies import ringmaster
from tests.support import oracles, rule


class Oracle(oracles.Oracle):
  """A gradient of R updates ago or more is given up; the worker pulls anyhow.

  Attributes:
    num_given_up: int.
  """

  num_given_up = 0

  def __init__(self, max_staleness, **how):
    super().__init__(**how)
    self._r = max_staleness + 1

  def end(self, i):
    s = self.step - self.pulled_step[i]
    if s < self._r:
      g = self.wire(self.gradients[i])
      self.center = self.optimizer(self.center, g, self.begun[i])
      self.step += 1
    else:
      self.num_given_up += 1
    self.pull(i)
    return {i: (self.step, s)}


RULE = rule.Rule(
  lambda member, max_staleness: ringmaster.Ringmaster(member, max_staleness),
  Oracle,
  flags=('--max_staleness=1',),
  settings={'max_staleness': 1},
  placement=[
    rule.Placement(
      ['{w}', '{w}/Momentum'],
      ['local_copy/w', 'ringmaster/pulled_step'],
      {'max_staleness': 3},
    )
  ],
  traffic=[rule.Traffic([(20, 20)], {'max_staleness': 0})],
  random_steps=[
    rule.RandomSteps(
      num_ps, optimizer, {'max_staleness': r - 1}, staleness={0, r - 1, r}
    )
    for num_ps, optimizer, r in ((1, 'sgd', 2), (2, 'momentum', 1))
  ],
)


@pytest.mark.slow
@pytest.mark.parametrize(
  'num_ps', [pytest.param(1, marks=pytest.mark.daily), 2]
)
def test_a_gradient_of_r_updates_ago_is_not_sent(make_stepper, num_ps):
  make_rule = RULE.make_with({'max_staleness': 1})  # R = 2
  stepper = make_stepper(num_ps, 3, make_rule, size=5)
  for worker in (0, 1):
    stepper.begin(worker, [4] * 5)
  assert stepper.step(2, [8] * 5) == (1, 0, [4] * 5)
  # One update old: -4 at 0, of which the rate takes half.
  assert stepper.end(1) == (2, 1, [6] * 5)
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (20, 20)
  assert stepper.end(0) == (2, 2, [6] * 5)
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (20, 0)
  # It has taken the newest parameters, and goes on with them.
  assert stepper.step(0, [8] * 5) == (3, 0, [7] * 5)


@pytest.mark.parametrize(
  ('words', 'num_workers', 'expected'),
  [([], 1, 1), ([], 2, 3), ([], 8, 15), (['0'], 8, 0), (['7'], 2, 7)],
)
def test_r_is_twice_the_workers_unless_given(
  set_flags, words, num_workers, expected
):
  set_flags(*(f'--max_staleness={word}' for word in words))
  hosts = tuple(f'w{i}:1' for i in range(num_workers))
  member = cluster.make_cluster(('p:1',), hosts, 'worker', 0)
  assert ringmaster.make(member).max_staleness == expected
