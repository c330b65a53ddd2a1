"""weight_averages: one move for each update, wherever a rule says it is done.

Under each rule, with a whole worker: tests/training/averages_test.py.
"""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.transport import sharding, weight_averages


@pytest.fixture
def session():
  with tf.Graph().as_default(), tf.Session() as session:
    yield session


@pytest.mark.slow
def test_it_moves_as_the_average_of_tensorflow_does(session):
  step = tf.train.get_or_create_global_step()
  weight = tf.get_variable('w', initializer=[1.0, -2.0])
  average = weight_averages.WeightAverages([weight], 0.4, step)
  wanted = tf.train.ExponentialMovingAverage(0.4, step, name='wanted')
  fed = tf.placeholder(tf.float32, [2])
  with tf.control_dependencies([weight.assign(fed), step.assign_add(1)]):
    moves = weight_averages.move_after([tf.no_op()])
    its_move = wanted.apply([weight])
  session.run(tf.global_variables_initializer())
  [own], its = average.variables, wanted.average(weight)
  for value in [3, 4], [0, 1], [9, -9], [2, 2], [5, 0]:
    session.run([moves, its_move], {fed: value})
    found, expected = session.run([own, its])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_of_what_a_rule_says_twice_the_first_counts(session):
  step = tf.train.get_or_create_global_step()
  weight = tf.get_variable('w', initializer=1.0)
  average = weight_averages.WeightAverages([weight], 0.5, step)
  assert not average.is_moved
  op = tf.no_op()
  assert len(weight_averages.move_after([op])) == 2
  assert average.is_moved
  assert weight_averages.move_after([op]) == [op]


def test_without_an_average_nothing_follows(session):
  op = tf.no_op()
  assert weight_averages.move_after([op]) == [op]


def test_the_average_of_shards_is_saved_as_one(session, tmp_path):
  step = tf.train.get_or_create_global_step()
  with sharding.sharded(2):
    tf.get_variable('w', [3, 2], initializer=tf.ones_initializer())
  shards = tf.trainable_variables()
  assert len(shards) == 2
  average = weight_averages.WeightAverages(shards, 0.5, step)
  session.run(tf.global_variables_initializer())
  path = tf.train.Saver(average.variables).save(session, f'{tmp_path}/c')
  reader = tf.train.load_checkpoint(path)
  name = f'w/{weight_averages.NAME}'
  assert reader.get_variable_to_shape_map() == {name: [3, 2]}
