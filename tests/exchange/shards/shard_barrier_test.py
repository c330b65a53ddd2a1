"""shard_barrier: the bits of the barrier of a step, whatever is lost."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange import sharding, transport
from distmnist.exchange.rounds import round_entry
from distmnist.exchange.shards import unit_queues
from distmnist.strategies import sync_sgd
from tests.support import stepper as stepper_lib

NUM_STEPS = 12


def train(cluster, barrier, optimizer, **how):
  """Returns the stepper.Step of all steps of both workers."""
  stepper = stepper_lib.Stepper(
    cluster,
    lambda member: sync_sgd.SyncSgd(member, 2, barrier=barrier),
    size=5,
    optimizer=optimizer,
    rate=0.1,
    **how,
  )
  rng = np.random.default_rng(3)
  steps = []
  for _ in range(NUM_STEPS):
    steps += stepper.step_together(list(rng.normal(size=(2, 5))))
  stepper.close()
  cluster.reset()
  return steps


@pytest.mark.parametrize(
  ('num_ps', 'optimizer'),
  [
    (2, 'adam'),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        (1, 'sgd'),
        (3, 'momentum'),
        (2, 'adamw'),
        (1, 'adagrad'),
        (3, 'rmsprop'),
        (2, 'ftrl'),
        (3, 'lars'),
        (1, 'lamb'),
      )
    ),
  ],
)
def test_the_bits_are_those_of_the_barrier_of_a_step(
  make_cluster, num_ps, optimizer
):
  cluster = make_cluster(num_ps, 2)
  expected = train(cluster, 'step', optimizer)
  assert train(cluster, 'shard', optimizer) == expected
  assert [step[:2] for step in expected[-2:]] == [(NUM_STEPS, 0)] * 2


@pytest.mark.slow
def test_many_parts_of_a_variable_change_no_bit(make_cluster, monkeypatch):
  cluster = make_cluster(2, 2)
  expected = train(cluster, 'step', 'momentum')
  # Each element is a shard and a message of its own, and they go in turn.
  cut = functools.partial(sharding.sharded, max_bytes=4)
  monkeypatch.setattr(sharding, 'sharded', cut)
  monkeypatch.setattr(transport, '_SMALL_BYTES', 0)
  assert train(cluster, 'shard', 'momentum') == expected


@pytest.fixture
def make(make_stepper):
  """Returns make(num_ps=2) -> a stepper of two workers, one shard a ps."""

  def make_two(num_ps=2):
    return make_stepper(
      num_ps,
      2,
      lambda member: sync_sgd.SyncSgd(member, 2, barrier='shard'),
      size=2,
    )

  return make_two


class Hand:
  """Does by hand what workers had done when one of them was lost."""

  def __init__(self, stepper):
    self._target = stepper.workers[0].hooks[0]._session.sess_str
    self._devices = [v.device for v in stepper.workers[0].center_variables]

  def _run(self, build):
    with tf.Graph().as_default(), tf.Session(self._target) as session:
      options = tf.RunOptions(timeout_in_ms=60_000)
      return session.run(build(), options=options)

  def push(self, shard, *gradients, token=round_entry.LIFE + 1):
    """Contributes to one shard, as so many workers would."""

    def build():
      with tf.device(self._devices[shard]):
        accumulator = tf.ConditionalAccumulator(
          tf.float32, [1], shared_name=f'round/contributions_{shard}'
        )
        return [accumulator.apply_grad([float(g)], token) for g in gradients]

    self._run(build)

  def take(self, unit, worker):
    """Takes a worker's token of a unit, once it is there."""
    units = unit_queues.UnitQueues
    self._run(lambda: units(2, self._devices).take(unit, worker))


def kill(stepper, worker):
  """A worker is gone, with all that it was about to do."""
  hook = stepper.workers[worker].hooks[0]
  stepper.leave(worker, hook._session.close)
  hook._end_updates()


