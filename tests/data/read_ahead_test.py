"""read_ahead: what was announced is read once, by the run."""

import threading

import numpy as np
import pytest

from distmnist.data import read_ahead

ROWS = np.array([[10, 1, 2], [20, 3, 4]])


class Read:
  """Reads a number as its square; `may` holds it back until it is set."""

  def __init__(self):
    self.asked = []
    self.may = threading.Event()
    self.may.set()

  def __call__(self, indices):
    self.may.wait(10)
    self.asked.append(indices.tolist())
    return [indices**2, indices[:, np.newaxis]]


def take(ahead, row):
  squares, column = ahead.take(np.array(row))
  assert column.shape == (len(row) - 1, 1)
  return squares.tolist()


def test_the_batches_of_a_run_are_read_at_once():
  read = Read()
  ahead = read_ahead.ReadAhead(read, 1)
  ahead.announce(ROWS)
  ahead.announce(ROWS)
  assert take(ahead, ROWS[1]) == [9, 16]
  assert take(ahead, ROWS[0]) == [1, 4]
  assert read.asked == [[1, 2, 3, 4]]


def test_what_was_not_announced_is_read_when_it_is_asked_for():
  read = Read()
  ahead = read_ahead.ReadAhead(read, 1)
  # Another place: other draws, though the examples are the same.
  ahead.announce(ROWS)
  assert take(ahead, [11, 1, 2]) == [1, 4]
  assert sorted(read.asked) == [[1, 2], [1, 2, 3, 4]]


def test_a_run_that_is_longer_than_was_announced_is_announced_anew():
  read = Read()
  ahead = read_ahead.ReadAhead(read, 1)
  ahead.announce(ROWS[:1])
  ahead.announce(ROWS)
  assert take(ahead, ROWS[1]) == [9, 16]


def test_what_was_announced_in_vain_is_forgotten():
  read = Read()
  read.may.clear()
  ahead = read_ahead.ReadAhead(read, 1)
  for place in range(6):
    ahead.announce(np.array([[place, place, place]]))
  read.may.set()
  assert take(ahead, [5, 5, 5]) == [25, 25]
  # The first had begun; of the others the last three were still wanted.
  assert [numbers[0] for numbers in read.asked] == [0, 3, 4, 5]
  assert take(ahead, [1, 1, 1]) == [1, 1]


def test_an_error_is_that_of_who_asks():
  def read(indices):
    raise OSError('gone')

  ahead = read_ahead.ReadAhead(read, 1)
  ahead.announce(ROWS)
  with pytest.raises(OSError, match='gone'):
    ahead.take(ROWS[0])
