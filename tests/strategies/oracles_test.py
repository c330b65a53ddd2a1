"""Every rule against its oracle: all that flags add, and steps in one run."""

import numpy as np
import pytest

from distmnist import registry
from tests.strategies import oracles
from tests.strategies.battery_test import STRATEGIES, needs_ps

FLAGS = [
  '--optimizer=momentum',
  f'--momentum={oracles.MOMENTUM}',
  f'--learning_rate={oracles.RATE}',
  '--local_optimizer=sgd',
  f'--local_learning_rate={oracles.LOCAL_RATE}',
  f'--clip_norm={oracles.CLIP_NORM}',
  '--lr_schedule=step',
  f'--lr_boundaries={",".join(map(str, oracles.BOUNDARIES))}',
  '--lr_decay_rate=0.5',
  f'--communication_period={oracles.PERIOD}',
  f'--n_push={oracles.PERIOD}',
  f'--n_fetch={oracles.PERIOD}',
  f'--moving_rate={oracles.ALPHA}',
  f'--block_momentum={oracles.MU}',
  f'--block_learning_rate={oracles.ZETA}',
  f'--dc_lambda={oracles.DC_LAMBDA}',
  '--max_staleness=1000',
  '--ssp_bound=1000',
]
NAMES = [name for name in STRATEGIES if needs_ps(name)]
NUM_STEPS = 24


def each_rule(*quick):
  return pytest.mark.parametrize(
    'name',
    [
      n if n in quick else pytest.param(n, marks=pytest.mark.slow)
      for n in NAMES
    ],
  )


@pytest.fixture
def make(make_stepper, set_flags):
  """Returns make(name, num_ps, **how) -> a Stepper of two workers."""

  def make_rule(name, num_ps=1, **how):
    set_flags(*FLAGS)
    rule = registry.load('distmnist.strategies', name).make
    return make_stepper(
      num_ps,
      2,
      rule,
      size=oracles.SIZE,
      optimizer=None,
      hessian=oracles.HESSIAN,
      **how,
    )

  return make_rule


def make_oracle(name, wire_dtype):
  if wire_dtype == 'float32':
    return oracles.Oracle(name, 2)
  return oracles.Oracle(name, 2, oracles.round_to_bfloat16)


def check(stepper, oracle, at_rest, rtol=1e-4, atol=2e-5):
  close = {'rtol': rtol, 'atol': atol}
  np.testing.assert_allclose(stepper.read_center(), oracle.center, **close)
  if oracle.is_local:
    for i in at_rest:
      np.testing.assert_allclose(
        stepper.read_copy(i), oracle.copies[i], **close
      )


@pytest.mark.parametrize('wire_dtype', ['float32', 'bfloat16'])
@each_rule('agn', 'bmuf')
def test_random_steps_agree_with_the_oracle(make, name, wire_dtype):
  rng = np.random.default_rng(len(name))
  stepper = make(name, wire_dtype=wire_dtype)
  oracle = make_oracle(name, wire_dtype)
  at_work, waiting = set(), set()
  for _ in range(2 * NUM_STEPS):
    worker = int(rng.choice([i for i in range(2) if i not in waiting]))
    if worker not in at_work:
      x = rng.normal(size=oracles.SIZE) + 1
      oracle.begin(worker, x)
      stepper.begin(worker, x)
      at_work.add(worker)
      continue
    at_work.discard(worker)
    expected = oracle.end(worker)
    stepper.release(worker)
    assert {i: stepper.join(i)[:2] for i in expected} == expected
    waiting = waiting - set(expected) if expected else {worker}
    check(stepper, oracle, {0, 1} - waiting)
  assert oracle.step > max(oracles.BOUNDARIES)
  for worker in at_work:  # Else the end of the session would wait for it.
    stepper.release(worker)


@each_rule('sync_sgd')
def test_two_steps_of_a_run_agree_with_the_oracle(make, name):
  rng = np.random.default_rng(7)
  stepper, oracle = make(name, steps_per_run=2), make_oracle(name, 'float32')
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
    check(stepper, oracle, order)
    order.reverse()
