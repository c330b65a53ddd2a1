"""Every rule against the oracle that its own test declares.

Random steps as that test asks for them; all that flags add; steps in one run.
"""

import numpy as np
import pytest

from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from tests.strategies.battery_test import (
  each_case,
  each_with_ps,
  find_rule,
)
from tests.support import oracles
from tests.support.rule import make_pair

NUM_STEPS = 24


@pytest.fixture
def make(make_stepper, set_flags):
  """Returns make(name, wire_dtype, **how) -> (Stepper, Oracle) of two."""

  def make_flagged(name, wire_dtype='float32', **how):
    rule = find_rule(name)
    set_flags(*oracles.FLAGS, *rule.flags)
    stepper = make_stepper(
      1,
      2,
      registry.load(STRATEGIES, name).make,
      size=oracles.SIZE,
      optimizer=None,
      hessian=oracles.HESSIAN,
      wire_dtype=wire_dtype,
      **how,
    )
    return stepper, rule.oracle(
      wire_dtype=wire_dtype, **rule.settings, **oracles.FLAGGED
    )

  return make_flagged


@pytest.mark.daily(
  but=[
    'ad_psgd-1',
    'async_sgd-1',
    'downpour-0',
    'downpour-4',
    'easgd-1',
  ]
)
@pytest.mark.slow
@each_case('random_steps')
def test_random_steps_agree_with_the_oracle(make_stepper, name, case):
  stepper, oracle = make_pair(make_stepper, find_rule(name), case)
  rng = np.random.default_rng(case.num_ps)
  steps = list(oracles.play(stepper, oracle, rng, case.num_events))
  assert {staleness for *_, staleness in steps} >= case.staleness


@pytest.mark.daily(but=['sync_sgd'])
@pytest.mark.slow
@each_with_ps
def test_all_that_flags_add_agrees_with_the_oracle(make, name):
  # A wire of float32 and the other flags: test_two_steps_of_a_run.
  stepper, oracle = make(name, 'bfloat16')
  rng = np.random.default_rng(len(name))
  if oracle.keeps_copies:
    lose_one(stepper, oracle, rng)
  for _ in oracles.play(stepper, oracle, rng, 2 * NUM_STEPS, atol=2e-5):
    pass
  assert oracle.step > max(oracles.BOUNDARIES)


def lose_one(stepper, oracle, rng):
  """Worker 1 has done a part of its next push; another takes its place."""
  for workers in [0, 1], [0, 1], [1]:
    for i in workers:
      x = rng.normal(size=oracles.SIZE)
      oracle.begin(i, x)
      stepper.begin(i, x)
    for i in workers:
      oracles.end(stepper, oracle, i)
  if not oracle.waits:
    stepper.leave(1)
  stepper.come_back(1)
  x = np.array(stepper.read_copy(1))
  # Some rules get their first copy over the wire, which rounds.
  np.testing.assert_allclose(x, oracle.center, rtol=2**-8, atol=1e-5)
  oracle.start_anew(1, x)
  oracles.check(stepper, oracle)


@pytest.mark.daily(but=['async_sgd'])
@pytest.mark.slow
@each_with_ps
def test_two_steps_of_a_run_agree_with_the_oracle(make, name):
  rng = np.random.default_rng(7)
  stepper, oracle = make(name, steps_per_run=2)
  order = [0, 1]

  def begin(worker):
    x = rng.normal(size=oracles.SIZE) + 1
    oracle.begin(worker, x)
    stepper.begin(worker, x)

  for _ in range(NUM_STEPS // 4):
    told = {0: [], 1: []}
    for worker in order:
      begin(worker)
    for number in range(2):
      for worker in order:
        stepper.release(worker)
        for i, numbers in oracle.end(worker).items():
          told[i].append(numbers)
        # The second step begins when the first one has ended.
        if not number and not oracle.waits:
          begin(worker)
        if number and not oracle.waits:
          stepper.join(worker)
      if not number and oracle.waits:
        for worker in order:
          begin(worker)
    for worker in order:
      if oracle.waits:
        stepper.join(worker)
      assert stepper.workers[worker].done == told[worker]
    oracles.check(stepper, oracle, atol=2e-5)
    order.reverse()
