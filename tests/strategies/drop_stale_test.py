"""drop_stale: what is dropped is sent and counted; a NumPy oracle."""

import numpy as np
import pytest

from distmnist.cluster import cluster
from distmnist.logdir import report
from distmnist.strategies import drop_stale
from tests.support import oracles, rule


@pytest.mark.slow
def test_a_dropped_gradient_was_sent_all_the_same(make_stepper):
  make_rule = RULE.make_with({'max_staleness': 0})
  stepper = make_stepper(2, 2, make_rule, size=5)
  stepper.begin(0, [1] * 5)
  stepper.step(1, [0] * 5)
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (20, 20)
  assert stepper.end(0) == (1, 1, [0] * 5)
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (20, 20)


class Oracle(oracles.Oracle):
  """A gradient above max_staleness is dropped; the worker pulls anyhow."""

  def __init__(self, max_staleness, **how):
    super().__init__(**how)
    self._max_staleness = max_staleness
    self.num_dropped = [0] * self.num_workers

  def end(self, i):
    s = self.step - self.pulled_step[i]
    if s <= self._max_staleness:
      g = self.wire(self.gradients[i])
      self.center = self.optimizer(self.center, g, self.begun[i])
      self.step += 1
    else:
      self.num_dropped[i] += 1
    self.pull(i)
    return {i: (self.step, s)}


RULE = rule.Rule(
  lambda member, max_staleness: drop_stale.DropStale(member, max_staleness),
  Oracle,
  flags=('--max_staleness=1',),
  settings={'max_staleness': 1},
  placement=[
    rule.Placement(
      ['{w}', '{w}/Momentum'],
      ['local_copy/w', 'drop_stale/pulled_step'],
      {'max_staleness': 3},
    )
  ],
  traffic=[rule.Traffic([(20, 20)], {'max_staleness': 0})],
)


@pytest.mark.slow
def test_random_steps_agree_with_the_oracle_and_the_report(make_stepper):
  steps = rule.RandomSteps(2, 'momentum', {'max_staleness': 1})
  stepper, oracle = rule.make_pair(make_stepper, RULE, steps)
  stats = [report.WorkerStats(i) for i in range(2)]
  rng = np.random.default_rng(2)
  for worker, step, staleness in oracles.play(stepper, oracle, rng, 100):
    stats[worker].staleness[staleness] += 1
    last_step, num_dropped = step, list(oracle.num_dropped)
  assert min(num_dropped) >= 3
  # The report makes its count of the dropped from the staleness of all pushes.
  max_found = stepper.workers[0].rule.max_staleness
  rows = report.compose({}, {}, stats, max_found)['workers']
  assert [row['gradients_dropped'] for row in rows] == num_dropped
  num_pushes = sum(sum(each.staleness.values()) for each in stats)
  assert num_pushes >= 45
  assert last_step == num_pushes - sum(num_dropped)


@pytest.mark.parametrize('words, expected', [([], 3), (['0'], 0), (['7'], 7)])
def test_the_flag_says_what_is_too_stale(set_flags, words, expected):
  set_flags(*(f'--max_staleness={word}' for word in words))
  assert drop_stale.make(cluster.Cluster()).max_staleness == expected
