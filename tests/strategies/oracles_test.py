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


@pytest.mark.slow
@each_case('random_steps')
def test_random_steps_agree_with_the_oracle(make_stepper, name, case):
  stepper, oracle = make_pair(make_stepper, find_rule(name), case)
  rng = np.random.default_rng(case.num_ps)
  steps = list(oracles.play(stepper, oracle, rng, case.num_events))
  assert {staleness for *_, staleness in steps} >= case.staleness


@pytest.mark.slow
@each_with_ps
def test_all_that_flags_add_agrees_with_the_oracle(make, name):
  # A wire of float32 and the other flags: test_two_steps_of_a_run.
  stepper, oracle = make(name, 'bfloat16')
  rng = np.random.default_rng(len(name))
  for _ in oracles.play(stepper, oracle, rng, 2 * NUM_STEPS, atol=2e-5):
    pass
  assert oracle.step > max(oracles.BOUNDARIES)


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
