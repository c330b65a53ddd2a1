"""mixed_columns: ids beside floats stay what they are, or are refused."""

import numpy as np
import pytest

from distmnist.data import array_folder, mixed_columns, split

MOST = 1 << 24
FLOATS = np.array([0.5, 1.5], np.float32)


def check(*columns):
  names = 'abc'[: len(columns)]
  mixed_columns.check(names, columns, np.stack(columns))


@pytest.mark.parametrize('id_', [MOST + 1, -MOST - 1, -(2**63)])
def test_a_whole_number_that_float32_has_not_is_named(id_):
  check(FLOATS, np.array([MOST, -MOST]))
  with pytest.raises(
    ValueError, match='^b of the columns a, b has whole numbers'
  ):
    check(FLOATS, np.array([1, id_]))


def test_numbers_of_two_kinds_are_floats_for_numpy():
  with pytest.raises(ValueError, match='^a of .* up to 18,446,744'):
    check(np.array([2**64 - 1], np.uint64), np.array([1], np.int64))


def test_whole_numbers_alone_stay_whole():
  check(np.array([2**62, 1]), np.array([MOST + 1, 1], np.int32))


def make_leaf(values):
  return split.make(values, np.zeros(2)).x


class Frame:
  """As one of pandas."""

  def __init__(self, **columns):
    self.columns = columns
    self.items = columns.items

  def __array__(self, dtype=None, copy=None):
    return np.stack(list(self.columns.values()), axis=1)


@pytest.mark.parametrize('make', [array_folder.make_array, make_leaf])
def test_a_data_frame_is_made_of_columns(make):
  assert make(Frame(a=FLOATS, b=np.array([7, MOST]))).shape == (2, 2)
  with pytest.raises(ValueError, match='^b of .* up to 16,777,217'):
    make(Frame(a=FLOATS, b=np.array([7, MOST + 1])))
