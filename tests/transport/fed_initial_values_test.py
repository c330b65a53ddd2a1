"""Variables begin with what they are given, in any shards."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.transport import fed_initial_values, sharding

ROWS = np.arange(35, dtype=np.float32).reshape(7, 5)


@pytest.mark.slow
@pytest.mark.parametrize('num_ps', [1, 2, 3])
def test_each_shard_has_its_part(num_ps):
  with tf.Graph().as_default(), tf.Session() as session:
    with sharding.sharded(num_ps):
      rows = tf.get_variable('net/rows', ROWS.shape)
    other = tf.get_variable('other', initializer=9.0)
    fed_initial_values.give('net/rows', lambda: ROWS)
    session.run(
      tf.global_variables_initializer(), fed_initial_values.make_feed()
    )
    np.testing.assert_array_equal(session.run(tf.convert_to_tensor(rows)), ROWS)
    assert session.run(tf.convert_to_tensor(other)) == 9
    shards = [v for v in tf.global_variables() if v.op.name.startswith('net')]
    assert len(shards) == num_ps


def test_values_are_loaded_when_they_are_needed():
  with tf.Graph().as_default():
    fed_initial_values.give('rows', lambda: pytest.fail('it was loaded'))
    assert fed_initial_values.make_feed() == {}  # There is no such variable.
