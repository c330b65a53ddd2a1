"""bmuf: small changes on the wire, a NumPy oracle, and the flags."""

import numpy as np
import pytest

from distmnist.cluster import cluster
from distmnist.strategies import bmuf
from tests.support import oracles, rule


@pytest.mark.slow
def test_small_changes_of_three_have_a_mean_on_a_wire_of_16_bits(make_stepper):
  make_rule = RULE.make_with(block(1, mu=0))
  stepper = make_stepper(1, 3, make_rule, wire_dtype='bfloat16')
  # Neighbours of 1000 are 996 and 1004 on the wire.
  assert stepper.step_together([[2000]] * 3) == [(1, 0, [1000])] * 3
  for step in range(2, 5):
    x = stepper.read_copy(0)[0]
    # Half the way to each, 0.5 and 1 and 1.5: the mean is 1.
    found = stepper.step_together([[x + 1], [x + 2], [x + 3]])
    assert found == [(step, 0, [1000 + step - 1])] * 3


class Oracle(oracles.Oracle):
  """Each T-th step all push the change of a block: D = mu D + zeta mean."""

  waits = True

  def __init__(self, period, mu, zeta, **how):
    super().__init__(**how)
    self._period, self._mu, self._zeta = period, mu, zeta
    self._delta, self._given = 0, []

  def end(self, i):
    # The velocity is the worker's own: no exchange touches it.
    self.step_locally(i)
    if self.local_steps[i] % self._period:
      return {i: (self.step, -1)}
    self._given.append(self.wire(self.copies[i] - self.pulled[i]))
    if len(self._given) < self.num_workers:
      return {}
    block_change, self._given = np.mean(self._given, axis=0), []
    self._delta = self._mu * self._delta + self._zeta * block_change
    self.center = self.center + self._delta
    self.step += 1
    for j in range(self.num_workers):
      self.pull(j)
    return dict.fromkeys(range(self.num_workers), (self.step, 0))


def block(period, mu=0.5, zeta=1):
  return {'period': period, 'mu': mu, 'zeta': zeta}


RULE = rule.Rule(
  lambda member, period, mu, zeta: bmuf.Bmuf(member, period, mu, zeta),
  Oracle,
  flags=(
    '--communication_period=2',
    '--block_momentum=0.5',
    '--block_learning_rate=0.8',
  ),
  settings=block(2, 0.5, 0.8),
  placement=[
    rule.Placement(
      ['{w}', 'bmuf/{w}/block_delta'],
      [
        'local_copy/w',
        'local_copy/w/Momentum',
        'bmuf/token',
        'bmuf/known_step',
        'bmuf/as_pulled',
        'bmuf/local_step',
      ],
      block(1),
    )
  ],
  traffic=[rule.Traffic([(0, 0), (20, 20)], block(2), is_together=True)],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, block(3, *of_block), {-1, 0}, 0.1)
    # The filter sees the mean of the copies, whatever has moved them.
    for num_ps, optimizer, *of_block in (
      (1, 'sgd', 0, 1),
      (2, 'momentum', 0.8, 0.7),
    )
  ],
)


@pytest.mark.parametrize(
  'words, num_workers, expected',
  [
    ([], 2, (10, 1 / 2, 1)),  # mu is 1 - 1 / n.
    ([], 3, (10, 2 / 3, 1)),
    (
      [
        '--communication_period=2',
        '--block_momentum=0',
        '--block_learning_rate=0.5',
      ],
      2,
      (2, 0, 0.5),
    ),
  ],
)
def test_the_flags_reach_the_rule(
  set_flags, monkeypatch, words, num_workers, expected
):
  set_flags(*words)
  found = rule.read_made_with(monkeypatch, bmuf, 'Bmuf', num_workers)
  assert found == pytest.approx(expected)


def test_a_block_is_of_the_batches_of_all(set_flags):
  set_flags()
  member = cluster.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 0)
  assert bmuf.make(member).batches_per_update == 20
