"""records: what lies at known places of files."""

import os

import numpy as np
import pytest

from distmnist.readers import records


@pytest.fixture
def found(tmp_path):
  texts = b'abcdef', b'', b'0123456789' * 60
  paths = []
  for i, text in enumerate(texts):
    (tmp_path / str(i)).write_bytes(text)
    paths.append(str(tmp_path / str(i)))
  offsets = np.arange(0, 600, 2)
  places = [
    (np.array([4, 0]), np.array([2, 3])),
    (np.zeros(0, np.int64), np.zeros(0, np.int64)),
    (offsets, np.full(300, 2)),
  ]
  return records.Records(paths, places)


def test_they_are_numbered_through_all_files(found):
  assert found.num_records == 302
  assert found.block_sizes.tolist() == [2, 256, 44]
  read = found.read(np.array([2, 1, 301, 0]))
  assert read.tolist() == [b'01', b'abc', b'89', b'ef']
  assert found.locate(2) == (found._paths[2], 0, 0)
  assert found.locate(1) == (found._paths[0], 1, 0)


@pytest.mark.parametrize('text', [b'abcde', b'', b'abcdeg', b'.abcdef'])
def test_a_file_that_is_not_what_it_was_is_named(found, text):
  with open(found._paths[0], 'wb') as file:
    file.write(text)
  with pytest.raises(ValueError, match='/0 has changed since the training beg'):
    found.read(np.array([1]))


def test_a_file_may_grow(found):
  with open(found._paths[0], 'ab') as file:
    file.write(b'more')
  assert found.read(np.array([1, 0])).tolist() == [b'abc', b'ef']


def test_a_file_that_has_become_a_folder_is_named(found):
  os.remove(found._paths[0])
  os.mkdir(found._paths[0])
  with pytest.raises(IsADirectoryError, match='/0'):
    found.read(np.array([1]))
