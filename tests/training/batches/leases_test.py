"""Who takes what: tables by hand, and lives at random."""

import collections

import numpy as np
import pytest

from distmnist.training.batches import batch_table, leases
from tests.support.dealings import BATCH, count_places, make_dealing


class Life:
  """A cluster whose workers take leases and push, on a table in NumPy."""

  def __init__(self, dealing, table=None, step=0, drops=0.0, seed=0):
    self.dealing, self.step = dealing, step
    self.table = batch_table.make_table(dealing) if table is None else table
    self.rng = np.random.default_rng([seed, step])
    self.drops = drops
    self.leases = {}
    self.pushed = [[] for _ in range(dealing.num_workers)]

  def swap(self, lease):
    self.table[lease.rows] = lease.values

  def enter(self, worker):
    lease = leases.choose_entry(self.table, self.step, worker, self.dealing)
    self.swap(lease)
    self.leases[worker] = [lease.first, lease.end]

  def take(self, worker, gone=()):
    """Returns whether there was something to take."""
    lease = leases.choose_lease(
      self.table, self.step, worker, self.dealing
    ) or leases.choose_from_gone(self.table, worker, gone, self.dealing)
    if lease:
      self.swap(lease)
      self.leases[worker] = [lease.first, lease.end]
    return bool(lease)

  def push(self, worker):
    """Pushes a unit: it is marked, and counts unless it is dropped."""
    first, unit = self.leases[worker][0], self.dealing.batches_per_push
    self.pushed[worker].append((first, first + unit))
    self.leases[worker][0] += unit
    self.step += self.rng.random() >= self.drops
    row = self.dealing.num_rows + 1 + worker
    self.table[row, 0] += unit

  def run(self, until, speeds, gone=()):
    """Runs workers at random until the step `until`, or all wait."""
    workers = [w for w in range(self.dealing.num_workers) if w not in gone]
    for worker in workers:
      self.enter(worker)
    weights = np.array([speeds[w] for w in workers], float)
    while self.step < until:
      order = self.rng.permutation(workers)
      chosen = int(self.rng.choice(workers, p=weights / weights.sum()))
      first, end = self.leases[chosen]
      if first < end or self.take(chosen, gone):
        self.push(chosen)
      elif not any(
        self.leases[w][0] < self.leases[w][1] or self.take(w, gone)
        for w in order.tolist()
      ):
        return

  def places(self):
    found = collections.Counter()
    for worker, ranges in enumerate(self.pushed):
      found += count_places(self.table, ranges, worker)
    return found


@pytest.mark.parametrize(
  ('num_left', 'size'),
  # A quarter of what two workers have left; whole runs of 10 steps, as long as
  # there is one for each.
  [(100, 20), (43, 10), (20, 10), (19, 4), (3, 1)],
)
def test_a_lease_is_of_whole_runs_as_long_as_there_is_one_for_each(
  num_left, size
):
  dealing = make_dealing(2, 1, num_left, steps_per_run=10)
  table = batch_table.make_table(dealing)
  lease = leases.choose_lease(table, 0, 1, dealing)
  assert (lease.first, lease.end) == (0, size)


@pytest.mark.parametrize('num_workers', [1, 2, 3])
@pytest.mark.parametrize('unit, steps_per_run', [(1, 1), (1, 10), (4, 10)])
def test_each_batch_is_dealt_once_and_no_step_too_many(
  num_workers, unit, steps_per_run
):
  dealing = make_dealing(num_workers, unit, 60, steps_per_run=steps_per_run)
  for seed in range(2):
    life = Life(dealing, seed=seed)
    life.run(10**9, speeds=[1, 5, 20])
    assert life.step == 60
    assert life.places() == collections.Counter(range(60 * unit * BATCH))


@pytest.mark.parametrize('seed', range(2))
def test_what_is_dropped_is_replaced_and_the_steps_are_exact(seed):
  life = Life(make_dealing(3, 1, 60), drops=0.3, seed=seed)
  life.run(10**9, speeds=[1, 1, 5])
  assert life.step == 60
  num_batches = sum(len(ranges) for ranges in life.pushed)
  assert num_batches > 60
  assert life.places() == collections.Counter(range(num_batches * BATCH))


def test_leases_shrink_so_that_all_end_together():
  life, sizes = Life(make_dealing(2, 1, 1000)), []
  while life.take(0):
    sizes.append(life.leases[0][1] - life.leases[0][0])
    for _ in range(sizes[-1]):
      life.push(0)
  assert sizes[0] == 250 and sizes[-1] == 1 and sum(sizes) == 1000
  assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize('seed', range(2))
