"""agn: a NumPy oracle, for oracles_test.py, and the flag."""

import pytest

from distmnist.cluster import cluster
from distmnist.strategies import agn
from tests.support import oracles, rule


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
    rule.RandomSteps(num_ps, optimizer, {'period': period}, staleness)
    for num_ps, optimizer, period, staleness in (
      (1, 'sgd', 1, {0, 1, 2}),
      (2, 'momentum', 3, {-1, 0, 1, 2}),
    )
  ],
)


@pytest.mark.parametrize('words, expected', [([], 10), (['2'], 2)])
def test_the_flag_says_after_how_many_steps_it_pushes(
  set_flags, words, expected
):
  set_flags(*(f'--communication_period={word}' for word in words))
  assert agn.make(cluster.Cluster()).batches_per_update == expected
