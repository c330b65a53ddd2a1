"""easgd: two workers stepped by hand or together, and two NumPy oracles."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.strategies import easgd
from tests.support import oracles, rule
from tests.support.rule import read_traffic

ALPHA = 0.25


@pytest.fixture
def make(make_stepper):
  """Returns make(num_ps=1, period=1, momentum=0, is_sync=False, ...)."""

  def make(num_ps=1, period=1, momentum=0, is_sync=False, **settings):
    return make_stepper(
      num_ps,
      2,
      lambda member: make_rule(member, period, momentum, is_sync),
      **settings,
    )

  return make


def make_rule(member, period=1, delta=0, is_sync=False):
  return easgd.Easgd(member, ALPHA, period, delta, is_sync)


def test_two_workers_one_after_the_other(make):
  stepper = make(period=2)
  # t = 1 has no exchange, which would be of two equals: g = 0 - 8.
  assert stepper.step(0, [8]) == (0, -1, [0])
  assert stepper.read_copy(0) == [4]
  # t = 2: d = (4 - 0) / 4 = 1 leaves the copy and comes to the center. g is
  # that of the old x, 4 - 8, so x = 4 - 1 + 2. Two batches are one step.
  assert stepper.step(0, [8]) == (1, 0, [1])
  assert stepper.read_copy(0) == [5]
  # Worker 1 has 0 from its start: g = 0 - 2; d = (1 - 1) / 4, g = 1 - 3.
  assert stepper.step(1, [2]) == (0, -1, [1])
  assert stepper.step(1, [3]) == (2, 0, [1])
  assert stepper.read_copy(1) == [2]
  assert stepper.step(0, [5]) == (1, -1, [1])
  assert stepper.step(0, [5]) == (3, 0, [2])
  assert stepper.read_copy(0) == [4]


@pytest.mark.slow
def test_the_step_is_read_before_it_is_counted(make):
  # No gate reaches between the two, and the wrong order, which shows as a
  # staleness of -1, is too rare to be hoped for: so we look at the graph.
  graph_def = make(period=2).workers[0].graph.as_graph_def()
  [(count, nodes)] = [
    (node, {other.name: other for other in function.node_def})
    for function in graph_def.library.function
    for node in function.node_def
    if node.op == 'AssignAddVariableOp' and is_int64(node)
  ]
  found, waiting = set(), [count]
  while waiting:
    for name in waiting.pop().input:
      name = name.lstrip('^').split(':')[0]
      if name in nodes and name not in found:
        found.add(name)
        waiting.append(nodes[name])
  reads = [nodes[n] for n in found if nodes[n].op == 'ReadVariableOp']
  assert any(is_int64(node) for node in reads)


def is_int64(node):
  return node.attr['dtype'].type == tf.int64.as_datatype_enum


@pytest.mark.slow
@pytest.mark.parametrize(
  'exchanges, center, copy',
  [(0, 1, 3), (3, 3.25, 3.75)],
)
def test_an_exchange_is_with_the_center_as_it_is_by_then(
  make, exchanges, center, copy
):
  stepper = make()
  stepper.step(0, [8])
  stepper.begin(0, [4])  # x^0 = 4 and g = 0.
  for x in ([16], [8], [6])[:exchanges]:
    stepper.step(1, x)  # x^1 = 8, 6, 5 and the center 0, 2, 3.
  # Read and moved in one step: no other exchange comes in between.
  assert stepper.end(0) == (2 + exchanges, 0, [center])
  assert stepper.read_copy(0) == [copy]


@pytest.mark.slow
def test_momentum_looks_ahead_for_the_gradient_and_not_for_the_center(make):
  stepper = make(momentum=0.5)
  # v = 0.5 * 8 = 4 and x = 4; the copy is x + 0.5 v.
  assert stepper.step(0, [8]) == (1, 0, [0])
  assert stepper.read_copy(0) == [6]
  # g = 6 - 8; d = (4 - 0) / 4; v = 0.5 * 4 + 0.5 * 2 = 3; x = 4 - 1 + 3.
  assert stepper.step(0, [8]) == (2, 0, [1])
  assert stepper.read_copy(0) == [7.5]
  # g = 0; d = (6 - 1) / 4; v = 1.5; x = 6 - 1.25 + 1.5.
  assert stepper.step(0, [7.5]) == (3, 0, [2.25])
  assert stepper.read_copy(0) == [6.25 + 0.75]


@pytest.mark.slow
def test_synchronous_workers_meet_the_same_center(make):
  stepper = make(is_sync=True)
  assert stepper.step_together([[8], [-4]]) == [(1, 0, [0])] * 2
  assert stepper.read_copies() == [[4], [-2]]
  # d = 1 and -0.5, both from the center 0; g = -4 and 2.
  assert stepper.step_together([[8], [-4]]) == [(2, 0, [0.5])] * 2
  assert stepper.read_copies() == [[5], [-2.5]]
  # d = 1.125 and -0.75, both from 0.5; g = 0.
  assert stepper.step_together([[5], [-2.5]]) == [(3, 0, [0.875])] * 2
  assert stepper.read_copies() == [[3.875], [-1.75]]


@pytest.mark.slow
def test_synchronous_workers_wait_at_an_exchange_and_not_between(make):
  stepper = make(period=2, is_sync=True)
  assert stepper.step(0, [8]) == (0, -1, [0])  # t = 1, alone; x^0 = 4.
  stepper.begin(0, [8])
  stepper.release(0)
  assert not stepper.is_done(0)
  assert stepper.step(1, [-4]) == (0, -1, [0])  # t = 1; x^1 = -2.
  assert not stepper.is_done(0)
  assert stepper.step(1, [-2]) == (1, 0, [0.5])  # d = 1 and -0.5
  assert stepper.join(0) == (1, 0, [0.5])
  assert stepper.read_copies() == [[5], [-1.5]]


class Oracle(oracles.Oracle):
  """Algorithms 1 and 2 of the paper; t counts from 1 and not from 0.

  If delta is not 0 it is algorithm 2, without another momentum, and the copies
  are x^i + delta v^i.
  """

  def __init__(self, period, delta=0, **how):
    super().__init__(**how)
    self._period, self._delta = period, delta
    self._x, self._v = list(self.copies), list(self.copies)

  def start_anew(self, i, x):
    super().start_anew(i, x)
    self._x[i], self._v[i] = x, np.zeros(oracles.SIZE)

  def end(self, i):
    g, x, told = self.gradients[i], self._x[i], (self.known_step[i], -1)
    self.local_steps[i] += 1
    if self.local_steps[i] % self._period == 0:
      d = self.wire(ALPHA * (x - self.wire(self.center)))
      x = x - d
      self.center = self.center + d
      self.step += 1
      self.known_step[i] = self.step
      told = self.step, 0
    if self._delta:
      eta = self.local_optimizers[i].rate
      self._v[i] = self._delta * self._v[i] - eta * g
      x = x + self._v[i]
    else:
      x = self.local_optimizers[i](x, g, self.begun[i])
    self._x[i], self.copies[i] = x, x + self._delta * self._v[i]
    return {i: told}


def springs(period, delta=0):
  return {'period': period, 'delta': delta}


RULE = rule.Rule(
  make_rule,
  Oracle,
  flags=('--communication_period=2', f'--moving_rate={ALPHA}'),
  settings=springs(2),
  placement=[
    rule.Placement(
      ['{w}'],
      [
        'local_copy/w',
        'local_copy/w/Momentum',
        'easgd/known_step',
        'easgd/local_step',
      ],
      springs(1),
    ),
    rule.Placement(
      ['{w}'],
      [
        'local_copy/w',
        'easgd/known_step',
        'easgd/local_step',
        'easgd/token',
        'easgd/velocity',
      ],
      {**springs(1, 0.9), 'is_sync': True},
      'sgd',
    ),
  ],
  traffic=[
    rule.Traffic([(0, 0), (0, 0), (20, 20)] * 2, springs(3)),
    rule.Traffic(
      [(0, 0), (20, 20)] * 2, {**springs(2), 'is_sync': True}, is_together=True
    ),
  ],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, settings, {-1, 0}, rate=0.1)
    for num_ps, optimizer, settings in (
      (2, 'momentum', springs(3)),
      (2, 'sgd', springs(3, 0.9)),
    )
  ]
  + [rule.RandomSteps(1, 'sgd', springs(1), {0}, rate=0.1)],
)


def compute_sync_easgd(batches, period, eta, momentum, delta):
  """Equations 5 and 6 of the paper, slowly.

  Args:
    batches: float array [steps, workers, size].
    period: int, T.
    eta, momentum: float, of the local optimizers.
    delta: float; if not 0 it is algorithm 2, and no momentum.

  Returns:
    A list of (global_step, staleness, x~, [x^i + delta v^i]), one a step of
    all.
  """
  _, num_workers, size = batches.shape
  opts = [oracles.Optimizer(eta, momentum) for _ in range(num_workers)]
  x_center, c = np.zeros(size), 0
  x, v = np.zeros((2, num_workers, size))
  found = []
  for t, batch in enumerate(batches, start=1):
    g = x + delta * v - batch
    moved, staleness = x, -1
    if t % period == 0:
      moved = x - ALPHA * (x - x_center)
      x_center = x_center + ALPHA * (x - x_center).sum(0)
      c, staleness = c + 1, 0
    if delta:
      v = delta * v - eta * g
      x = moved + v
    else:
      x = np.array([opts[i](moved[i], g[i]) for i in range(num_workers)])
    found.append((c, staleness, x_center, x + delta * v))
  return found


@pytest.mark.slow
@pytest.mark.parametrize(
  'num_ps, period, optimizer, momentum, delta',
  [
    (1, 3, 'sgd', 0, 0),
    (2, 1, 'momentum', 0.9, 0),
    (2, 3, 'sgd', 0, 0.9),
  ],
)
def test_random_steps_together_agree_with_the_oracle(
  make, num_ps, period, optimizer, momentum, delta
):
  batches = np.random.default_rng(period).normal(size=(30, 2, 5))
  expected = compute_sync_easgd(batches, period, 0.1, momentum, delta)
  stepper = make(
    num_ps, period, delta, True, size=5, optimizer=optimizer, rate=0.1
  )
  for batch, (*numbers, x_center, x) in zip(batches, expected, strict=True):
    steps = stepper.step_together(batch)
    assert [[*step[:2]] for step in steps] == [numbers] * 2
    for found, value in (steps[1].center, x_center), (stepper.read_copies(), x):
      np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_synchronous_worker_that_comes_back_starts_from_the_center(make):
  stepper = make(is_sync=True)
  stepper.step_together([[8], [-4]])
  stepper.step_together([[8], [-4]])
  assert stepper.read_copies() == [[5], [-2.5]]
  stepper.leave(1)
  stepper.come_back(1)
  assert stepper.read_copies() == [[5], [0.5]]
  # d = 4.5 / 4 and 0; g = 0.
  assert stepper.step_together([[5], [0.5]]) == [(3, 0, [1.625])] * 2
  assert stepper.read_copies() == [[3.875], [0.5]]


@pytest.mark.slow
def test_the_flags_reach_the_rule(make_stepper, set_flags):
  set_flags(
    '--moving_rate=0.25', '--communication_period=2', '--easgd_momentum=0.5'
  )
  stepper = make_stepper(1, 2, easgd.make)
  assert stepper.workers[0].rule.batches_per_update == 2
  assert stepper.step(0, [8]) == (0, -1, [0])
  assert stepper.read_copy(0) == [6]  # x = v = 4
  # d = 1; v = 2, x = 4 - 1 + 2.
  assert stepper.step(0, [6]) == (1, 0, [1])
  assert stepper.read_copy(0) == [6]


@pytest.mark.slow
def test_by_default_alpha_is_0_9_over_n_and_the_period_10(
  make_stepper, set_flags
):
  set_flags()
  stepper = make_stepper(1, 2, easgd.make, size=5)
  assert stepper.workers[0].rule.batches_per_update == 10
  exchange, nothing = (20, 20), (0, 0)
  assert read_traffic(stepper, 9) == [nothing] * 9
  x = np.array(stepper.read_copy(0))
  assert stepper.read_center() == [0] * 5
  assert read_traffic(stepper, 1) == [exchange]
  np.testing.assert_allclose(stepper.read_center(), 0.45 * x, rtol=1e-6)


@pytest.mark.slow
def test_by_default_synchronous_workers_meet_at_each_step(
  make_stepper, set_flags
):
  set_flags('--easgd_sync')
  stepper = make_stepper(1, 2, easgd.make)
  assert stepper.workers[0].rule.batches_per_update == 2
  stepper.step_together([[8], [-4]])
  first, second = stepper.step_together([[8], [-4]])
  # 0.9 / 2 of 4 and of -2.
  assert first == second == (2, 0, [pytest.approx(0.45 * 4 - 0.45 * 2)])


def make_member(num_workers):
  """A worker; nothing is started."""
  hosts = tuple(f'w{i}:1' for i in range(num_workers))
  return cluster_lib.make_cluster(('p0:1',), hosts, 'worker', 0)


def check_refused(num_workers, message):
  with pytest.raises(cli.UsageError, match=f'^{re.escape(message)}$'):
    easgd.make(make_member(num_workers))


def test_synchronous_springs_that_overshoot_are_refused(set_flags):
  set_flags('--easgd_sync', '--moving_rate=0.3')
  easgd.make(make_member(3))
  check_refused(
    4,
    '--moving_rate=0.3: 4 synchronous workers need at most 1 / 4, or the '
    'center overshoots',
  )


def test_the_whole_way_to_the_mean_is_no_overshoot(set_flags):
  set_flags('--easgd_sync', '--moving_rate=0.25')
  easgd.make(make_member(4))


def test_asynchronous_springs_may_be_as_strong_as_they_like(set_flags):
  set_flags('--moving_rate=1')
  easgd.make(make_member(4))


@pytest.mark.parametrize(
  'words', [['--optimizer=adam'], ['--local_optimizer=adam']]
)
def test_momentum_needs_sgd_as_the_local_optimizer(set_flags, words):
  set_flags('--easgd_momentum=0.9', *words)
  check_refused(
    2,
    '--easgd_momentum is a momentum of its own: it needs sgd as the local '
    'optimizer, not adam',
  )


def test_momentum_does_not_mind_the_optimizer_of_the_center(set_flags):
  set_flags('--easgd_momentum=0.9', '--optimizer=adam', '--local_optimizer=sgd')
  easgd.make(make_member(2))


@pytest.mark.parametrize('name', ['moving_rate', 'easgd_momentum'])
@pytest.mark.parametrize('value', ['-0.1', '1.1'])
def test_rates_are_from_0_to_1(set_flags, name, value):
  message = f'flag --{name}={value}: {value} is not a number in the range'
  with pytest.raises(flags.IllegalFlagValueError, match=f'^{message}'):
    set_flags(f'--{name}={value}')
