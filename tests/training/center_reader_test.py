"""center_reader: the center's values in place of what a worker has."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.training import center_reader


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
