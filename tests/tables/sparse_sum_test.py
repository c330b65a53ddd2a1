"""sparse_sum: a mean over all that contribute, of rows that some have."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.tables import sparse_sum


class Sum:
  """A SparseSum of a table [5, 2], and its ops."""

  def __init__(self):
    table = tf.get_variable('t', [5, 2], initializer=tf.zeros_initializer())
    self.values = tf.placeholder(tf.float32, [None, 2])
    self.rows = tf.placeholder(tf.int64, [None])
    self.step = tf.placeholder(tf.int64, [])
    self.sum = sparse_sum.SparseSum(table, 'sum')
    slices = tf.IndexedSlices(
      self.values, self.rows, tf.constant([5, 2], tf.int64)
    )
    self.apply = self.sum.apply_grad(slices, self.step)
    self.take = self.sum.take_grad(2)
    self.count = sparse_sum.make_same(self.sum).num_accumulated()
    self.empty = sparse_sum.take_all(self.sum, self.step)


@pytest.fixture
def total(tf_session):
  total = Sum()

  def apply(rows, values, step=0):
    feed = {total.rows: rows, total.step: step}
    tf_session.run(total.apply, feed | {total.values: values})

  total.add = apply
  total.run = tf_session.run
  return total


def test_who_has_no_such_row_counts_as_zeros(total):
  total.add([1, 3], [[2, 2], [4, 4]])
  total.add([3, 4], [[6, 0], [8, 8]])
  mean = total.run(total.take)
  assert mean.indices.tolist() == [1, 3, 4]
  assert mean.values.tolist() == [[1, 1], [5, 2], [4, 4]]


def test_a_contribution_may_have_no_row(total):
  nothing = tf.zeros([0, 2]).eval(session=tf.Session())
  total.add([], nothing)
  total.add([2], [[2, 4]])
  mean = total.run(total.take)
  assert (mean.indices.tolist(), mean.values.tolist()) == ([2], [[1, 2]])
  total.add([], nothing, step=1)
  total.add([], nothing, step=1)
  assert total.run(total.take).indices.tolist() == []


@pytest.mark.parametrize('number', [0, 3])
def test_what_was_contributed_can_be_thrown_away(total, number):
  for _ in range(number):
    total.add([2], [[2, 4]])
  assert total.run(total.count) == number
  total.run(total.empty, {total.step: 0})
  assert total.run(total.count) == 0


def test_a_dense_one_is_thrown_away_and_found_as_well(tf_session):
  dense = tf.ConditionalAccumulator(tf.float32, [2], shared_name='dense')
  given = dense.apply_grad([1.0, 2.0], 0)
  count = sparse_sum.make_same(dense).num_accumulated()
  empty = sparse_sum.take_all(dense, tf.constant(0, tf.int64))
  for number in (0, 1):
    for _ in range(number):
      tf_session.run(given)
    assert tf_session.run(count) == number
    tf_session.run(empty)
  assert tf_session.run(count) == 0
