"""dynsgd: a NumPy oracle, for oracles_test.py, and the flag."""

import pytest

from distmnist.cluster import cluster
from distmnist.strategies import dynsgd
from tests.support import oracles, rule


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
