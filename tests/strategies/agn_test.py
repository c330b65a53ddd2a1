"""agn: two workers stepped by hand, and a NumPy oracle."""

import contextlib

import numpy as np
import pytest
from absl import flags

from distmnist.strategies import agn, downpour
from tests.strategies import stepper as stepper_lib
from tests.strategies.stepper import (
  Momentum,
  check_equal,
  draw_events,
  run_events,
)


@pytest.fixture
def make(make_stepper):
  """Returns make(num_ps=1, period=2, ...) -> a Stepper of two workers."""

  def make(num_ps=1, period=2, **settings):
    return make_stepper(
      num_ps, 2, lambda member: agn.Agn(member, period), **settings
    )

  return make


def test_two_workers_one_after_the_other(make):
  stepper = make()
  # T = 2: g = x^i - x and x^i <- x^i - 0.5 g, twice.
  assert stepper.step(0, [8]) == (0, -1, [0])  # g = -8
  assert stepper.read_copy(0) == [4]
  # g = -4: x~ <- 0 + 0.5 * (8 + 4) / 2, and x^0 <- x~ in place of its 6.
  assert stepper.step(0, [8]) == (1, 0, [3])
  assert stepper.read_copy(0) == [3]
  # Worker 1 has pulled 0 at its start.
  assert stepper.step(1, [-4]) == (0, -1, [3])  # g = 4
  assert stepper.read_copy(1) == [-2]
  assert stepper.step(1, [-4]) == (2, 1, [1.5])  # g = 2: a / T = 3
  assert stepper.read_copy(1) == [1.5]
  # The sum is empty again: g = 3 - 7 and 5 - 7.
  assert stepper.step(0, [7]) == (1, -1, [1.5])
  assert stepper.step(0, [7]) == (3, 1, [3])
  assert stepper.read_copy(0) == [3]


@pytest.mark.parametrize(
  'staleness, center', [(0, 3), (1, 4.5), (2, 5.4375), (3, 6.0234375)]
)
def test_a_stale_push_counts_in_full(make, staleness, center):
  stepper = make()
  stepper.step(0, [8])
  stepper.begin(0, [8])
  for _ in range(staleness):
    # g = x~ - 4 and then half of that: a push goes 3/8 of the way to 4.
    stepper.step(1, [4])
    stepper.step(1, [4])
  assert stepper.read_copy(0) == [4]
  assert stepper.end(0) == (staleness + 1, staleness, [center])
  assert stepper.read_copy(0) == [center]


def compute_agn(events, size, period, eta, momentum):
  """The rule as its docstring has it, slowly.

  Args:
    events: list of (worker, batch or None): compute with the batch, or go on.
    size: int, of x~, which starts at 0.
    period: int, T.
    eta, momentum: float, of all optimizers.

  Returns:
    A list of (global_step, staleness, x~, [x^0, x^1]), one a step.
  """
  opt = Momentum(eta, momentum)
  local_opts = [Momentum(eta, momentum) for _ in range(2)]
  x_center, c = np.zeros(size), 0
  x, a = np.zeros((2, size)), np.zeros((2, size))
  t, c_pulled, g = [0, 0], [0, 0], [None, None]
  found = []
  for i, batch in events:
    if batch is not None:
      g[i] = x[i] - batch
      continue
    t[i] += 1
    staleness = -1
    a[i] += g[i]
    x[i] = local_opts[i](x[i], g[i])
    if t[i] == period:
      x_center = opt(x_center, a[i] / period)
      staleness = c - c_pulled[i]
      c += 1
      x[i], c_pulled[i] = x_center, c
      t[i], a[i] = 0, 0
    found.append((c_pulled[i], staleness, x_center, x.copy()))
  return found


@pytest.mark.slow
@pytest.mark.parametrize('optimizer, momentum', [('sgd', 0), ('momentum', 0.9)])
@pytest.mark.parametrize('num_ps', [1, 2])
def test_random_steps_agree_with_the_oracle(make, num_ps, optimizer, momentum):
  events = draw_events(np.random.default_rng(4), num_steps=60, size=5)
  expected = compute_agn(events, 5, 3, 0.2, momentum)
  assert {staleness for _, staleness, _, _ in expected} >= {-1, 0, 1, 2}
  stepper = make(num_ps, 3, size=5, optimizer=optimizer, rate=0.2)
  check_equal(run_events(stepper, events), expected)


