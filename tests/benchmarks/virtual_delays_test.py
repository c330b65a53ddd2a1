"""virtual_delays: when steps end and what a rule makes of them."""

import functools
import itertools

import numpy as np
import pytest

from tests.strategies import async_sgd_test, ringmaster_test
from tests.support import oracles
from tests.support.runner import import_benchmark

virtual_delays = import_benchmark('virtual_delays')


def play(oracle, num_steps, stops_at=None):
  """Returns [(time, global_step)] after each end; worker i takes i + 1."""
  times = virtual_delays.play(
    oracle,
    functools.partial(np.ones, oracles.SIZE),
    functools.partial(virtual_delays.draw_fixed, None),
    stops_at,
  )
  return [(now, oracle.step) for now in itertools.islice(times, num_steps)]


def test_steps_end_in_the_order_of_the_clock():
  found = play(async_sgd_test.Oracle(), 6)
  assert found == [(1, 1), (2, 2), (2, 3), (3, 4), (4, 5), (4, 6)]


@pytest.mark.parametrize('stops_at', [None, 2])
def test_a_slow_worker_gives_its_gradients_up(stops_at):
  oracle = ringmaster_test.Oracle(1, num_workers=3)  # R = 2
  play(oracle, 30, stops_at)
  # With stops the slow ones come to no end, so that all ends are of worker 0.
  assert (oracle.num_given_up > 0) == (stops_at is None)
  assert (oracle.step == 30) == bool(stops_at)


def test_backup_workers_are_dropped_and_all_others_averaged():
  oracle = virtual_delays.Backup(2, num_workers=3, rate=1)
  found = play(oracle, 5)
  # Workers 0 and 1 make the updates at 2 and 4; worker 2 is late at 3.
  assert found == [(1, 0), (2, 1), (3, 1), (3, 1), (4, 2)]
  np.testing.assert_allclose(oracle.center, 1)


def test_models_side_by_side_are_those_of_single_runs():
  x = np.random.default_rng(0).normal(size=[64, 3]).astype(np.float32)
  y = np.eye(10, dtype=np.float32)[np.arange(64) % 10]
  kind = type('Learner', (async_sgd_test.Oracle, virtual_delays.Softmax), {})

  def train(*rates):
    oracle = kind(num_inputs=3, rates=rates)
    for worker in 0, 1, 1:
      oracle.begin(worker, virtual_delays.Images(x, y))
      oracle.end(worker)
    return oracle.center

  both = train(0.5, 2)
  np.testing.assert_allclose(both[:, :10], train(0.5), rtol=1e-5)
  np.testing.assert_allclose(both[:, 10:], train(2), rtol=1e-5)
