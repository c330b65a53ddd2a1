"""tfrecord: records by their numbers; files that are not what they were."""

import errno
import gzip
import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.readers import tfrecord


def make_record(values):
  """Returns the bytes of a tf.train.Example of {name: bytes or int}."""
  example = tf.train.Example()
  for name, value in values.items():
    feature = example.features.feature[name]
    is_bytes = isinstance(value, bytes)
    kind = feature.bytes_list if is_bytes else feature.int64_list
    kind.value.append(value)
  return example.SerializeToString()


def write(path, numbers):
  with tf.io.TFRecordWriter(str(path)) as writer:
    for number in numbers:
      text = b'x' * (number % 7) + b'%d' % number
      writer.write(make_record({'text': text, 'number': number}))
  return path


def parse(records):
  found = tf.io.parse_example(
    records,
    {
      'text': tf.io.FixedLenFeature([], tf.string),
      'number': tf.io.FixedLenFeature([], tf.int64),
    },
  )
  return {'text': found['text']}, found['number']


def test_each_record_is_read_by_its_number(tmp_path):
  write(tmp_path / 'a-0', range(300))
  write(tmp_path / 'a-1', [])
  write(tmp_path / 'a-2', range(300, 310))
  reader = tfrecord.Reader(f'{tmp_path}/a-*', parse, window=5)
  assert reader.num_examples == 310 and reader.window == 5
  assert reader.block_sizes.tolist() == [256, 44, 10]
  x, y = reader.read(np.array([305, 0, 299, 300, 256]))
  assert y.tolist() == [305, 0, 299, 300, 256]
  assert x['text'].tolist()[:2] == [b'xxxx305', b'0']


@pytest.mark.parametrize(
  'content, message',
  [
    (b'just some text, and more of it', 'is not a TFRecord file'),
    (b'short', 'is not a TFRecord file'),
    (
      gzip.compress(b'a' * 100, mtime=0),
      'is not a TFRecord file',
    ),
  ],
)
def test_a_file_of_another_kind_is_named(tmp_path, content, message):
  (tmp_path / 'a').write_bytes(content)
  with pytest.raises(ValueError, match=f'^{tmp_path}/a {message}'):
    tfrecord.Reader(str(tmp_path / 'a'), parse)


@pytest.mark.parametrize('left', [1, 14, 17])
def test_a_file_that_was_cut_is_named(tmp_path, left):
  path = write(tmp_path / 'a', range(3))
  whole = path.read_bytes()
  path.write_bytes(whole[:-left])
  with pytest.raises(ValueError, match='not whole: its record at byte [0-9,]+'):
    tfrecord.Reader(str(path), parse)


@pytest.mark.parametrize('place', [13, 21])
def test_a_record_that_is_not_what_was_written_is_named(tmp_path, place):
  path = tmp_path / 'a'
  with tf.io.TFRecordWriter(str(path)) as writer:
    for number in range(3):
      writer.write(b'text %d.' % number)
  damaged = bytearray(path.read_bytes())
  damaged[24 + place] ^= 4  # In its text, or in the checksum of that.
  path.write_bytes(damaged)
  reader = tfrecord.Reader(str(path), lambda texts: (texts, texts))
  assert reader.read(np.array([2, 0]))[0].tolist() == [b'text 2.', b'text 0.']
  with pytest.raises(ValueError, match=f'^{path} is damaged: its record 1, '):
    reader.read(np.array([2, 0, 1]))


def test_a_record_that_cannot_be_parsed_is_named(tmp_path):
  write(tmp_path / 'a-0', range(3))
  with tf.io.TFRecordWriter(f'{tmp_path}/a-1') as writer:
    for values in ({'text': b'', 'number': 3}, {'text': b'no number'}):
      writer.write(make_record(values))
  reader = tfrecord.Reader(f'{tmp_path}/a-*', parse)
  reader.read(np.arange(4))
  message = f'^{tmp_path}/a-1: its record 1, .* parsed: .*number.* is required'
  with pytest.raises(ValueError, match=message):
    reader.read(np.array([0, 4, 3]))


def test_files_in_gzip_are_unpacked_once(tmp_path, cache_folder):
  content = write(tmp_path / 'b', range(300)).read_bytes()
  for part in range(2):
    (tmp_path / f'a-{part}').write_bytes(gzip.compress(content))
  write(tmp_path / 'a-2', [7])
  (tmp_path / 'a-3').write_bytes(gzip.compress(b''))
  reader = tfrecord.Reader(f'{tmp_path}/a-*', parse)
  assert reader.block_sizes.tolist() == [256, 44, 256, 44, 1]
  numbers = np.array([599, 0, 300, 600])
  assert reader.read(numbers)[1].tolist() == [299, 0, 0, 7]
  [unpacked] = cache_folder.glob('*/*.rows')
  os.remove(unpacked)  # Others needed the room.
  assert reader.read(numbers)[1].tolist() == [299, 0, 0, 7]
  assert not [*cache_folder.glob('*/*.rows')]


def test_a_disk_that_fails_is_not_the_cache_s_fault(tmp_path, monkeypatch):
  path = tmp_path / 'a'
  path.write_bytes(gzip.compress(write(tmp_path / 'b', range(3)).read_bytes()))

  def fail(self, size):
    raise OSError(errno.EIO, os.strerror(errno.EIO))

  monkeypatch.setattr(gzip.GzipFile, 'read', fail)
  with pytest.raises(OSError, match=f'{path}') as caught:
    tfrecord.Reader(path, parse)
  assert caught.value.errno == errno.EIO


@pytest.mark.parametrize('damage', ['cut', 'records'])
def test_a_file_in_gzip_that_is_damaged_is_named(tmp_path, damage):
  content = write(tmp_path / 'b', range(300)).read_bytes()
  if damage == 'cut':
    content = gzip.compress(content)[:-9]
  else:
    content = gzip.compress(content[:-1])
  (tmp_path / 'a').write_bytes(content)
  with pytest.raises(
    ValueError, match=f'^{tmp_path}/a (cannot be|is not whole)'
  ):
    tfrecord.Reader(tmp_path / 'a', parse)


@pytest.fixture
def grown(tmp_path):
  """(reader, path of its first file)."""
  write(tmp_path / 'a-0', range(3))
  write(tmp_path / 'a-1', range(3, 9))
  return tfrecord.Reader(f'{tmp_path}/a-*', parse), tmp_path / 'a-0'


@pytest.mark.parametrize(
  'change',
  [
    lambda old: old[:-1],
    lambda old: b'',
    lambda old: old[:-1] + bytes([old[-1] ^ 1]),
    lambda old: b'.' + old,
  ],
)
def test_a_file_that_is_not_what_it_was_is_named(grown, change):
  reader, path = grown
  path.write_bytes(change(path.read_bytes()))
  with pytest.raises(ValueError, match='/a-0 has changed since the training'):
    reader.read(np.array([1]))


def test_a_file_may_grow(grown):
  reader, path = grown
  with open(path, 'ab') as file:
    file.write(b'more')
  assert reader.read(np.array([1, 0, 8]))[1].tolist() == [1, 0, 8]


def test_a_file_that_has_become_a_folder_is_named(grown):
  reader, path = grown
  os.remove(path)
  os.mkdir(path)
  with pytest.raises(IsADirectoryError, match='/a-0'):
    reader.read(np.array([1]))
