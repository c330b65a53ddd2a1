"""downpour: pulls ahead in runs of two steps, and a NumPy oracle."""

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.strategies import downpour
from tests.support import oracles, rule


@pytest.mark.slow
def test_a_pull_ahead_goes_with_two_steps_in_a_run(make_stepper):
  make_rule = RULE.make_with(periods(1, 1, pulls_ahead=True))
  stepper = make_stepper(1, 2, make_rule, steps_per_run=2)
  for _ in range(2):
    stepper.begin(0, [8])
    stepper.release(0)
  # The second one was begun with 0, and pulls 4.
  assert stepper.join(0) == (2, 1, [8])
  assert stepper.workers[0].done == [(1, 0), (2, 1)]
  assert stepper.read_copy(0) == [4]


@pytest.mark.slow
def test_a_step_that_fetches_nothing_pulls_nothing_ahead(make_stepper):
  make_rule = RULE.make_with(periods(4, 4, pulls_ahead=True))
  stepper = make_stepper(1, 2, make_rule, steps_per_run=2)
  pulls = []
  for _ in range(2):
    steps = stepper.workers[0]._steps
    left = [x.op for x in steps.before_run(None).fetches]
    ops = set()
    while left:
      op = left.pop()
      if op not in ops:
        ops.add(op)
        left += [x.op for x in op.inputs] + op.control_inputs
    read = [op.inputs[0].op for op in ops if op.type == 'ReadVariableOp']
    pulls.append('w' in [op.name for op in read])
    for _ in range(2):
      stepper.begin(0, [8])
      stepper.release(0)
    stepper.join(0)
  assert pulls == [False, True]
  # A sum of -8 - 4 - 2 - 1, and then the center as the last step began.
  assert stepper.read_center() == [7.5]
  assert stepper.read_copy(0) == [0]


class Oracle(oracles.Oracle):
  """Sums are pushed each n_push steps, the center fetched each n_fetch."""

  def __init__(self, n_fetch, n_push, pulls_ahead=False, **how):
    super().__init__(**how)
    self._pulls_ahead = pulls_ahead
    self._next = [None] * self.num_workers
    self._n_fetch, self._n_push = n_fetch, n_push

  def begin(self, i, x):
    super().begin(i, x)
    self._next[i] = self.wire(self.center), self.step

  def end(self, i):
    self.unsent[i] = self.unsent[i] + self.step_locally(i)
    staleness = -1
    if self.local_steps[i] % self._n_push == 0:
      a, self.unsent[i] = self.wire(self.unsent[i]), 0
      self.center = self.optimizer(self.center, a, self.begun[i])
      _, staleness = self.count(i)
    if self.local_steps[i] % self._n_fetch == 0:
      if self._pulls_ahead:
        self.copies[i], self.pulled_step[i] = self._next[i]
        self.known_step[i] = max(self.known_step[i], self.pulled_step[i])
      else:
        self.pull(i)
    return {i: (self.known_step[i], staleness)}


def periods(n_fetch, n_push, **more):
  return {'n_fetch': n_fetch, 'n_push': n_push, **more}


RULE = rule.Rule(
  lambda member, n_fetch=1, n_push=1, pulls_ahead=False: downpour.Downpour(
    member, n_fetch, n_push, pulls_ahead
  ),
  Oracle,
  flags=('--n_push=2', '--n_fetch=2'),
  settings=periods(2, 2),
  placement=[
    rule.Placement(
      ['{w}', '{w}/Momentum'],
      [
        'local_copy/w',
        'local_copy/w/Momentum',
        'downpour/gradient_sum',
        'downpour/known_step',
        'downpour/local_step',
        'downpour/pulled_step',
      ],
    )
  ],
  traffic=[
    rule.Traffic(
      [(0, 0), (20, 0), (0, 20), (20, 0), (0, 0), (20, 20)], periods(2, 3)
    ),
    rule.Traffic([(0, 0), (20, 20)], periods(2, 2, pulls_ahead=True)),
  ],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, settings, staleness, rate=0.1)
    for num_ps, optimizer, settings, staleness in (
      (2, 'momentum', periods(2, 3), {-1, 0, 1}),
      (2, 'sgd', periods(1, 1), {0, 1, 2, 3}),
      (1, 'momentum', periods(4, 1), {0, 1, 2, 3, 4, 5}),
      (2, 'sgd', periods(1, 1, pulls_ahead=True), {0, 1, 2, 3}),
      (1, 'momentum', periods(3, 2, pulls_ahead=True), {-1, 0, 1, 2}),
    )
  ],
)


def test_a_pull_ahead_is_asked_for_and_needs_a_ps(set_flags):
  member = cluster_lib.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 1)
  set_flags()
  assert not downpour.make(member).overlaps_exchange
  set_flags('--pull_ahead=1')
  assert downpour.make(member).overlaps_exchange
  alone = cluster_lib.make_cluster((), ('w0:1',), 'worker', 0)
  assert not downpour.make(alone).overlaps_exchange


@pytest.mark.parametrize(
  'words, expected',
  [([], (1, 1, False)), (['--n_fetch=3', '--n_push=2'], (3, 2, False))],
)
def test_the_flags_reach_the_rule(set_flags, monkeypatch, words, expected):
  set_flags(*words)
  assert downpour.make(cluster_lib.Cluster()).batches_per_update == expected[1]
  assert rule.read_made_with(monkeypatch, downpour, 'Downpour') == expected
