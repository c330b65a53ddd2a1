"""easgd: synchronous workers that wait, two NumPy oracles, and the flags."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.strategies import easgd
from tests.support import oracles, rule, stepper

ALPHA = 0.25


def make_rule(member, period=1, delta=0, is_sync=False):
  return easgd.Easgd(member, ALPHA, period, delta, is_sync)


@pytest.mark.slow
def test_synchronous_workers_wait_at_an_exchange_and_not_between(make_stepper):
  make = RULE.make_with({**springs(2), 'is_sync': True})
  made = make_stepper(1, 2, make)
  assert made.step(0, [8]) == (0, -1, [0])  # t = 1, alone; x^0 = 4.
  made.begin(0, [8])
  made.release(0)
  assert not made.is_done(0)
  assert made.step(1, [-4]) == (0, -1, [0])  # t = 1; x^1 = -2.
  assert not made.is_done(0)
  assert made.step(1, [-2]) == (1, 0, [0.5])  # d = 1 and -0.5
  assert made.join(0) == (1, 0, [0.5])
  assert made.read_copies() == [[5], [-1.5]]
  # One that comes back starts from the center.
  made.leave(1)
  made.come_back(1)
  assert made.read_copies() == [[5], [0.5]]
  assert made.step_together([[5], [0.5]]) == [(1, -1, [0.5])] * 2
  # d = 4.5 / 4 and 0; g = 0.
  assert made.step_together([[5], [0.5]]) == [(2, 0, [1.625])] * 2
  assert made.read_copies() == [[3.875], [0.5]]


@pytest.mark.slow
def test_the_step_is_read_before_it_is_counted():
  # No gate reaches between the two, and the wrong order, which shows as a
  # staleness of -1, is too rare to be hoped for: so we look at the graph.
  make = RULE.make_with(springs(2))
  worker = stepper.Worker(stepper.NoSessions(), 0, make, 1)
  graph_def = worker.graph.as_graph_def()
  [(count, nodes)] = [
    (node, {other.name: other for other in function.node_def})
    for function in graph_def.library.function
    for node in function.node_def
    if node.op == 'ResourceCountUpTo'
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


@pytest.mark.daily(but=['1-3-sgd-0-0.9'])
@pytest.mark.slow
@pytest.mark.parametrize(
  'num_ps, period, optimizer, momentum, delta',
  [
    (2, 1, 'momentum', 0.9, 0),
    (1, 3, 'sgd', 0, 0.9),
  ],
)
def test_random_steps_together_agree_with_the_oracle(
  make_stepper, num_ps, period, optimizer, momentum, delta
):
  batches = np.random.default_rng(period).normal(size=(18, 2, 5))
  expected = compute_sync_easgd(batches, period, 0.1, momentum, delta)
  make = RULE.make_with({**springs(period, delta), 'is_sync': True})
  made = make_stepper(num_ps, 2, make, size=5, optimizer=optimizer, rate=0.1)
  for batch, (*numbers, x_center, x) in zip(batches, expected, strict=True):
    steps = made.step_together(batch)
    assert [[*step[:2]] for step in steps] == [numbers] * 2
    for found, value in (steps[1].center, x_center), (made.read_copies(), x):
      np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5)


def make_member(num_workers):
  """A worker; nothing is started."""
  hosts = tuple(f'w{i}:1' for i in range(num_workers))
  return cluster_lib.make_cluster(('p0:1',), hosts, 'worker', 0)


@pytest.mark.parametrize(
  'words, expected, batches_per_update',
  [
    # alpha is 0.9 / n.
    ([], (0.45, 10, 0, False), 10),
    (['--easgd_sync'], (0.45, 1, 0, True), 2),
    (
      [
        '--moving_rate=0.25',
        '--communication_period=2',
        '--easgd_momentum=0.5',
      ],
      (0.25, 2, 0.5, False),
      2,
    ),
  ],
)
def test_the_flags_reach_the_rule(
  set_flags, monkeypatch, words, expected, batches_per_update
):
  set_flags(*words)
  made = easgd.make(make_member(2))
  assert made.batches_per_update == batches_per_update
  assert rule.read_made_with(monkeypatch, easgd, 'Easgd') == expected


@pytest.mark.parametrize(
  'words, num_workers',
  [
    # The whole way to the mean is no overshoot.
    (['--easgd_sync', '--moving_rate=0.25'], 4),
    (['--easgd_sync', '--moving_rate=0.3'], 3),
    # Without others at the same center a spring may be of any strength.
    (['--moving_rate=1'], 4),
    # The optimizer of the center does not matter.
    (['--easgd_momentum=0.9', '--optimizer=adam', '--local_optimizer=sgd'], 2),
  ],
)
def test_flags_that_fit(set_flags, words, num_workers):
  set_flags(*words)
  easgd.make(make_member(num_workers))


NEEDS_SGD = (
  '--easgd_momentum is a momentum of its own: it needs sgd as the local '
  'optimizer, not adam'
)


@pytest.mark.parametrize(
  'words, message',
  [
    (
      ['--easgd_sync', '--moving_rate=0.3'],
      '--moving_rate=0.3: 4 synchronous workers need at most 1 / 4, or the '
      'center overshoots',
    ),
    (['--easgd_momentum=0.9', '--optimizer=adam'], NEEDS_SGD),
    (['--easgd_momentum=0.9', '--local_optimizer=adam'], NEEDS_SGD),
  ],
)
def test_flags_that_do_not_fit_are_refused(set_flags, words, message):
  set_flags(*words)
  with pytest.raises(cli.UsageError, match=f'^{re.escape(message)}$'):
    easgd.make(make_member(4))
