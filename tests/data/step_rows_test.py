"""A row of numbers for each step of a run, fed in one placeholder."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import step_rows

DEVICE = '/job:worker/task:1/device:CPU:0'


def test_the_first_row_is_the_steps_own_and_others_are_found(tf_session):
  rows = step_rows.build(2)
  others = [step_rows.find_row(rows.fed, i) for i in (1, 2)]
  fed = [[7, 40, 41], [8, 50, 51], [9, 60, 61]]
  found = tf_session.run([rows.row, *others], {rows.fed: fed})
  assert [row.tolist() for row in found] == fed


@pytest.mark.parametrize('batch_size', [1, 100])
def test_a_row_has_a_place_and_as_many_images_as_the_batch(
  tf_session, batch_size
):
  rows = step_rows.build(batch_size)
  assert (rows.fed.dtype, rows.row.dtype) == (tf.int64, tf.int64)
  assert rows.fed.shape.as_list() == [None, 1 + batch_size]
  assert rows.row.shape.as_list() == [1 + batch_size]


def test_a_graph_knows_its_rows(tf_session):
  assert step_rows.get_all() == []
  rows = step_rows.build(3)
  [found] = step_rows.get_all()
  assert found.fed is rows.fed and found.row is rows.row
  with tf.Graph().as_default():
    assert step_rows.get_all() == []


def test_a_row_is_taken_where_the_rows_are(tf_session):
  with tf.device(DEVICE):
    rows = step_rows.build(2)
  with tf.device('/job:ps/task:0'):
    other = step_rows.find_row(rows.fed, 1)
  assert {rows.fed.device, rows.row.device, other.device} == {DEVICE}
  assert other.op.inputs[0].device == DEVICE  # The slice, too.
