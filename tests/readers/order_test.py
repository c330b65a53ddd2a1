"""The first 1,000 batches of each reader, as the first version had them."""

import hashlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import data_order, streamed
from distmnist.readers import csv, parquet, tfrecord

_NUM_ROWS = 5000, 0, 700, 1301


def write_csv(folder):
  n = 0
  for part, size in enumerate(_NUM_ROWS):
    end = '\r\n' if part == 2 else '\n'
    with open(f'{folder}/{part}', 'w', encoding='utf-8', newline='') as file:
      file.write(f'id,price,text,y{end}' if size else '')
      for i in range(n, n + size):
        text = ['"x, y"', 'plain', '', '"qu""ote"', 'ünï', ' sp '][i % 6]
        price = ['1e-20', '-0.0', ' 2.5', '+3', str(i / 7)][i % 5]
        blank = end * (i % 100 == 0)
        file.write(f'{i},{price},{text},{i % 2 or ""}{end}{blank}')
      n += size
  names = {'numbers': ['id', 'price'], 'text': 'text'}
  return csv.Reader(f'{folder}/*', names, 'y', window=3, missing=-1)


def write_parquet(folder):
  pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed')
  from pyarrow import parquet as pq  # noqa: PLC0415  Where there is pyarrow.

  n = 0
  for part, size in enumerate(_NUM_ROWS):
    rows = np.arange(n, n + size)
    table = {
      'd': rows / 7,
      't': [f'text {i % 97}' for i in rows],
      'c': pa.array([f'c{i % 7}' for i in rows]).dictionary_encode(),
      'v': pa.array([[i, i + 1] for i in rows], pa.list_(pa.int16())),
      'y': pa.array(rows % 2 == 0, pa.bool_()),
    }
    pq.write_table(pa.table(table), f'{folder}/{part}', row_group_size=300)
    n += size
  names = {'d': 'd', 'v': 'v'}, ('t', 'c')
  return parquet.Reader(f'{folder}/*', names, 'y', window=4)


def write_tfrecord(folder):
  n = 0
  for part, size in enumerate(_NUM_ROWS):
    with tf.io.TFRecordWriter(f'{folder}/{part}') as writer:
      for i in range(n, n + size):
        writer.write(b'%d' % i)
      n += size

  def parse(records):
    return records, tf.strings.to_number(records, tf.int64)

  return tfrecord.Reader(f'{folder}/*', parse, window=5)


@pytest.mark.slow
@pytest.mark.parametrize(
  'make, expected',
  [
    (write_csv, ['b387c0138bb3', 'c1130bd20adb', 'ab78595585d6']),
    (write_parquet, ['70c1fd3c3a0a', '443bb0d0020a', '786e29a5ad8f']),
    (write_tfrecord, ['64791aee9f42', '47e6fa72302d', '72f05d6da7ef']),
  ],
)
def test_a_seed_gives_the_same_batches_as_ever(
  tmp_path, set_flags, make, expected
):
  set_flags()
  examples = streamed.Streamed(make(tmp_path))
  assert examples.num_examples == 7001
  found = []
  for seed, worker in ((0, None), (7, None), (7, 2)):
    order = data_order.Order(7001, seed, worker, examples.blocks)
    checksum = hashlib.sha256()
    for first in range(0, 1000, 10):  # Batches of 20: nearly three epochs.
      places = np.arange(first * 20, (first + 10) * 20)
      row = np.append(first, order.find_images(places))
      for array in examples.take(row):
        checksum.update(f'{array.dtype}{array.shape}'.encode())
        is_text = array.dtype == object
        checksum.update(b'|'.join(array) if is_text else array.tobytes())
    found.append(checksum.hexdigest()[:12])
  assert found == expected
