"""shard_barrier: the bits of the barrier of a step, whatever is lost."""

import concurrent.futures
import functools
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.copies import shard_copies
from distmnist.exchange.rounds import contributions, round_entry, units
from distmnist.strategies import sync_sgd
from distmnist.transport import sharding, wire
from tests.support import background, in_process
from tests.support import stepper as stepper_lib

NUM_STEPS = 4


def make_rule(member):
  return sync_sgd.SyncSgd(member, 2, barrier='shard')


def train(
  cluster,
  barrier,
  optimizer,
  size=5,
  part_bytes=shard_copies.PART_BYTES,
  **how,
):
  """Returns the stepper.Step of all steps of both workers."""
  stepper = stepper_lib.Stepper(
    cluster,
    lambda member: sync_sgd.SyncSgd(
      member, 2, barrier=barrier, part_bytes=part_bytes
    ),
    size=size,
    optimizer=optimizer,
    rate=0.1,
    **how,
  )
  rng = np.random.default_rng(3)
  steps = []
  for _ in range(NUM_STEPS):
    steps += stepper.step_together(list(rng.normal(size=(2, size))))
  stepper.close()
  cluster.reset()
  return steps


@pytest.mark.daily(but=['2-adam'])
@pytest.mark.slow
# Optimizers that keep something for all variables (powers, a step) or beside
# each, or take a norm; the others are of the same kinds.
@pytest.mark.parametrize(
  ('num_ps', 'optimizer'),
  [(2, 'adam'), (3, 'momentum'), (2, 'ftrl'), (1, 'lamb')],
)
def test_the_bits_are_those_of_the_barrier_of_a_step(
  make_cluster, monkeypatch, num_ps, optimizer
):
  cluster = make_cluster(num_ps, 2)
  expected = train(cluster, 'step', optimizer)
  assert train(cluster, 'shard', optimizer) == expected
  assert [step[:2] for step in expected[-2:]] == [(NUM_STEPS, 0)] * 2
  if optimizer == 'momentum':
    check_many_parts(cluster, monkeypatch, expected)


def cut_finely(monkeypatch):
  """Makes each element a shard and a message of its own; they go in turn."""
  cut = functools.partial(sharding.sharded, max_bytes=4)
  monkeypatch.setattr(sharding, 'sharded', cut)
  monkeypatch.setattr(wire, '_SMALL_BYTES', 0)


def check_many_parts(cluster, monkeypatch, expected):
  cut_finely(monkeypatch)
  assert train(cluster, 'shard', 'momentum') == expected


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('optimizer', ['momentum', 'lamb'])
def test_more_small_units_than_may_be_ahead_are_updated(
  make_cluster, monkeypatch, optimizer
):
  cluster = make_cluster(1, 2)
  cut = functools.partial(sharding.sharded, max_bytes=4)
  monkeypatch.setattr(sharding, 'sharded', cut)
  expected = train(cluster, 'step', optimizer, size=9)
  assert train(cluster, 'shard', optimizer, size=9, part_bytes=4) == expected


def find_accumulator(shard):
  """Returns the accumulator of a shard that is on the current device."""
  return tf.ConditionalAccumulator(
    tf.float32, [1], shared_name=f'round/contributions_{shard}'
  )


def count_pushes(cluster):
  """Returns how many gradients each of 9 shards of a ps has got."""
  with tf.Graph().as_default(), tf.device('/job:ps/task:0/device:CPU:0'):
    counts = [find_accumulator(i).num_accumulated() for i in range(9)]
    with tf.Session(cluster.servers[0].target) as session:
      return session.run(counts)


def push_six(stepper, cluster, worker, x):
  """Lets a worker push what it may of 9 shards before the other one does."""
  stepper.begin(worker, x)
  stepper.release(worker)
  background.wait_until(
    lambda: sum(count_pushes(cluster)) >= 6, lambda: 'no six shards'
  )


