"""gradients: which variables a loss moves, and gradients as one tensor."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.transport import gradients


def test_what_has_a_gradient_is_moved():
  assert gradients.find_moved([(None, 'a'), (1, 'b')]) == [(1, 'b')]


@pytest.mark.parametrize('pairs', [[], [(None, 'a'), (None, 'b')]])
def test_a_loss_that_moves_nothing_is_refused(pairs):
  message = '^the loss has no gradient for any trainable variable: it uses none'
  with pytest.raises(cli.UsageError, match=message):
    gradients.find_moved(pairs)


def test_rows_become_one_tensor_where_each_is_summed_up(tf_session):
  values, rows = tf.constant([[1.0], [2], [4]]), tf.constant([2, 0, 2])
  slices = tf.IndexedSlices(values, rows, tf.constant([3, 1]))
  found = tf_session.run(gradients.make_dense(slices))
  assert found.tolist() == [[2], [0], [5]]
  assert gradients.make_dense(values) is values
