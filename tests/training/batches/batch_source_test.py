"""batch_source: the feed of each run, and what the history says of it."""

import collections

import numpy as np
import pytest

from distmnist.data import data_order, streamed
from distmnist.training.batches import batch_source, batch_table
from tests.support.sources import BATCH, NUM_IMAGES, make_dealing, make_source


def test_a_feed_has_the_place_and_the_images_of_each_batch():
  dealing = make_dealing(2)
  source = make_source(dealing, worker=1)
  source.begin(3, batch_table.make_table(dealing))
  rows = source.make_feed(2)['fed']
  assert rows.shape == (2, 1 + BATCH)
  order = data_order.Order(NUM_IMAGES, 3)
  for row, ticket in zip(rows, (3 * 2 + 1, 4 * 2 + 1), strict=True):
    places = np.arange(BATCH) + ticket * BATCH
    assert row.tolist() == [places[0], *order.find_images(places)]


@pytest.mark.slow
def test_all_workers_read_each_image_once_an_epoch():
  # 30 images in batches of 4: an epoch ends within a batch.
  dealing, found = make_dealing(3, last_step=10), []
  for worker in range(3):
    source = make_source(dealing, worker)
    source.begin(0, batch_table.make_table(dealing))
    for step in range(10):
      found += source.make_feed(1)['fed'][0, 1:].tolist()
      source.note([step + 1])
  assert set(collections.Counter(found).values()) == {4}


def test_images_are_counted_across_lives_with_other_steps():
  dealing = make_dealing(3)
  source = make_source(dealing)
  rest = data_order.Rest(50, [(10, 14)])
  source.begin(6, batch_table.make_table(dealing, base_step=5, rests=[rest]))
  assert source.count_images(5) == 46
  assert source.count_images(7) == 46 + 2 * dealing.images_per_step


def test_with_streams_of_their_own_no_two_batches_share_their_draws():
  dealing = make_dealing(2, has_own_streams=True)
  places, images = [], []
  for worker in range(2):
    source = make_source(dealing, worker)
    source.begin(0, batch_table.make_table(dealing))
    rows = source.make_feed(3)['fed']
    places += rows[:, 0].tolist()
    images.append(rows[:, 1:].ravel().tolist())
  assert len(set(places)) == 6
  assert images[0] != images[1]


def test_the_history_says_what_was_run_and_what_was_thrown_away_later():
  dealing, told = make_dealing(2, 3), []
  source = make_source(dealing, worker=1)
  source._history.write = lambda event, **fields: told.append(
    (event, fields['tickets'])
  )
  source.begin(4, batch_table.make_table(dealing, base_step=4))
  for step in (4, 4, 4):
    source.make_feed(1)
    source.note([step])
  told = [row for row in told if row[0] != 'took']
  assert told == [
    *(('ran', [ticket]) for ticket in (1, 3, 5)),
    ('undone', [1, 3, 5]),
  ]


class Squares:
  num_examples = NUM_IMAGES

  def __init__(self):
    self.asked = []

  def read(self, indices):
    self.asked.append(indices.tolist())
    return indices, indices**2


@pytest.mark.parametrize('num_threads', [1, 3])
def test_the_next_runs_are_read_while_one_is_under_way(set_flags, num_threads):
  set_flags(f'--read_threads={num_threads}')
  reader = Squares()
  examples = streamed.Streamed(reader)
  dealing = make_dealing(2, last_step=20)
  source = make_source(dealing, worker=1, examples=examples)
  source.begin(0, batch_table.make_table(dealing))
  fed = []
  for run in range(4):
    rows = source.make_feed(2)['fed']
    fed.append(rows[:, 1:].ravel().tolist())
    for row in rows:
      assert examples.take(row)[1].tolist() == (row[1:] ** 2).tolist()
    source.note([2 * run + 1, 2 * run + 2])
  examples._ahead._pool.shutdown()
  # Each batch was read once, with its run; and one run ahead per thread.
  asked = {str(numbers) for numbers in reader.asked if numbers != [0]}
  assert set(map(str, fed)) <= asked
  assert len(asked) == 4 + num_threads == len(reader.asked) - 1


def test_images_are_looked_up_for_several_runs_at_a_time(
  set_flags, monkeypatch
):
  # With batches as large as what is looked up at a time.
  monkeypatch.setattr(batch_source, '_NUM_AHEAD', BATCH)
  set_flags('--read_threads=4')
  examples = streamed.Streamed(Squares())
  source = make_source(make_dealing(1, last_step=40), examples=examples)
  source.begin(0, batch_table.make_table(source.dealing))
  look_up, sizes = source._look_up, []
  monkeypatch.setattr(
    source,
    '_look_up',
    lambda wanted: sizes.append(len(wanted)) or look_up(wanted),
  )
  for step in range(24):
    source.make_feed(1)
    source.note([step + 1])
  examples._ahead._pool.shutdown()
  # Each batch is looked up twice or so, and not in each run ahead of it.
  assert sum(sizes) <= 3 * 24
  assert len(sizes) <= 24 // 2


def test_a_blank_feed_takes_nothing():
  dealing = make_dealing(1)
  source = make_source(dealing)
  source.begin(0, batch_table.make_table(dealing))
  assert not source.make_blank_feed(2)['fed'].any()
  assert source.make_feed(1)['fed'][0, 0] == 0