@pytest.mark.slow
def test_a_fast_worker_pushes_six_shards_and_waits(
  make_stepper, make_cluster, monkeypatch
):
  cut_finely(monkeypatch)
  stepper, cluster = make_stepper(1, 2, make_rule, size=9), make_cluster(1, 2)
  xs = np.arange(18.0).reshape(2, 9).tolist()
  for _ in range(2):
    stepper.begin(1, xs[1])
    push_six(stepper, cluster, 0, xs[0])
    assert not stepper.is_done(0)
    # The last ones go first.
    assert count_pushes(cluster) == [0] * 3 + [1] * 6
    stepper.release(1)
    assert stepper.join(0)[:2] == stepper.join(1)[:2]


def train_with_a_backup(cluster, barrier, size):
  """Returns the steps of 3 workers; 2 are in each round, and one is late."""
  stepper = stepper_lib.Stepper(
    cluster,
    lambda member: sync_sgd.SyncSgd(member, 2, barrier=barrier),
    size=size,
    optimizer='adam',
    rate=0.1,
  )
  rng = np.random.default_rng(4)
  steps = []
  for late in rng.integers(3, size=NUM_STEPS):
    xs = rng.normal(size=(3, size))
    for worker in range(3):
      stepper.begin(worker, xs[worker])
    first = [worker for worker in range(3) if worker != late]
    for worker in first:
      stepper.release(worker)
    steps += [stepper.join(worker) for worker in first]
    steps.append(stepper.end(late))
  stepper.close()
  cluster.reset()
  return steps


@pytest.mark.daily
@pytest.mark.slow
# With 9 shards of one ps, a worker that is late has not pushed all of them.
@pytest.mark.parametrize(('num_ps', 'size'), [(2, 5), (1, 9)])
def test_with_a_backup_worker_the_bits_are_the_same(
  make_cluster, monkeypatch, num_ps, size
):
  cluster = make_cluster(num_ps, 3)
  expected = train_with_a_backup(cluster, 'step', size)
  if num_ps == 1:
    cut_finely(monkeypatch)
  found = train_with_a_backup(cluster, 'shard', size)
  assert found == expected
  assert [step.staleness for step in found] == [0, 0, 1] * NUM_STEPS


@pytest.fixture
def make(make_stepper):
  """Returns make(num_workers=2) -> a stepper; 2 are in, one shard a ps."""

  def make_some(num_workers=2):
    return make_stepper(
      2,
      num_workers,
      make_rule,
      size=2,
    )

  return make_some


class Hand:
  """Does by hand what workers had done when one of them was lost.

  Attributes:
    token: int, of the round that is under way.
  """

  def __init__(self, stepper):
    self.token = round_entry.LIFE + 1
    self._members = [worker.member for worker in stepper.workers]
    self._target = stepper.workers[0].hooks[0]._session.sess_str
    self._devices = [v.device for v in stepper.workers[0].center_variables]

  def _run(self, build):
    with tf.Graph().as_default(), tf.Session(self._target) as session:
      options = tf.RunOptions(timeout_in_ms=60_000)
      return session.run(build(), options=options)

  def push(self, shard, *gradients):
    """Contributes to one shard, as so many workers would."""

    def build():
      with tf.device(self._devices[shard]):
        accumulator = find_accumulator(shard)
        return [
          accumulator.apply_grad([float(g)], self.token) for g in gradients
        ]

    self._run(build)

  def wait(self, unit, worker):
    """Waits as a worker does until a unit is updated."""

    def build():
      goal = tf.constant(self.token + 1, tf.int64)
      of_all = units.Units(len(self._members), self._devices)
      return of_all.wait(unit, worker, goal)

    self._run(build)

  def _build_entry(self, worker):
    with tf.device('/job:ps/task:0/device:CPU:0'):
      global_step = tf.train.get_or_create_global_step()
    return round_entry.Entry(
      self._members[worker], 2, global_step, has_places=True
    )

  def ask_for_place(self, worker):
    """Returns 0 if that worker has a place, else how many rounds it missed."""

    def build():
      entry = self._build_entry(worker)
      own_token = tf.constant(self.token, tf.int64)
      return entry.contribute(own_token, lambda local_step: [])[0]

    return self._run(build)

  def give(self, worker, shard, gradient):
    """Contributes to one shard, as that worker does."""

    def build():
      given = contributions.GivenParts(self._members[worker], self._devices)
      with tf.device(self._devices[shard]):
        accumulator = find_accumulator(shard)
      return given.give_once(
        shard,
        given.read(shard, []),
        tf.constant(self.token, tf.int64),
        lambda once: [accumulator.apply_grad([float(gradient)], once)],
      )

    self._run(build)


