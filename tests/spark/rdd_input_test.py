import numpy as np
import pytest

from distmnist.spark import rdd_input

SHAPE = (2, 3, 1)


def make_records(num_train, num_test=0):
  return [
    (1, (is_test, bytes([i] * 6), i % 10))
    for is_test, n in ((False, num_train), (True, num_test))
    for i in range(n)
  ]


@pytest.mark.parametrize(
  'image',
  [
    bytes(range(6)),
    bytearray(range(6)),
    np.arange(6, dtype=np.uint8).reshape(SHAPE),
    np.arange(6.0),
    [[0, 1, 2], [3, 4, 5]],
  ],
)
def test_an_image_may_be_of_many_kinds(image):
  assert rdd_input.pack(image, 3, SHAPE, 10) == (bytes(range(6)), 3)


@pytest.mark.parametrize(
  ('image', 'label', 'words'),
  [
    (b'12345', 0, r'an image of 5 values, expected 6: .* \(2, 3, 1\)'),
    ([0, 1, 2, 3, 4, 256], 0, 'out of 0..255'),
    ([0, 1, 2, 3, 4, -1], 0, 'out of 0..255'),
    (['a'] * 6, 0, 'out of 0..255'),
    (np.full(6, np.nan), 0, 'out of 0..255'),
    ([], 0, 'out of 0..255'),
    (b'123456', 10, 'label 10, expected 0 to 9'),
    (b'123456', 1.5, 'label 1.5, expected'),
    (b'123456', -1, 'label -1, expected 0 to 9'),
  ],
)
def test_what_is_no_image_or_label_is_refused(image, label, words):
  with pytest.raises(ValueError, match=words):
    rdd_input.pack(image, label, SHAPE, 10)


class FakeRdd:
  """An RDD of which only its first records may be asked for."""

  def __init__(self, records):
    self._records = records

  def take(self, number):
    return self._records[:number]


@pytest.mark.parametrize(
  'records, words',
  [
    ([], 'it has no image'),
    ([(b'12345', 0)], r'an image of 5 values, expected 6'),
    ([(b'123456', 10)], 'label 10, expected 0 to 9'),
  ],
)
def test_the_first_image_is_looked_at_before_spark_has_any_job(records, words):
  with pytest.raises(ValueError, match=words):
    rdd_input.check_first(FakeRdd(records), SHAPE, 10)


def test_one_good_image_is_enough_to_begin():
  records = [(b'123456', 1), 'no pair at all']
  rdd_input.check_first(FakeRdd(records), SHAPE, 10)


def test_the_workers_get_equal_parts():
  counts = [0, 0, 0]
  for split in range(5):
    pairs = [(b'', i) for i in range(7)]
    for key, (is_test, _, label) in rdd_input._deal(split, pairs, 2, 3):
      assert not is_test
      assert label in range(7)
      counts[key - 2] += 1
  assert sum(counts) == 35
  assert max(counts) - min(counts) <= 1


def test_what_is_spooled_is_what_numpy_reads(tmp_path):
  records = iter(make_small_records(300) + make_records(0, 20))
  num = rdd_input.spool(records, str(tmp_path), SHAPE, limit_mb=1)
  assert num == 300
  images = np.load(tmp_path / 'train_images.npy', allow_pickle=False)
  labels = np.load(tmp_path / 'train_labels.npy', allow_pickle=False)
  assert images.shape == (300, *SHAPE)
  assert [image.tobytes() for image in images[:256]] == [
    bytes([i] * 6) for i in range(256)
  ]
  assert labels.tolist() == [i % 10 for i in range(300)]
  assert np.load(tmp_path / 'test_images.npy').shape == (20, *SHAPE)


def make_small_records(n):
  return [(1, (False, bytes([i % 256] * 6), i % 10)) for i in range(n)]


def test_the_parts_are_cut_to_one_size(tmp_path):
  rdd_input.spool(iter(make_small_records(1001)), str(tmp_path), SHAPE, 1)
  before = np.load(tmp_path / 'train_images.npy')
  rdd_input.cut(str(tmp_path), 99)
  with open(tmp_path / 'train_images.npy', 'rb') as file:
    images = np.lib.format.read_array(file, allow_pickle=False)
  assert np.array_equal(images, before[:99])
  with open(tmp_path / 'train_labels.npy', 'rb') as file:
    labels = np.lib.format.read_array(file, allow_pickle=False)
  assert labels.shape == (99,)


def test_a_part_that_is_too_large_is_refused_while_it_comes(tmp_path):
  def endless():
    while True:
      yield 1, (False, bytes(6), 0)

  with pytest.raises(ValueError, match='more than 0.01 MB of images'):
    rdd_input.spool(endless(), str(tmp_path), SHAPE, limit_mb=0.01)
  assert (tmp_path / 'train_images.npy').stat().st_size < 20_000


def test_a_part_with_no_image_is_counted_as_such(tmp_path):
  assert rdd_input.spool(iter([]), str(tmp_path), SHAPE, limit_mb=1) == 0
