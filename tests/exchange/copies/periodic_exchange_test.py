"""periodic_exchange: an exchange in every T-th step, and its Update."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.copies import local_copies, periodic_exchange


@pytest.fixture
def alone(tf_session):
  """The copies of a process without a cluster: of a number, 4 bytes."""
  copies = local_copies.LocalCopies(cluster_lib.Cluster())
  with copies.scope():
    tf.get_variable('number', [], initializer=tf.zeros_initializer())
  return copies


def initialize(session):
  session.run(tf.global_variables_initializer())
  session.run(tf.local_variables_initializer())


@pytest.mark.parametrize('period, due', [(1, [1, 2, 3, 4]), (3, [3])])
def test_every_runs_the_exchange_when_the_period_divides_the_step(
  tf_session, alone, period, due
):
  step = tf.placeholder(tf.int64, [])
  known_step = alone.make_counter(100, 'known_step')
  exchanges = alone.make_counter(0, 'exchanges')

  def exchange():
    return 200 + exchanges.assign_add(1), tf.constant(7, tf.int64)

  results = periodic_exchange.every(period, step, exchange, known_step)
  initialize(tf_session)
  last = 100
  for i in range(1, 5):
    is_due = i in due
    if is_due:
      last = 200 + 1 + due.index(i)
    found = tf_session.run(results, {step: i})
    assert found == (last, 7 if is_due else -1, is_due)
    assert tf_session.run(known_step) == last
  assert tf_session.run(exchanges) == len(due)


def test_every_counts_0_as_divided(tf_session, alone):
  results = periodic_exchange.every(
    3,
    tf.constant(0, tf.int64),
    lambda: (tf.constant(5, tf.int64), tf.constant(0, tf.int64)),
    alone.make_counter(0, 'known_step'),
  )
  initialize(tf_session)
  assert tf_session.run(results) == (5, 0, True)


def test_what_is_left_out_of_a_step_is_in_a_collection(tf_session, alone):
  step = tf.placeholder(tf.int64, [])
  known_step = alone.make_counter(100, 'known_step')

  def exchange():
    return tf.constant(5, tf.int64), tf.constant(0, tf.int64)

  periodic_exchange.every(1, step, exchange, known_step)
  assert not periodic_exchange.get_all()
  results = periodic_exchange.every(3, step, exchange, known_step)
  [found] = periodic_exchange.get_all()
  assert (found.period, found.step) == (3, step)
  assert tuple(found.outputs) == results
  initialize(tf_session)
  assert tf_session.run(found.without, {step: 1}) == [100, -1, False]