def kill(stepper, worker):
  """A worker is gone, with all that it was about to do."""
  hook = stepper.workers[worker].hooks[0]
  stepper.leave(worker, hook._session.close)
  hook._end_updates()


def go_to(stepper, center):
  """All workers make a step, after which that is the center."""
  x = [
    2 * to - now for to, now in zip(center, stepper.read_center(), strict=True)
  ]
  found = stepper.step_together([x] * len(stepper.workers))
  assert {tuple(step.center) for step in found} == {tuple(center)}
  return found[0].global_step


@pytest.mark.daily
@pytest.mark.slow
def test_of_two_each_may_be_lost_anywhere_and_no_shard_has_a_part_twice(make):
  stepper = make()
  hand = Hand(stepper)
  assert go_to(stepper, [3, 3]) == 1
  # The chief is lost amid a round.
  hand.push(0, 2, 4)
  hand.wait(0, worker=0)
  assert stepper.read_center() == [1.5, 3]  # 3 - 0.5 * 3
  kill(stepper, 0)
  stepper.come_back(0)
  hook = stepper.workers[0].hooks[0]
  # It would save the shards as they are.
  assert not hook.is_whole(hook._session)
  # What the other one computed for the chief before is dropped.
  assert stepper.step(1, [4, 4]) == (1, 1, [1.5, 3])
  # The gradients of the second shard are -5 and -1.
  found = stepper.step_together([[8, 8], [4, 4]])
  assert found == [(2, 0, [1.5, 4.5])] * 2
  assert hook.is_whole(hook._session)
  found = stepper.step_together([[8, 8], [4, 4]])
  assert found == [(3, 0, [3.75, 5.25])] * 2

  # A worker is lost amid its push: it goes on with the rest.
  assert go_to(stepper, [3, 3]) == 4
  hand.token = 2 * round_entry.LIFE + 4
  hand.push(0, 1)  # Of worker 1, which took its token of that shard, too.
  stepper.begin(0, [8, 8])
  stepper.release(0)
  hand.wait(0, worker=1)
  assert stepper.read_center() == [4, 3]  # 3 - 0.5 * (1 - 5) / 2
  kill(stepper, 1)
  stepper.come_back(1)
  # Its gradients are 0 and -1, but the first one comes too late.
  assert stepper.step(1, [4, 4]) == (5, 0, [4, 4.5])
  assert stepper.join(0) == (5, 0, [4, 4.5])
  found = stepper.step_together([[8, 8], [4, 4]])
  assert found == [(6, 0, [5, 5.25])] * 2

  # In its wait: it waits for each shard once.
  stepper.begin(1, [4, 4])
  stepper.release(1)
  assert not stepper.is_done(1)
  kill(stepper, 1)
  stepper.begin(0, [8, 8])
  assert stepper.end(0) == (7, 0, [5.5, 5.625])
  stepper.come_back(1)
  assert go_to(stepper, [4, 4]) == 8
  assert go_to(stepper, [3, 3]) == 9

  # A chief that leaves amid a round and comes back finds all in step.
  hand.token = 2 * round_entry.LIFE + 9
  hand.push(0, 2, 4)
  hand.wait(0, worker=0)
  hook = stepper.workers[0].hooks[0]
  hook._stop.is_requested = True  # Or no one could wait for a token again.
  stepper.begin(1, [4, 4])
  stepper.release(1)
  assert not stepper.is_done(1)
  stepper.leave(0)
  assert stepper.join(1)[:2] == (9, 1)
  stepper.come_back(0)
  assert stepper.step(1, [4, 4])[:2] == (9, 1)
  found = stepper.step_together([[8, 8], [4, 4]])
  assert found == [(10, 0, [1.5, 4.5])] * 2


