"""pull_ahead: a step computes with what the step before it has pulled."""

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.strategies import async_sgd, ssp


@pytest.mark.daily(but=['distmnist.strategies.async_sgd'])
@pytest.mark.slow
@pytest.mark.parametrize('rule', [async_sgd, ssp])
def test_a_gradient_is_of_the_center_a_step_before(
  make_stepper, set_flags, rule
):
  set_flags('--pull_ahead=1', '--ssp_bound=9')
  stepper = make_stepper(2, 2, rule.make, size=2)
  # w <- w - 0.5 (the w of a pull ago - x).
  assert stepper.step(0, [8, 8]) == (1, 0, [4, 4])
  # That step pulled at its start, and so 0.
  assert stepper.step(0, [8, 8]) == (2, 1, [8, 8])
  assert stepper.step(0, [8, 8]) == (3, 1, [10, 10])  # Of 4.
  stepper.begin(0, [8, 8])  # Of 8; the next one will be of 10.
  assert stepper.step(1, [0, 0]) == (4, 3, [10, 10])  # Of 0.
  assert stepper.end(0) == (5, 2, [10, 10])
  assert stepper.step(0, [8, 8]) == (6, 2, [9, 9])


@pytest.mark.slow
def test_in_a_run_of_two_steps_it_is_the_same(make_stepper, set_flags):
  set_flags('--pull_ahead=1')
  stepper = make_stepper(1, 1, async_sgd.make, steps_per_run=2)
  for x in 8, 8:
    stepper.begin(0, [x])
    stepper.release(0)
  assert stepper.join(0) == (2, 1, [8])
  assert stepper.workers[0].done == [(1, 0), (2, 1)]


def test_without_the_flag_or_a_ps_nothing_is_ahead(set_flags):
  set_flags()
  member = cluster_lib.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 1)
  assert not async_sgd.make(member).needs_warmup
  set_flags('--pull_ahead=1')
  assert async_sgd.make(member).needs_warmup
  alone = cluster_lib.make_cluster((), ('w0:1',), 'worker', 0)
  assert not async_sgd.make(alone).needs_warmup
