"""packing: several tensors as one, and back."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.transport import packing


def test_tensors_come_back_from_a_flat_one(tf_session):
  tensors = [tf.reshape(tf.range(6.0), [2, 3]), tf.constant(7.0), tf.zeros([1])]
  flat = packing.flatten(tensors)
  assert flat.shape == [8]
  found = tf_session.run(packing.split_like(flat, tensors))
  for value, tensor in zip(found, tensors, strict=True):
    np.testing.assert_array_equal(value, tf_session.run(tensor))


@pytest.mark.parametrize('shapes', [[], [[]], [[2, 4]], [[3], [1, 2], []]])
@pytest.mark.parametrize('num_rows', [0, 1, 5])
def test_rows_come_back_behind_what_is_small(tf_session, shapes, num_rows):
  draw = np.random.default_rng(0)
  small = [draw.normal(size=shape).astype('float32') for shape in shapes]
  value = draw.normal(size=[num_rows, 4]).astype('float32')
  rows = tf.placeholder(tf.float32, [None, 4])
  tensors = [*map(tf.constant, small), rows]
  packed = packing.pack(tensors)
  unpacked = packing.unpack(packed, tensors)
  for one, other in zip(unpacked, tensors, strict=True):
    assert one.shape.as_list() == other.shape.as_list()
  found, sent = tf_session.run([unpacked, packed], {rows: value})
  for one, other in zip(found, [*small, value], strict=True):
    np.testing.assert_array_equal(one, other)
  # No more than fits less than a row is added.
  size = sum(map(np.size, small))
  assert sent.shape == (num_rows + -(-size // 4), 4)
