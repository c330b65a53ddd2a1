"""batch_table: what it says of a life that has ended, and its size."""

import numpy as np
import pytest

from distmnist.training.batches import batch_table
from tests.support.dealings import BATCH, make_dealing


def test_what_a_lock_step_life_has_read_is_known_from_its_steps():
  dealing = make_dealing(3, 2, 40, is_lock_step=True)
  table = batch_table.fold(batch_table.make_table(dealing), 7, dealing, 6)
  rest = batch_table.read_rest(table)
  assert (rest.next_place, rest.ranges) == (7 * 3 * 2 * BATCH, [])
  # Another number of workers, and another rule, go on from there.
  other = make_dealing(2, 1, 90)
  table = batch_table.fold(table, 10, other, 1)
  assert batch_table.read_rest(table).next_place == 10 * 3 * 2 * BATCH
  assert table[0].tolist() == [10, 10 * 3 * 2 * BATCH, BATCH]


def test_a_checkpoint_of_old_is_taken_for_what_its_steps_tell():
  dealing = make_dealing(2, 4, 90)
  blank = np.zeros_like(batch_table.make_table(dealing))
  table = batch_table.fold(blank, 30, dealing, 4)
  assert batch_table.read_rest(table).next_place == 30 * 4 * BATCH


def test_a_table_has_a_size_that_is_not_that_of_the_cluster():
  shapes = {
    batch_table.make_table(make_dealing(n)).shape for n in (1, 3, 310, 510)
  }
  assert len(shapes) == 1
  assert batch_table.make_table(make_dealing(511)).shape not in shapes


@pytest.mark.parametrize('is_lock_step', [True, False])
def test_a_worker_that_comes_back_goes_on_in_its_own_stream(is_lock_step):
  dealing = make_dealing(3, is_lock_step=is_lock_step, has_own_streams=True)
  table = batch_table.fold(batch_table.make_table(dealing), 0, dealing, 1)
  places, step = [0, 0, 0], 0
  for num_workers, num_batches in (3, 10), (2, 20), (1, 5), (3, 1), (4, 2):
    dealing = dealing._replace(num_workers=num_workers)
    table = batch_table.fold(table, step, dealing, 1)
    found = [
      batch_table.read_rest(table, worker).next_place
      for worker in range(num_workers)
    ]
    assert found == [n * BATCH for n in [*places, 0][:num_workers]]
    if not is_lock_step:
      table[len(table) // 2, 0] = num_batches * num_workers
      first = len(table) // 2 + 1
      table[first : first + num_workers, :2] = num_batches
    step += num_batches * (1 if is_lock_step else num_workers)
    for worker in range(min(3, num_workers)):
      places[worker] += num_batches


def test_what_hundreds_of_lost_workers_left_is_all_read():
  # As a life loses all its workers, whose batches lie apart.
  dealing = make_dealing(600)
  rows = [(3 * worker, 3 * worker + 1) for worker in range(600)]
  rows[5] = 15, 17  # The least is read again after it.
  few = make_dealing(2)
  table = batch_table.fold(make_leased(dealing, 1800, rows), 600, few, 1)
  rest = batch_table.read_rest(table)
  assert len(rest.ranges) == 510
  left = {i for a, b in rows for i in range(a * BATCH, b * BATCH)}
  read = {i for a, b in rest.ranges for i in range(a, b)}
  assert left <= read
  assert len(read - left) == (1 + 2 * 89) * BATCH
  assert rest.next_place == 1800 * BATCH


def make_leased(dealing, leased, rows, base_step=0):
  """Returns a table: `leased` tickets, and (first not done, end) a worker."""
  table = batch_table.make_table(dealing, base_step)
  table[len(table) // 2, 0] = leased
  for worker, row in enumerate(rows):
    table[len(table) // 2 + 1 + worker, :2] = row
  return table


def test_a_step_whose_batches_were_not_noted_is_none():
  # Of 4 a push: 20 were leased, and 8 of them are not done.
  table = make_leased(make_dealing(2, 4), 20, [(8, 12), (16, 20)], base_step=7)
  assert batch_table.count_steps(table, 10) == 10
  assert batch_table.count_steps(table, 11) == 10
  # A push that was dropped is done as well, and was no step.
  assert batch_table.count_steps(table, 9) == 9


def test_a_step_counts_as_it_is_where_the_table_cannot_tell():
  dealing = make_dealing(2, 4)
  fresh = batch_table.make_table(dealing)
  assert batch_table.count_steps(fresh, 5) == 5
  rows = [(8, 12), (16, 20)]
  assert batch_table.count_steps(make_leased(dealing, 20, rows, 7), 5) == 5
  for other in (
    make_dealing(2, 4, is_lock_step=True),
    make_dealing(2, 4, pushes_per_step=2),
  ):
    assert batch_table.count_steps(make_leased(other, 20, rows), 9) == 9


def test_a_run_that_begins_with_the_weights_of_another_reads_all_anew():
  dealing = make_dealing(2, last_step=8, epoch_steps=8)
  assert dealing.begun_at(0) == dealing
  assert dealing.begun_at(30).last_step == 38
  # --train_steps is a global step wherever the run begins.
  assert dealing._replace(train_steps=35).begun_at(30).last_step == 35
  without = dealing._replace(epoch_steps=None, train_steps=8)
  assert without.begun_at(30).last_step == 8
  table = batch_table.begin_run(dealing, 30)
  assert batch_table.read_rest(table).next_place == 0
  assert batch_table.count_images_read(table, 30, dealing) == 0
  # It is known in all later lives.
  table[batch_table.leased_row(table), 0] = 3
  table[batch_table.worker_row(table, 1), :2] = 3, 3
  table = batch_table.fold(table, 33, dealing, 1)
  assert batch_table.find_first_step(table) == 30
  assert batch_table.count_images_read(table, 33, dealing) == 3 * BATCH
  assert not batch_table.has_mixed_steps(table, 33, dealing)


@pytest.mark.parametrize(
  ('base_step', 'size', 'earlier', 'step', 'described'),
  [
    (0, 64, 0, 0, 0),  # No step yet.
    (0, 64, 0, 5, 0),
    (0, 32, 0, 5, -32),
    (5, 64, -32, 5, -32),  # A life without a step.
    (5, 32, 0, 5, -32),
    (5, 64, -32, 9, batch_table.MIXED),
    (5, 32, -64, 5, 0),  # Its size was never used.
    (5, 64, batch_table.MIXED, 9, batch_table.MIXED),
    (5, 0, 0, 9, 0),  # A table that does not tell.
  ],
)
def test_steps_are_compared_with_those_of_all_lives(
  base_step, size, earlier, step, described
):
  table = np.zeros([8, 3], np.int64)
  table[0, 0], table[4] = base_step, (0, size, earlier)
  assert batch_table.describe_sizes(table, step, 64) == described
