"""data_order: each image once an epoch, whatever is left of the stream."""

import collections

import numpy as np
import pytest

from distmnist.data import data_order


def test_an_epoch_has_each_image_once_in_an_order_of_its_own():
  order = data_order.Order(11, seed=3)
  epochs = [order.find_images(np.arange(11) + 11 * e) for e in range(4)]
  for images in epochs:
    assert sorted(images.tolist()) == list(range(11))
  assert len({str(images) for images in epochs}) == 4


def test_an_order_is_decided_by_seed_epoch_and_worker():
  def compute(seed, epoch, *worker):
    order = data_order.Order(50, seed, *worker)
    return str(order.find_images(np.arange(50) + 50 * epoch))

  assert compute(1, 2) == compute(1, 2)
  keys = [(1, 2), (2, 1), (0, 2), (1, 0), (1, 2, 0), (1, 2, 1), (1, 0, 0)]
  assert len({compute(*key) for key in keys}) == len(keys)


def test_places_may_be_asked_for_again_and_across_epochs():
  order = data_order.Order(10, seed=0)
  whole = order.find_images(np.arange(100))
  for first in (95, 3, 58, 7):
    found = order.find_images(np.arange(first, first + 5))
    assert found.tolist() == whole[first : first + 5].tolist()


BLOCKS = data_order.Blocks([3, 5, 2, 4, 1, 6], window=2)


def test_of_blocks_an_epoch_has_each_example_once():
  order = data_order.Order(21, 3, blocks=BLOCKS)
  epochs = [order.find_images(np.arange(21) + 21 * e) for e in range(3)]
  for examples in epochs:
    assert sorted(examples.tolist()) == list(range(21))
  assert len({str(examples) for examples in epochs}) == 3
  # Across windows and epochs, in any order, and from a source of its own.
  whole = np.concatenate(epochs)
  for first in (40, 3, 17, 0):
    again = data_order.Order(21, 3, blocks=BLOCKS)
    found = again.find_images(np.arange(first, first + 23).reshape(23, 1))
    assert found.ravel().tolist() == whole[first : first + 23].tolist()


def test_the_examples_of_a_window_of_blocks_are_mixed():
  order = data_order.Order(21, 3, blocks=BLOCKS)
  block_of = np.repeat(range(6), BLOCKS.sizes)
  drawn = block_of[order.find_images(np.arange(21))].tolist()
  start = 0
  for _ in range(3):
    window = list(dict.fromkeys(drawn[start:]))[:2]
    size = sum(BLOCKS.sizes[block] for block in window)
    assert set(drawn[start : start + size]) == set(window)
    start += size
  assert start == 21
  assert drawn != sorted(drawn, key=drawn.index)


def test_windows_of_one_worker_are_not_those_of_another():
  def find(*worker):
    order = data_order.Order(21, 3, *worker, blocks=BLOCKS)
    return str(order.find_images(np.arange(21)))

  assert len({find(), find(0), find(1)}) == 3


def test_a_rest_begins_with_the_ranges_that_were_left():
  rest = data_order.Rest(100, [(10, 13), (20, 22)])
  expected = [10, 11, 12, 20, 21, 100, 101, 102]
  assert rest.find_places(0, 8).tolist() == expected
  assert rest.find_places(2, 6).tolist() == expected[2:6]
  assert rest.find_places(5, 7).tolist() == [100, 101]
  assert rest.find_places(3, 3).tolist() == []
  assert rest.find_ranges(1, 4) == [(11, 13), (20, 21)]


@pytest.mark.parametrize('seed', range(20))
def test_lives_that_leave_ranges_read_each_place_once(seed):
  rng = np.random.default_rng(seed)
  rest, reads = data_order.Rest(), collections.Counter()
  for _ in range(8):
    end = int(rng.integers(0, 40))
    cuts = np.sort(rng.integers(0, end + 1, 6)).tolist()
    undone = [r for r in zip(cuts[::2], cuts[1::2], strict=True) if r[0] < r[1]]
    done = [0, *(x for r in undone for x in r), end]
    for first, stop in zip(done[::2], done[1::2], strict=True):
      reads.update(rest.find_places(first, stop).tolist())
    rest = rest.after(end, undone)
  left = [x for first, end in rest.ranges for x in range(first, end)]
  assert sorted([*reads.elements(), *left]) == list(range(rest.next_place))
  # Ranges that touch become one, or there would be ever more of them.
  ends = [x for r in rest.ranges for x in r]
  assert ends == sorted(set(ends))
