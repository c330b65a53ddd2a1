"""The oracles of the rules that train sparse tables, on steps of a few rows.

A table with a row for each number of the oracle; a step looks up some of them,
and to the oracle those are the ones whose Hessian is 1 and not 0.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.nn import layers
from distmnist.training.problems import table_checks
from tests.strategies.battery_test import find_rule
from tests.support import oracles


def build(x):
  """Returns (rows, loss): the sum of (row - x)^2 / 2 over rows that are there.

  Args:
    x: float32 [2 SIZE], a number for each row, and 1 for those looked up.
  """
  ids = tf.where(x[oracles.SIZE :] > 0)[:, 0]
  zeros = tf.zeros_initializer()
  rows = layers.embedding(ids, oracles.SIZE, 1, 'table', initializer=zeros)
  off = rows[:, 0] - tf.gather(x[: oracles.SIZE], ids)
  return rows, tf.reduce_sum(off**2) / 2


class SparseStepper:
  """A Stepper of `build`, whose steps look up the oracle's rows."""

  def __init__(self, stepper, oracle, rng):
    self._stepper, self._oracle, self._rng = stepper, oracle, rng
    self._begin_dense, oracle.begin = oracle.begin, self._begin_oracle
    self._rows = None
    self.release, self.join = stepper.release, stepper.join

  def _begin_oracle(self, worker, x):
    self._rows = self._rng.permutation([1, 1, 0, 0, self._rng.integers(2)])
    oracle = self._oracle
    oracle._hessian = self._rows
    # Rows are pulled as the step begins, whatever counts as its staleness.
    oracle.copies[worker] = oracle.pulled[worker] = oracle.wire(oracle.center)
    self._begin_dense(worker, x)

  def begin(self, worker, x):
    self._stepper.begin(worker, [*x, *self._rows])

  def read_center(self):
    return np.ravel(self._stepper.read_center())


@pytest.mark.daily(but=['sync_sgd'])
@pytest.mark.slow
@pytest.mark.parametrize('name', table_checks.find_rules())
def test_random_steps_of_some_rows_agree_with_the_oracle(
  make_stepper, set_flags, name
):
  rule = find_rule(name)
  set_flags(*rule.flags)
  stepper = make_stepper(
    2,
    2,
    registry.load(STRATEGIES, name).make,
    size=2 * oracles.SIZE,
    build=build,
  )
  oracle = rule.oracle(**rule.settings)
  oracle.keeps_copies = False
  rng = np.random.default_rng(len(name))
  sparse = SparseStepper(stepper, oracle, rng)
  steps = list(oracles.play(sparse, oracle, rng, num_events=60))
  assert oracle.step > 10
  if name != 'sync_sgd':
    assert {staleness for *_, staleness in steps} >= {0, 1, 2}