@pytest.mark.slow
def test_one_that_is_lost_with_shards_held_back_pushes_the_rest(
  make_stepper, make_cluster, monkeypatch
):
  cut_finely(monkeypatch)
  stepper, cluster = make_stepper(1, 2, make_rule, size=9), make_cluster(1, 2)
  push_six(stepper, cluster, 1, [4] * 9)
  kill(stepper, 1)
  stepper.come_back(1)
  # A gradient is -x, and the update 0.5 times the mean of both.
  found = stepper.step_together([[4] * 9, [12] * 9])
  assert found == [(1, 0, [4] * 3 + [2] * 6)] * 2
  assert go_to(stepper, [3] * 9) == 2


@pytest.mark.slow
def test_two_steps_in_a_run_are_two_steps(make_stepper):
  stepper = make_stepper(
    2,
    2,
    make_rule,
    steps_per_run=2,
  )
  for xs in [[8], [4]], [[4], [8]]:
    for worker, x in enumerate(xs):
      stepper.begin(worker, x)
      stepper.release(worker)
  assert [stepper.join(worker) for worker in (0, 1)] == [(2, 0, [4.5])] * 2


def step_together(stepper, workers, x):
  """Returns what each of `workers` found, which wait for one another."""
  for worker in workers:
    stepper.begin(worker, [x, x])
  for worker in workers:
    stepper.release(worker)
  found = [stepper.join(worker) for worker in workers]
  assert found == [found[0]] * len(workers)
  return found[0]


@pytest.mark.daily
@pytest.mark.slow
def test_with_a_backup_one_may_be_late_or_lost_without_a_place(make):
  stepper = make(3)
  # It is late by rounds.
  stepper.begin(2, [100, 100])
  for step, center in enumerate((4, 6, 7), 1):
    assert step_together(stepper, (0, 1), 8) == (step, 0, [center, center])
  assert stepper.end(2) == (3, 3, [7, 7])
  # It has the current values: 7 - 0.5 * (7 - 8).
  assert step_together(stepper, (0, 2), 8) == (4, 0, [7.5, 7.5])
  # Worker 1 was not there in that round.
  assert stepper.step(1, [100, 100]) == (4, 1, [7.5, 7.5])
  assert step_together(stepper, (1, 2), 0.5) == (5, 0, [4, 4])
  assert stepper.step(0, [100, 100]) == (5, 1, [4, 4])

  # It is late amid a round.
  hand = Hand(stepper)
  hand.token = round_entry.LIFE + 5
  stepper.begin(2, [100, 100])
  assert step_together(stepper, (0, 1), 4) == (6, 0, [4, 4])
  # Workers 0 and 1 have places in the next round, and a shard of it is done.
  hand.token += 1
  assert [hand.ask_for_place(worker) for worker in (0, 1)] == [0, 0]
  hand.push(0, 2, 4)
  for worker in (0, 1):
    hand.wait(0, worker)
  # It knows the current step, and that the round of it is full.
  assert stepper.end(2) == (6, 2, [2.5, 4])
  stepper.begin(2, [100, 100])
  stepper.release(2)
  assert not stepper.is_done(2)
  hand.push(1, 2, 4)
  assert stepper.join(2) == (7, 1, [2.5, 2.5])
  for worker in (0, 1):
    hand.wait(1, worker)
  # It is in the third one, whose tokens are the ones that it waits for.
  hand.token += 1
  assert hand.ask_for_place(0) == 0
  stepper.begin(2, [4, 4])
  stepper.release(2)
  assert not stepper.is_done(2)
  for shard in (0, 1):
    hand.give(0, shard, 0.5)
  assert stepper.join(2) == (8, 0, [2.75, 2.75])