@pytest.mark.parametrize('unit', [1, 4])
def test_eight_lives_of_any_size_read_each_place_once(seed, unit):
  rng, table, step = np.random.default_rng(seed), None, 0
  read = collections.Counter()
  for number in range(8):
    dealing = make_dealing(int(rng.integers(1, 4)), unit, 200)
    if table is not None:
      table = batch_table.fold(table, step, dealing, unit)
    life = Life(dealing, table, step, seed=seed)
    # A signal ends it with leases in the hands of all, or it is the last.
    life.run(200 if number == 7 else step + 13, speeds=[1, 3, 9])
    read += life.places()
    table, step = life.table, life.step
  assert step == 200
  assert read == collections.Counter(range(200 * unit * BATCH))


@pytest.mark.parametrize('seed', range(2))
def test_who_dies_gets_its_own_back_or_another_takes_it(seed):
  dealing = make_dealing(3, 2, 60)
  life = Life(dealing, seed=seed)
  life.run(10, speeds=[1, 1, 1])
  in_hands = life.leases[1][1] - life.leases[1][0]
  assert in_hands
  if seed % 2:
    life.run(40, speeds=[1, 0.01, 1])  # All of them come back.
    life.run(10**9, speeds=[1, 1, 1], gone=[1])
  else:
    life.run(10**9, speeds=[1, 1, 1], gone=[1])
    life.enter(1)  # Too late: nothing is left.
    assert life.leases[1][0] == life.leases[1][1]
  assert life.step == 60
  assert life.places() == collections.Counter(range(60 * 2 * BATCH))


def test_a_worker_that_was_taken_for_gone_finds_out():
  dealing = make_dealing(2, 1, 40)
  life = Life(dealing)
  life.enter(0), life.enter(1)
  own = life.table[dealing.num_rows + 2].tolist()
  assert leases.is_owner(life.table, 1, *life.leases[1])
  life.push(1)
  assert leases.is_owner(life.table, 1, *life.leases[1])
  stolen = leases.choose_from_gone(life.table, 0, [1], dealing)
  life.swap(stolen)
  assert (stolen.first, stolen.end, stolen.gone) == (own[0] + 1, own[1], 1)
  life.push(1)  # What it was in the midst of.
  assert not leases.is_owner(life.table, 1, *life.leases[1])
  life.enter(1)
  assert life.leases[1][0] >= life.table[dealing.num_rows + 1][1]


def test_batches_that_were_run_and_not_pushed_yet_take_no_lease_away():
  dealing = make_dealing(2, 1, 40)
  life = Life(dealing)
  life.enter(0), life.enter(1)
  first, end = life.leases[1]
  assert leases.is_owner(life.table, 1, first + 2, end)
  life.swap(leases.choose_from_gone(life.table, 0, [1], dealing))
  assert not leases.is_owner(life.table, 1, first + 2, end)


@pytest.mark.parametrize('num_workers', [1, 3])
def test_with_streams_of_their_own_each_worker_goes_on_where_it_was(
  num_workers,
):
  dealing = make_dealing(num_workers, 2, 60, has_own_streams=True)
  life = Life(dealing)
  life.run(25, speeds=[1, 5, 20])
  table = batch_table.fold(life.table, life.step, dealing, 2)
  again = Life(dealing, table, life.step)
  again.run(10**9, speeds=[20, 5, 1])
  assert again.step == 60
  for worker in range(num_workers):
    found = count_places(life.table, life.pushed[worker], worker)
    found += count_places(table, again.pushed[worker], worker)
    assert found == collections.Counter(range(found.total()))


@pytest.mark.slow
def test_where_updates_drop_pushes_a_slow_worker_leaves_little_unread():
  dealing = make_dealing(3, 1, 1000, pushes_per_step=2)
  life = Life(dealing, drops=0.5)
  life.run(10**9, speeds=[1, 100, 100])
  assert life.step >= 1000
  held = [end - first for first, end in life.leases.values()]
  assert sum(held) <= 64 + 2
  num_dealt = int(life.table[dealing.num_rows, 0])
  assert life.places().total() == (num_dealt - sum(held)) * BATCH


@pytest.mark.parametrize(
  'num_pushes, step, is_surplus',
  [(2, 18, True), (2, 17, False), (1, 20, False)],
)
def test_what_is_held_may_be_enough(num_pushes, step, is_surplus):
  dealing = make_dealing(3, 1, 20, pushes_per_step=num_pushes)
  life = Life(dealing)
  for worker in range(2):
    life.enter(worker)
    life.table[dealing.num_rows + 1 + worker, :2] = 2 * worker, 2 * worker + 2
  assert leases.is_surplus(life.table, step, dealing) == is_surplus


def test_where_updates_take_in_some_pushes_all_may_go_on_until_the_end():
  dealing = make_dealing(3, 1, 20, pushes_per_step=2)
  life = Life(dealing)
  for worker in range(3):
    life.enter(worker)
  life.step = 19
  for worker in range(3):
    life.leases[worker][0] = life.leases[worker][1]
    assert life.take(worker)
    assert life.leases[worker][1] - life.leases[worker][0] == 1
  life.step = 20
  assert not life.take(0)
