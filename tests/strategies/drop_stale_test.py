"""drop_stale: two workers stepped by hand, and a NumPy oracle."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import cluster
from distmnist.logdir import report
from distmnist.strategies import drop_stale
from tests.support import oracles, rule


@pytest.fixture
def make(make_stepper):
  """Returns make(max_staleness, num_ps=1, ...) -> a Stepper of two workers."""

  def make(max_staleness, num_ps=1, **settings):
    make_rule = functools.partial(
      drop_stale.DropStale, max_staleness=max_staleness
    )
    return make_stepper(num_ps, 2, make_rule, **settings)

  return make


def read_slot(stepper):
  """Returns the momentum of w, a list of float."""
  worker = stepper.workers[0]
  with worker.graph.as_default():
    (slot,) = (v for v in tf.global_variables() if v.op.name == 'w/Momentum')
  return worker.session.run(slot).tolist()


@pytest.mark.slow
def test_two_workers_one_after_the_other(make):
  stepper = make(max_staleness=1)
  # Rate 0.5. The gradient is (copy - x); a copy is as old as its last step.
  assert stepper.step(0, [8]) == (1, 0, [4])  # 0 + 0.5 * 8
  assert stepper.step(1, [6]) == (2, 1, [7])  # Copy 0: 4 + 0.5 * 6
  assert stepper.step(1, [9]) == (3, 0, [8])  # Copy 7: 7 + 0.5 * 2
  assert stepper.step(0, [0]) == (3, 2, [8])  # Copy 4: too old.
  assert stepper.read_copy(0) == [8]  # But it has pulled.
  assert stepper.step(0, [6]) == (4, 0, [7])  # 8 - 0.5 * 2


@pytest.mark.slow
@pytest.mark.parametrize('most', [0, 3])
def test_a_gradient_counts_up_to_max_staleness(make, most):
  stepper = make(max_staleness=most)
  # Dropped: the steps are those of worker 1 alone.
  assert stepper.push_stale(most + 1, 12) == (most + 1, most + 1, [0])
  assert stepper.push_stale(most, 12) == (2 * (most + 1), most, [6])


@pytest.mark.slow
def test_what_is_dropped_changes_neither_center_nor_slots_nor_step(make):
  stepper = make(max_staleness=0, optimizer='momentum')
  stepper.begin(0, [100])
  assert stepper.step(1, [8]) == (1, 0, [4])
  assert read_slot(stepper) == [-8]
  assert stepper.end(0) == (1, 1, [4])
  assert read_slot(stepper) == [-8]
  assert stepper.read_copy(0) == [4]
  # v = 0.9 * -8 - 1: the momentum knows nothing of what was dropped.
  step, staleness, (w,) = stepper.step(0, [5])
  assert (step, staleness, w) == (2, 0, pytest.approx(4 + 0.5 * 8.2))


@pytest.mark.slow
def test_who_was_dropped_is_not_stale_the_next_time(make):
  stepper = make(max_staleness=0)
  for index in (0, 1):
    stepper.begin(index, [2])
  assert stepper.end(0) == (1, 0, [1])
  assert stepper.end(1) == (1, 1, [1])
  # A dropped gradient does not make that of the other stale, either.
  assert stepper.step(0, [1]) == (2, 0, [1])
  assert stepper.step(1, [1]) == (2, 1, [1])


@pytest.mark.slow
def test_a_dropped_gradient_was_sent_all_the_same(make):
  stepper = make(max_staleness=0, num_ps=2, size=5)
  stepper.begin(0, [1] * 5)
  stepper.step(1, [0] * 5)
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (20, 20)
  stepper.end(0)
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
  flags=('--max_staleness=1000',),
  settings={'max_staleness': 1000},
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
@pytest.mark.parametrize(
  'num_ps, optimizer, max_staleness',
  [(1, 'sgd', 0), (2, 'momentum', 1)],
)
def test_random_steps_agree_with_the_oracle_and_the_report(
  make_stepper, num_ps, optimizer, max_staleness
):
  settings = {'max_staleness': max_staleness}
  stepper, oracle = rule.make_pair(
    make_stepper, RULE, rule.RandomSteps(num_ps, optimizer, settings)
  )
  stats = [report.WorkerStats(i) for i in range(2)]
  rng = np.random.default_rng(num_ps)
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


def test_staleness_is_not_negative(set_flags):
  message = '--max_staleness=-1'
  with pytest.raises(flags.IllegalFlagValueError, match=message):
    set_flags('--max_staleness=-1')
