"""center_reader: the center's values in place of what a worker has."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.training import averages, center_reader


@pytest.mark.slow
def test_without_a_ps_the_averages_are_read(set_flags):
  set_flags('--ema_decay=0.9')
  with tf.Graph().as_default(), tf.Session() as session:
    first = tf.zeros([2])
    weights = [
      tf.get_variable(name, initializer=first, use_resource=True)
      for name in 'ab'
    ]
    step = tf.train.get_or_create_global_step()
    average = averages.make(weights, step)
    reader = center_reader.CenterReader(
      {v.op.name: v for v in weights}, weights + average.variables
    )
    x = tf.placeholder(tf.float32, [])
    found = x * (weights[0] + 10 * weights[1])
    wrong = tf.debugging.assert_greater(weights[0].read_value(), 4.5)
    session.run(tf.global_variables_initializer())
    for i, variable in enumerate([*weights, *average.variables]):
      variable.load([i + 2.0] * 2, session)
    np.testing.assert_array_equal(reader.run(session, found, {x: 1}), [54] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError):
      reader.run(session, wrong)
    np.testing.assert_array_equal(session.run(found, {x: 1}), [32] * 2)


@pytest.mark.slow
def test_copies_and_what_is_pulled_have_the_values_of_the_center(set_flags):
  set_flags()
  with tf.Graph().as_default(), tf.Session() as session:
    names = 'copied', 'pulled', 'there'
    center = {
      name: tf.get_variable(name, [2], initializer=tf.ones_initializer())
      for name in names
    }
    copy = tf.get_variable(
      'copy',
      initializer=tf.constant([5.0, 6.0]),
      collections=[tf.GraphKeys.LOCAL_VARIABLES],
      use_resource=True,
    )
    pulled = tf.identity(center['pulled'] * 7)
    reader = center_reader.CenterReader(
      {'copied': copy, 'pulled': pulled, 'there': center['there']},
      center.values(),
    )
    x = tf.placeholder(tf.float32, [])
    found = x * copy.read_value() + pulled + center['there']
    session.run([tf.global_variables_initializer(), copy.initializer])
    np.testing.assert_array_equal(reader.run(session, found, {x: 2}), [4, 4])
    # What it has of its own is as it was, also after an error.
    np.testing.assert_array_equal(session.run(copy), [5, 6])
    wrong = tf.debugging.assert_less(copy.read_value(), 0.0)
    with pytest.raises(tf.errors.InvalidArgumentError):
      reader.run(session, wrong)
    np.testing.assert_array_equal(session.run(copy), [5, 6])
    # What is fetched itself is not fed.
    np.testing.assert_array_equal(reader.run(session, [pulled])[0], [7, 7])