@pytest.mark.daily
@pytest.mark.slow
def test_with_a_backup_the_others_go_on_without_one_that_is_lost(make):
  stepper = make(3)
  # Before it has a place.
  stepper.begin(2, [100, 100])
  kill(stepper, 2)
  with pytest.raises(tf.errors.CancelledError):
    stepper.join(2)
  for step, center in ((1, 4), (2, 6)):
    assert step_together(stepper, (0, 1), 8) == (step, 0, [center, center])
  stepper.come_back(2)
  assert step_together(stepper, (1, 2), 8) == (3, 0, [7, 7])
  assert stepper.step(0, [100, 100]) == (3, 1, [7, 7])

  # In its wait: it has the place of its predecessor, which has given all.
  stepper.begin(1, [2, 2])
  stepper.release(1)
  assert not stepper.is_done(1)
  kill(stepper, 1)
  stepper.come_back(1)
  stepper.begin(1, [100, 100])
  stepper.release(1)
  assert not stepper.is_done(1)
  stepper.begin(0, [4, 4])
  stepper.release(0)
  assert stepper.join(0) == stepper.join(1) == (4, 0, [5, 5])
  assert stepper.step(2, [100, 100]) == (4, 1, [5, 5])
  assert step_together(stepper, (1, 2), 3) == (5, 0, [4, 4])
  assert stepper.step(0, [100, 100]) == (5, 1, [4, 4])

  # With a place, and a part that it has given: it gives the rest.
  hand = Hand(stepper)
  hand.token = round_entry.LIFE + 5
  assert hand.ask_for_place(1) == 0
  hand.give(1, 0, -2)
  kill(stepper, 1)
  stepper.come_back(1)
  # Its gradients are -4: the first of them would be a second one.
  stepper.begin(1, [8, 8])
  stepper.release(1)
  assert not stepper.is_done(1)
  # There is no third place.
  stepper.begin(2, [100, 100])
  stepper.begin(0, [6, 6])
  stepper.release(0)
  assert stepper.join(0) == stepper.join(1) == (6, 0, [5, 5.5])
  assert stepper.end(2)[:2] in ((6, 2), (6, 1))


@pytest.mark.slow
def test_a_chief_that_comes_back_gives_all_places_anew(make):
  stepper = make(3)
  hand = Hand(stepper)
  assert step_together(stepper, (0, 1), 8) == (1, 0, [4, 4])
  # Both have places; one shard is done, and of the other one part is there.
  assert [hand.ask_for_place(worker) for worker in (0, 1)] == [0, 0]
  hand.push(0, 2, 4)
  for worker in (0, 1):
    hand.wait(0, worker)
  hand.give(1, 1, 9)
  kill(stepper, 0)
  stepper.come_back(0)
  for worker in (1, 2):  # With what they have of the chief before.
    assert stepper.step(worker, [100, 100]) == (1, 1, [2.5, 4])
  # 4 - 0.5 * -4: the other one is left out.
  assert step_together(stepper, (1, 2), 8) == (2, 0, [2.5, 6])
  assert stepper.step(0, [100, 100]) == (2, 1, [2.5, 6])
  assert step_together(stepper, (0, 2), 8) == (3, 0, [5.25, 7])
  assert stepper.step(1, [100, 100]) == (3, 1, [5.25, 7])

  # One that leaves the others to their work leaves no half of a round.
  assert step_together(stepper, (0, 1), 8) == (4, 0, [6.625, 7.5])
  stepper.step(2, [100, 100])
  # Workers 1 and 2 have the places of the next round.
  hand.token = 2 * round_entry.LIFE + 4
  assert hand.ask_for_place(1) == 0
  stepper.begin(2, [8, 8])
  stepper.release(2)
  hand.give(1, 0, -4)
  moved = [6.625 + 0.25 * (1.375 + 4), 7.5]
  wait_for(lambda: stepper.read_center() == moved)
  with concurrent.futures.ThreadPoolExecutor() as threads:
    leaving = threads.submit(stepper.leave, 0)
    assert not concurrent.futures.wait([leaving], 0.3).done
    hand.give(1, 1, -4)
    leaving.result(stepper_lib.DEADLINE_SECS)
  assert stepper.join(2) == (5, 0, [moved[0], 7.5 + 0.25 * (0.5 + 4)])
  # There are no more places.
  hand.token += 1
  assert hand.ask_for_place(0) == 1


