"""signature: what a SavedModel takes, as a person reads it."""

import tensorflow.compat.v1 as tf

from distmnist.serving import signature


def test_shapes_begin_with_the_number_of_examples():
  assert (
    signature.describe(
      {
        'x': tf.TensorSpec([None, 2], tf.float32),
        'words': tf.TensorSpec([None, None], tf.string),
        'one': tf.TensorSpec([1], tf.int32),
        'any': tf.TensorSpec(None, tf.bool),
      }
    )
    == 'x float32 [n, 2], words string [n, ?], one int32 [1], any bool of any '
    'shape'
  )
