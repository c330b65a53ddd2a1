"""records: what lies at known places of files."""

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


def test_a_file_that_became_shorter_is_named(found):
  with open(found._paths[0], 'wb') as file:
    file.write(b'abcde')
  assert found.read(np.array([1])).tolist() == [b'abc']
  with pytest.raises(ValueError, match='has 5 bytes: it had more when the tra'):
    found.read(np.array([0]))
