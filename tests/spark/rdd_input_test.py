import numpy as np
import pytest

from distmnist.data import array_folder
from distmnist.spark import layouts, rdd_input

SHAPE = (2, 3, 1)
IMAGES = layouts.make_of_images(SHAPE, 10)


def make_records(num_train, num_test=0):
  return [
    (1, (is_test, layouts.pack((bytes([i % 256] * 6), i % 10), IMAGES)))
    for is_test, n in ((False, num_train), (True, num_test))
    for i in range(n)
  ]


class FakeRdd:
  """An RDD that may be asked for its first records only."""

  def __init__(self, records):
    self._records = records

  def take(self, number):
    return self._records[:number]


@pytest.mark.parametrize(
  'records, words',
  [([], 'it has no example'), ([(b'12345', 0)], 'images has the shape')],
)
def test_the_first_image_is_looked_at_before_spark_has_any_job(records, words):
  with pytest.raises(ValueError, match=words):
    rdd_input.check_first(FakeRdd(records), IMAGES)


def test_one_good_image_is_enough_to_begin():
  records = [(b'123456', 1), 'no pair at all']
  assert rdd_input.check_first(FakeRdd(records), IMAGES) is IMAGES


def test_the_first_example_of_a_problem_says_what_the_others_are():
  layout = rdd_input.check_first(FakeRdd([([1.0, 2.0], 1)]), None)
  assert [leaf['shape'] for leaf in layout['leaves']] == [[2], []]


def test_the_columns_of_a_dataframe_are_picked():
  row = {'a': 1, 'b': 2.5, 'kind': 'k', 'target': 3}
  x = {'numbers': ['a', 'b'], 'kind': 'kind'}
  assert rdd_input._columns_of(x) == ['a', 'b', 'kind']
  found, y = rdd_input._pick_row(row, x, 'target')
  assert found['numbers'].tolist() == [1, 2.5]
  assert (found['kind'], y) == ('k', 3)


def test_the_workers_get_equal_parts():
  counts = [0, 0, 0]
  for split in range(5):
    for key, (is_test, _) in rdd_input._deal(split, range(7), 2, 3):
      assert not is_test
      counts[key - 2] += 1
  assert sum(counts) == 35
  assert max(counts) - min(counts) <= 1


def test_what_is_spooled_is_what_numpy_reads(tmp_path):
  records = iter(make_records(300, 20))
  num = rdd_input.spool(records, str(tmp_path), IMAGES, limit_mb=1)
  assert num == 300
  images = np.load(tmp_path / 'train_images.npy', allow_pickle=False)
  labels = np.load(tmp_path / 'train_labels.npy', allow_pickle=False)
  assert images.shape == (300, *SHAPE)
  assert [image.tobytes() for image in images[:256]] == [
    bytes([i] * 6) for i in range(256)
  ]
  assert labels.tolist() == [i % 10 for i in range(300)]
  assert np.load(tmp_path / 'test_images.npy').shape == (20, *SHAPE)


def test_a_nest_is_what_a_problem_loads(tmp_path):
  examples = [({'a': [i, i + 1], 'b': 'x' * i}, i / 2) for i in range(5)]
  layout = layouts.make(examples[0])
  records = [(1, (False, layouts.pack(e, layout))) for e in examples]
  assert rdd_input.spool(iter(records), str(tmp_path), layout, 1) == 5
  rdd_input.cut(str(tmp_path), layout, 4)
  x, y = array_folder.load(tmp_path, 'train')
  assert x['a'].tolist() == [[i, i + 1] for i in range(4)]
  assert x['b'].tolist() == [b'x' * i for i in range(4)]
  assert y.tolist() == [0, 0.5, 1, 1.5]
  assert len(array_folder.load(tmp_path, 'test')[1]) == 0


def test_the_parts_are_cut_to_one_size(tmp_path):
  rdd_input.spool(iter(make_records(1001)), str(tmp_path), IMAGES, 1)
  before = np.load(tmp_path / 'train_images.npy')
  rdd_input.cut(str(tmp_path), IMAGES, 99)
  with open(tmp_path / 'train_images.npy', 'rb') as file:
    images = np.lib.format.read_array(file, allow_pickle=False)
  assert np.array_equal(images, before[:99])
  with open(tmp_path / 'train_labels.npy', 'rb') as file:
    labels = np.lib.format.read_array(file, allow_pickle=False)
  assert labels.shape == (99,)


def test_a_part_that_is_too_large_is_refused_while_it_comes(tmp_path):
  def endless():
    while True:
      yield 1, (False, [bytes(6), bytes(4)])

  with pytest.raises(ValueError, match='more than 0.01 MB of examples'):
    rdd_input.spool(endless(), str(tmp_path), IMAGES, limit_mb=0.01)
  assert (tmp_path / 'train_images.npy').stat().st_size < 20_000


def test_a_part_with_no_image_is_counted_as_such(tmp_path):
  assert rdd_input.spool(iter([]), str(tmp_path), IMAGES, limit_mb=1) == 0
