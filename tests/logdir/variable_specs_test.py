"""variable_specs: what variables are in a checkpoint, whatever the shards."""

import tensorflow.compat.v1 as tf

from distmnist.logdir import variable_specs
from distmnist.transport import sharding


def test_shards_are_one_variable(tf_session):
  with sharding.sharded(2):
    tf.get_variable('w', [6, 2])
    step = tf.Variable(0, dtype=tf.int64, name='n')
  expected = {'w': ([6, 2], tf.float32), 'n': ([], tf.int64)}
  assert len(tf.global_variables()) == 3
  assert variable_specs.find_all(tf.global_variables()) == expected
  assert variable_specs.find_all({'other': step}) == {'other': ([], tf.int64)}
