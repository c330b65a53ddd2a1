"""Feeds: what goes with one, what train is told, what reaches a worker."""

import numpy as np
import pytest

from distmnist.common import cli
from distmnist.data import array_folder
from distmnist.spark import feed as feed_lib
from distmnist.spark import layouts

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
  ('test_data', 'flags', 'said'),
  [
    (None, [], 'the feed has no test_data: give some'),
    ([], ['--data_dir=/a'], '--data_dir does not go with a feed'),
    ([], ['--epochs_over=dataset'], '--epochs_over does not go with a feed'),
  ],
)
def test_what_does_not_go_together_is_refused(test_data, flags, said):
  with pytest.raises(cli.UsageError, match=said):
    feed_lib.Feed([], test_data).check(flags)


def test_a_function_needs_no_test_data():
  feed_lib.Feed([]).check([], needs_test_data=False)


def test_train_is_told_of_the_images():
  feed = feed_lib.Feed([], [], image_shape=(8, 8, 3), num_classes=7)
  flags = ['--dataset=npy', '--npy_image_shape=8,8,3', '--npy_classes=7']
  assert feed.make_flags([], True) == [
    '--epochs_over=dataset',
    '--validation_images=0',
    *flags,
  ]
  assert feed.make_flags(['--validation_images=5'], True) == [
    '--epochs_over=dataset',
    *flags,
  ]
  assert feed.make_flags([], False) == ['--epochs_over=dataset']


def test_a_first_example_that_cannot_be_used_is_one_line():
  class Empty:
    def take(self, number):
      return []

  with pytest.raises(cli.RunError, match='^data: it has no example$'):
    feed_lib.Feed(Empty()).make_layout(is_images=True)


@pytest.mark.parametrize(
  'records, words',
  [([], 'it has no example'), ([(b'12345', 0)], 'images has the shape')],
)
def test_the_first_image_is_looked_at_before_spark_has_any_job(records, words):
  with pytest.raises(ValueError, match=words):
    feed_lib.check_first(FakeRdd(records), IMAGES)


def test_one_good_image_is_enough_to_begin():
  records = [(b'123456', 1), 'no pair at all']
  assert feed_lib.check_first(FakeRdd(records), IMAGES) is IMAGES


def test_the_first_example_of_a_problem_says_what_the_others_are():
  layout = feed_lib.check_first(FakeRdd([([1.0, 2.0], 1)]), None)
  assert [leaf['shape'] for leaf in layout['leaves']] == [[2], []]


def test_the_columns_of_a_dataframe_are_picked():
  row = {'a': 1, 'b': 2.5, 'kind': 'k', 'target': 3}
  x = {'numbers': ['a', 'b'], 'kind': 'kind'}
  assert feed_lib._columns_of(x) == ['a', 'b', 'kind']
  found, y = feed_lib._pick_row(row, x, 'target')
  assert found['numbers'].tolist() == [1, 2.5]
  assert (found['kind'], y) == ('k', 3)


def test_the_workers_get_equal_parts():
  counts = [0, 0, 0]
  for split in range(5):
    for key, (is_test, _) in feed_lib._deal(split, range(7), 2, 3):
      assert not is_test
      counts[key - 2] += 1
  assert sum(counts) == 35
  assert max(counts) - min(counts) <= 1


def test_what_is_spooled_is_what_numpy_reads(tmp_path):
  records = iter(make_records(300, 20))
  num = feed_lib.spool(records, str(tmp_path), IMAGES, limit_mb=1)
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
  assert feed_lib.spool(iter(records), str(tmp_path), layout, 1) == 5
  feed_lib.cut(str(tmp_path), layout, 4)
  x, y = array_folder.load(tmp_path, 'train')
  assert x['a'].tolist() == [[i, i + 1] for i in range(4)]
  assert x['b'].tolist() == [b'x' * i for i in range(4)]
  assert y.tolist() == [0, 0.5, 1, 1.5]
  assert len(array_folder.load(tmp_path, 'test')[1]) == 0


def test_the_parts_are_cut_to_one_size(tmp_path):
  feed_lib.spool(iter(make_records(1001)), str(tmp_path), IMAGES, 1)
  before = np.load(tmp_path / 'train_images.npy')
  feed_lib.cut(str(tmp_path), IMAGES, 99)
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
    feed_lib.spool(endless(), str(tmp_path), IMAGES, limit_mb=0.01)
  assert (tmp_path / 'train_images.npy').stat().st_size < 20_000


def test_a_part_with_no_image_is_counted_as_such(tmp_path):
  assert feed_lib.spool(iter([]), str(tmp_path), IMAGES, limit_mb=1) == 0
