"""arrow_file: rows by their numbers, through all batches."""

import os
import sys
import threading

import numpy as np
import pytest

from distmnist.readers import arrow_file

pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed')


def write(path, batches):
  with open(path, 'w+b') as file:
    arrow_file.write(file, batches)
    file.flush()
    return arrow_file.Rows(file, 4)


def make_batch(numbers):
  return pa.record_batch(
    {
      'n': pa.array(numbers, pa.int32()),
      'half': pa.array(np.array(numbers, np.float16)),
      'is_even': [n % 2 == 0 for n in numbers],
      'text': pa.array([b't%d' % n for n in numbers], pa.large_binary()),
      'list': pa.array([[n, n + 1] for n in numbers], pa.list_(pa.int64(), 2)),
    }
  )


@pytest.fixture
def rows(tmp_path):
  cut = (0, range(5)), (0, range(5, 6)), (2, range(6, 10))
  return write(tmp_path / 'a', [(part, make_batch([*n])) for part, n in cut])


def test_rows_are_read_by_their_numbers_in_the_order_given(rows):
  assert rows.num_rows == 10
  assert rows.part_sizes.tolist() == [6, 0, 4, 0]
  found = rows.read(np.array([9, 0, 5, 9, 6]))
  assert found['n'].tolist() == [9, 0, 5, 9, 6]
  assert found['n'].dtype == np.int32
  assert found['half'].dtype == np.float16
  assert found['is_even'].tolist() == [False, True, False, False, True]
  assert found['text'].tolist() == [b't9', b't0', b't5', b't9', b't6']
  assert found['list'].tolist()[:2] == [[9, 10], [0, 1]]
  assert all(array.flags.writeable for array in found.values())


def test_none_is_read_where_none_is_asked_for(rows):
  found = rows.read(np.zeros(0, np.int64))
  assert found['list'].shape == (0, 2) and found['text'].shape == (0,)


def test_a_file_may_have_no_row(tmp_path):
  rows = write(tmp_path / 'a', [])
  assert rows.num_rows == 0 and rows.part_sizes.tolist() == [0] * 4


def test_a_file_that_is_removed_is_read_on(rows, tmp_path):
  os.remove(tmp_path / 'a')
  assert rows.read(np.array([3]))['n'].tolist() == [3]


@pytest.mark.slow
def test_several_threads_may_read(rows, monkeypatch):
  monkeypatch.setattr(arrow_file, '_ROWS_MAPPED', 3)  # Pages come and go.
  wrong = []

  def read(seed):
    rng = np.random.default_rng(seed)
    for _ in range(50):
      numbers = rng.integers(0, 10, 4)
      if rows.read(numbers)['n'].tolist() != numbers.tolist():
        wrong.append(numbers)

  threads = [threading.Thread(target=read, args=[i]) for i in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join(60)
  assert not wrong


def test_pyarrow_that_is_missing_is_to_be_installed(monkeypatch):
  monkeypatch.setitem(sys.modules, 'pyarrow.csv', None)
  with pytest.raises(ImportError, match=r"pip install 'distmnist\[data\]'"):
    arrow_file.load_pyarrow('csv')
