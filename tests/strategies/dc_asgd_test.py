"""dc_asgd: a NumPy oracle, which also looks at the backups; the flags."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import layers, optimizers
from distmnist.strategies import dc_asgd
from tests.support import in_process, oracles, rule


def read(worker, name):
  """Returns the values of the variables with `name` in theirs, joined."""
  with worker.graph.as_default():
    variables = tf.global_variables() + tf.local_variables()
  parts = [v for v in variables if name in v.op.name]
  return np.concatenate(worker.session.run(parts)).tolist()


@pytest.mark.slow
def test_a_first_gradient_of_nothing_does_not_divide_by_zero(make_stepper):
  make_rule = RULE.make_with({'dc_lambda': 2, 'decay': 0.95})
  stepper = make_stepper(1, 2, make_rule)
  assert stepper.step(0, [0]) == (1, 0, [0])
  stepper.begin(0, [0])
  assert stepper.step(1, [0]) == (2, 1, [0])
  assert stepper.end(0) == (3, 1, [0])


@pytest.mark.slow
@pytest.mark.parametrize('wire_dtype', ['float32', 'bfloat16'])
def test_a_row_is_compensated_from_what_the_worker_has_got(
  make_cluster, wire_dtype
):
  """So a table of one row trains as a vector does."""
  cluster = make_cluster(1, 1)
  member = dataclasses.replace(cluster.worker(0), wire_dtype=wire_dtype)
  with tf.Graph().as_default(), tf.device(member.device_setter()):
    global_step = tf.train.get_or_create_global_step()
    rule = dc_asgd.DcAsgd(member, 2.0)
    begin = tf.constant_initializer(1.01)
    with rule.scope():
      ids = tf.constant([0])
      row = layers.embedding(ids, 1, 2, 'table', initializer=begin)
      vector = tf.get_variable('vector', [2], initializer=begin)
    shards = tf.trainable_variables()
    loss = (tf.reduce_sum(row**2) + tf.reduce_sum(vector**2)) / 2
    update = rule.minimize(
      loss, lambda **_: optimizers.make_optimizer('sgd', 0.1), global_step
    )
    hooks = rule.hooks(in_process.NoStop())
    with cluster.make_session(0, hooks) as session:
      for _ in range(3):
        session.run(update.train_op)
      row, vector = session.run(shards)
  assert row[0].tolist() == vector.tolist()


class Oracle(oracles.Oracle):
  """A gradient is moved to the current center: g + lambda g^2 (x~ - x_bak)."""

  def __init__(self, dc_lambda, decay=None, **how):
    super().__init__(**how)
    self._lambda, self._decay, self._mean_square = dc_lambda, decay, 0

  def end(self, i):
    g, factor = self.wire(self.gradients[i]), self._lambda
    if self._decay is not None:
      m = self._decay
      self._mean_square = m * self._mean_square + (1 - m) * g * g
      factor = self._lambda / np.sqrt(self._mean_square + 1e-7)
    g = g + factor * g * g * (self.center - self.pulled[i])
    self.center = self.optimizer(self.center, g, self.begun[i])
    told = self.count(i)
    self.pull(i)
    return {i: told}


RULE = rule.Rule(
  dc_asgd.DcAsgd,
  Oracle,
  flags=('--dc_lambda=0.4',),
  settings={'dc_lambda': 0.4},
  placement=[
    rule.Placement(
      ['{w}', '{w}/Momentum'],
      [
        'local_copy/w',
        'dc_asgd/pulled_step',
        'dc_asgd/{w}/backup_of_worker_{i}',
      ],
      {'dc_lambda': 0.04},
    ),
    rule.Placement(
      ['{w}', 'dc_asgd/{w}/mean_square'],
      [
        'local_copy/w',
        'dc_asgd/pulled_step',
        'dc_asgd/{w}/backup_of_worker_{i}',
      ],
      {'dc_lambda': 2, 'decay': 0.95},
      'sgd',
    ),
  ],
  # The backups are made where they stay: they cost no traffic.
  traffic=[rule.Traffic([(20, 20)], {'dc_lambda': 0.04, 'decay': 0.95})],
)


@pytest.mark.slow
def test_random_steps_agree_with_the_oracle_and_the_backups(make_stepper):
  settings, seen = {'dc_lambda': 0.7, 'decay': 0.95}, []
  steps = rule.RandomSteps(2, 'momentum', settings, rate=0.05)
  stepper, oracle = rule.make_pair(make_stepper, RULE, steps)
  rng = np.random.default_rng(2)
  for _, _, staleness in oracles.play(stepper, oracle, rng, 80):
    # x_bak is, to the last bit, what the worker pulled.
    assert stepper.read_copies() == [
      read(stepper.workers[i], f'backup_of_worker_{i}') for i in range(2)
    ]
    seen.append(staleness)
  assert len(seen) >= 35
  assert set(seen) >= {0, 1, 2, 3}


@pytest.mark.parametrize(
  'words, expected',
  [
    ([], (0.04, None)),
    (['--dc_lambda=0.5', '--dc_decay=0.5'], (0.5, None)),
    (['--dc_adaptive'], (0.04, 0.95)),
    (['--dc_adaptive', '--dc_lambda=2', '--dc_decay=0.5'], (2, 0.5)),
  ],
)
def test_the_flags_reach_the_rule(set_flags, monkeypatch, words, expected):
  set_flags(*words)
  assert rule.read_made_with(monkeypatch, dc_asgd, 'DcAsgd') == expected