@pytest.mark.daily
@pytest.mark.slow
def test_places_go_with_two_steps_in_a_run(make_stepper):
  stepper = make_stepper(
    2,
    3,
    make_rule,
    steps_per_run=2,
  )
  stepper.begin(2, [100])
  for _ in range(2):
    for worker in (0, 1):
      stepper.begin(worker, [8])
      stepper.release(worker)
  assert [stepper.join(worker) for worker in (0, 1)] == [(2, 0, [6])] * 2
  stepper.release(2)
  stepper.begin(2, [8])
  stepper.begin(0, [8])
  stepper.release(2)
  stepper.release(0)
  assert stepper.join(2) == (3, 0, [7])
  assert stepper.workers[2].done == [(2, 2), (3, 0)]
  kill(stepper, 0)


def ask_to_stop(stepper, worker, secs_left=60.0):
  """Asks a worker to stop, as by SIGTERM; returns the started threads."""
  hook, stop = stepper.workers[worker].hooks[0], in_process.AskedStop()
  stop.secs_left = secs_left
  hook._stop = hook._leave._stop = stop
  stop.on_request(hook._leave_the_wait)
  return stop.request()


def wait_for(is_so):
  deadline = time.monotonic() + stepper_lib.DEADLINE_SECS
  while not is_so():
    assert time.monotonic() < deadline
    time.sleep(0.01)


@pytest.fixture
def amid_a_round(make):
  """Returns a stepper: worker 0 has pushed all, worker 1 the first shard."""
  stepper = make()
  assert stepper.step_together([[8, 8], [4, 4]]) == [(1, 0, [3, 3])] * 2
  Hand(stepper).give(1, 0, -1)
  stepper.begin(0, [8, 8])
  stepper.release(0)
  wait_for(lambda: stepper.read_center() == [4.5, 3])
  return stepper


@pytest.mark.slow
def test_a_chief_that_is_asked_to_stop_amid_a_round_finishes_it(amid_a_round):
  stepper = amid_a_round
  threads = ask_to_stop(stepper, 0)
  # It would save the shards as they are.
  assert not stepper.is_done(0)
  stepper.begin(1, [4, 4])
  stepper.release(1)
  # As without the stop.
  assert stepper.join(0) == stepper.join(1) == (2, 0, [4.5, 4.5])
  hook = stepper.workers[0].hooks[0]
  assert hook.is_whole(hook._session)
  stepper.leave(0)
  for thread in threads:
    thread.join(stepper_lib.DEADLINE_SECS)
    assert not thread.is_alive()


@pytest.mark.slow
def test_a_round_that_cannot_be_finished_is_told_so_before_a_save(amid_a_round):
  stepper = amid_a_round
  ask_to_stop(stepper, 0, secs_left=0.2)
  assert stepper.join(0) == (1, 1, [4.5, 3])
  hook = stepper.workers[0].hooks[0]
  assert not hook.is_whole(hook._session)
  # What is missing comes too late for it.
  Hand(stepper).give(1, 1, -1)
  assert stepper.read_center() == [4.5, 3]


@pytest.mark.slow
def test_who_is_asked_to_stop_stays_until_the_chief_has_ended(make):
  stepper = make()
  stepper.step_together([[8, 8], [4, 4]])
  stepper.begin(1, [4, 4])
  stepper.release(1)
  (of_worker,) = ask_to_stop(stepper, 1)
  assert not stepper.is_done(1)
  (of_chief,) = ask_to_stop(stepper, 0)  # No shard is ahead.
  with pytest.raises(tf.errors.CancelledError):
    stepper.join(1)
  of_worker.join(stepper_lib.DEADLINE_SECS)
  stepper.leave(1, lambda: None)
  stepper.leave(0)
  of_chief.join(stepper_lib.DEADLINE_SECS)
  assert not of_worker.is_alive() and not of_chief.is_alive()
  assert stepper.read_center() == [3, 3]