@pytest.mark.slow
def test_with_a_period_of_1_it_is_downpour(make, make_stepper):
  events = draw_events(np.random.default_rng(1), num_steps=30, size=5)
  # Two clusters, as the variables of both rules have the same names.
  ours = run_events(make(1, 1, size=5, optimizer='momentum'), events)
  others = run_events(
    make_stepper(2, 2, downpour.Downpour, size=5, optimizer='momentum'), events
  )
  assert {staleness for _, staleness, _, _ in ours} >= {0, 1, 2}
  check_equal(ours, others, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_center_and_its_slots_are_on_the_ps_and_all_else_on_the_worker(make):
  stepper = make(2, size=5, optimizer='momentum')
  for index, worker in enumerate(stepper.workers):
    shared, local = worker.variables()
    assert shared == {
      'global_step': '/job:ps/task:0/device:CPU:0',
      'w/part_0': '/job:ps/task:1/device:CPU:0',
      'w/part_1': '/job:ps/task:0/device:CPU:0',
      'w/part_0/Momentum': '/job:ps/task:1/device:CPU:0',
      'w/part_1/Momentum': '/job:ps/task:0/device:CPU:0',
    }
    here = f'/job:worker/task:{index}/device:CPU:0'
    assert local == {
      'local_copy/w': here,
      'local_copy/w/Momentum': here,
      'agn/gradient_sum': here,
      'agn/local_step': here,
      'agn/pulled_step': here,
    }


@pytest.mark.slow
def test_a_worker_that_comes_back_starts_from_the_center(make_cluster):
  def make_rule(member):
    return agn.Agn(member, 2)

  cluster = make_cluster(1, 2)
  with contextlib.closing(stepper_lib.Stepper(cluster, make_rule)) as stepper:
    stepper.step(1, [100])  # Its sum will be lost with it.
    stepper.step(0, [8])
    assert stepper.step(0, [8]) == (1, 0, [3])
    stepper.workers[1].session.close()
    stepper.workers[1] = stepper_lib.Worker(
      cluster, 1, make_rule, 1, 'sgd', 0.5
    )
    assert stepper.read_copy(1) == [3]
    assert stepper.step(1, [-1]) == (1, -1, [3])  # g = 4
    assert stepper.step(1, [-1]) == (2, 0, [1.5])  # g = 2
    assert stepper.read_copy(1) == [1.5]


def read_traffic(stepper, num_steps):
  """Returns the list of (bytes pulled, bytes pushed) of worker 0's steps."""
  traffic = []
  for _ in range(num_steps):
    stepper.step(0, [1] * 5)
    traffic.append((stepper.bytes_pulled, stepper.bytes_pushed))
  return traffic


@pytest.mark.slow
def test_bytes_go_in_every_step_that_the_period_divides(make):
  stepper = make(2, 3, size=5)
  assert read_traffic(stepper, 6) == [(0, 0), (0, 0), (20, 20)] * 2


@pytest.mark.slow
def test_the_flag_reaches_the_rule(make_stepper, set_flags):
  set_flags('--communication_period=2')
  stepper = make_stepper(1, 2, agn.make, size=5)
  assert stepper.workers[0].rule.batches_per_update == 2
  assert read_traffic(stepper, 4) == [(0, 0), (20, 20)] * 2


@pytest.mark.slow
def test_by_default_the_period_is_10(make_stepper, set_flags):
  set_flags()
  stepper = make_stepper(1, 2, agn.make, size=5)
  assert stepper.workers[0].rule.batches_per_update == 10
  assert read_traffic(stepper, 11) == [(0, 0)] * 9 + [(20, 20), (0, 0)]


def test_a_period_is_at_least_1(set_flags):
  with pytest.raises(
    flags.IllegalFlagValueError,
    match='^flag --communication_period=0: 0 is not a positive integer$',
  ):
    set_flags('--communication_period=0')