@pytest.mark.slow
def test_a_chief_that_is_lost_amid_a_round_updates_no_shard_twice(make):
  stepper = make()
  assert stepper.step_together([[8, 8], [4, 4]]) == [(1, 0, [3, 3])] * 2
  hand = Hand(stepper)
  hand.push(0, 2, 4)
  hand.take(0, worker=0)
  assert stepper.read_center() == [1.5, 3]  # 3 - 0.5 * 3
  kill(stepper, 0)
  stepper.come_back(0)
  # What it computed for the chief before is dropped.
  assert stepper.step(1, [4, 4]) == (1, 1, [1.5, 3])
  # The gradients of the second shard are -5 and -1.
  found = stepper.step_together([[8, 8], [4, 4]])
  assert found == [(2, 0, [1.5, 4.5])] * 2
  found = stepper.step_together([[8, 8], [4, 4]])
  assert found == [(3, 0, [3.75, 5.25])] * 2


@pytest.mark.slow
def test_a_worker_that_is_lost_amid_its_push_goes_on_with_the_rest(make):
  stepper = make()
  assert stepper.step_together([[8, 8], [4, 4]]) == [(1, 0, [3, 3])] * 2
  hand = Hand(stepper)
  hand.push(0, 1)  # Of worker 1, which took its token of that shard, too.
  stepper.begin(0, [8, 8])
  stepper.release(0)
  hand.take(0, worker=1)
  assert stepper.read_center() == [4, 3]  # 3 - 0.5 * (1 - 5) / 2
  kill(stepper, 1)
  stepper.come_back(1)
  # Its gradients are 0 and -1, but the first one comes too late.
  assert stepper.step(1, [4, 4]) == (2, 0, [4, 4.5])
  assert stepper.join(0) == (2, 0, [4, 4.5])
  found = stepper.step_together([[8, 8], [4, 4]])
  assert found == [(3, 0, [5, 5.25])] * 2


@pytest.mark.slow
def test_a_worker_that_comes_back_in_its_wait_waits_for_each_shard_once(make):
  stepper = make()
  stepper.begin(1, [4, 4])
  stepper.release(1)
  assert not stepper.is_done(1)
  kill(stepper, 1)
  stepper.begin(0, [8, 8])
  assert stepper.end(0) == (1, 0, [3, 3])
  stepper.come_back(1)
  for step, center in enumerate(([4.5, 4.5], [5.25, 5.25]), 2):
    found = stepper.step_together([[8, 8], [4, 4]])
    assert found == [(step, 0, center)] * 2


@pytest.mark.slow
def test_a_chief_that_leaves_and_comes_back_finds_all_in_step(make):
  stepper = make()
  stepper.step_together([[8, 8], [4, 4]])
  hand = Hand(stepper)
  hand.push(0, 2, 4)
  hand.take(0, worker=0)
  hook = stepper.workers[0].hooks[0]
  hook._stop.is_requested = True  # Or no one could wait for a token again.
  stepper.begin(1, [4, 4])
  stepper.release(1)
  assert not stepper.is_done(1)
  stepper.leave(0)
  assert stepper.join(1)[:2] == (1, 1)
  stepper.come_back(0)
  assert stepper.step(1, [4, 4])[:2] == (1, 1)
  found = stepper.step_together([[8, 8], [4, 4]])
  assert found == [(2, 0, [1.5, 4.5])] * 2


@pytest.mark.slow
def test_two_steps_in_a_run_are_two_steps(make_stepper):
  stepper = make_stepper(
    2,
    2,
    lambda member: sync_sgd.SyncSgd(member, 2, barrier='shard'),
    steps_per_run=2,
  )
  for xs in [[8], [4]], [[4], [8]]:
    for worker, x in enumerate(xs):
      stepper.begin(worker, x)
      stepper.release(worker)
  assert [stepper.join(worker) for worker in (0, 1)] == [(2, 0, [4.5])] * 2
