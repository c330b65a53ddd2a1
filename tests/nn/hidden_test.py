"""hidden: dense layers, whole or in slices."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.nn import hidden
from distmnist.transport import variable_lists


def test_one_slice_is_the_plain_layer(set_flags):
  set_flags()
  with tf.Graph().as_default():
    outputs = hidden.make([4, 3], tf.nn.relu)(tf.zeros([2, 5]), True)
    assert outputs.shape == [2, 3]
    assert not tf.get_collection(variable_lists.IN_PLACE)
    names = [variable.op.name for variable in tf.trainable_variables()]
  assert names == [
    f'hidden{i}/{kind}' for i in (1, 2) for kind in ('weights', 'biases')
  ]


@pytest.mark.slow
def test_evaluation_has_the_whole_layer(set_flags):
  set_flags('--vertical_slices=2')
  with tf.Graph().as_default():
    build = hidden.make([4], tf.nn.relu, name='dense')
    assert build(tf.zeros([2, 5]), False).shape == [2, 4]
    assert [v.op.name for v in tf.trainable_variables()] == [
      'dense1/weights',
      'dense1/biases',
    ]
  with tf.Graph().as_default():
    assert build(tf.zeros([2, 5]), True).shape == [2, 4]
    assert len(tf.get_collection(variable_lists.IN_PLACE)) == 4


def test_more_slices_than_units_are_refused(set_flags):
  set_flags('--vertical_slices=4')
  with pytest.raises(
    cli.UsageError, match='^--vertical_slices=4, but a hidden layer has 3 units'
  ):
    hidden.make([5, 3], tf.nn.relu)
