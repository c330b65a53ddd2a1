"""dataset: a tf.data.Dataset that is told what to make."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.readers import dataset


def stream(indices):
  return indices.map(lambda i: ({'square': i * i}, tf.strings.as_string(i)), 4)


@pytest.mark.slow
def test_it_makes_the_examples_that_are_asked_for_in_their_order():
  reader = dataset.Reader(10, stream)
  for numbers in ([7, 2, 9], [0], list(range(10))):
    x, y = reader.read(np.array(numbers))
    assert x['square'].tolist() == [n * n for n in numbers]
    assert y.tolist() == [b'%d' % n for n in numbers]


@pytest.mark.slow
def test_what_it_leaves_out_or_adds_is_seen():
  reader = dataset.Reader(4, lambda indices: stream(indices).skip(1))
  assert len(reader.read(np.array([1, 2, 3]))[1]) == 2
  with pytest.raises(ValueError, match='gave no example for 1 numbers'):
    reader.read(np.array([1]))
  reader = dataset.Reader(4, lambda indices: stream(indices).repeat(2))
  assert len(reader.read(np.array([1, 2, 3]))[1]) == 4


@pytest.mark.parametrize(
  'num_examples, stream, message',
  [
    (None, stream, 'num_examples is None: expected how many examples stream'),
    (0, stream, 'num_examples is 0'),
    (3, lambda indices: indices, r'other things than \(x, y\): expected those'),
  ],
)
def test_what_is_no_stream_of_examples_is_named(num_examples, stream, message):
  with pytest.raises(ValueError, match=message):
    dataset.Reader(num_examples, stream)


@pytest.mark.slow
def test_a_lookup_table_is_filled():
  def look_up(indices):
    given = tf.lookup.KeyValueTensorInitializer(['0', '1'], [5, 6])
    table = tf.lookup.StaticHashTable(given, 0)
    return indices.map(lambda i: (i, table.lookup(tf.strings.as_string(i))))

  assert dataset.Reader(3, look_up).read(np.arange(3))[1].tolist() == [5, 6, 0]
