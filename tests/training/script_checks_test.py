"""script_checks: what a script asks in vain, each in one line."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli, refusals
from distmnist.training import script_checks

_CLUSTER = cluster_lib.Cluster(('a:1',), ('b:1', 'c:1'), 'worker')


@pytest.mark.parametrize(
  'name, value',
  [('steps_per_run', 2), ('gradient_accumulation', 4), ('train_secs', 9)],
)
def test_a_flag_of_our_own_loop_is_refused(set_flags, name, value):
  refusals.refuse(script_checks.REFUSALS)
  set_flags(f'--{name}={value}')
  with pytest.raises(cli.UsageError, match=f'--{name}={value} has no effect'):
    refusals.refuse(script_checks.REFUSALS)


def test_minimize_takes_a_function():
  script_checks.check_builder(lambda: None)
  with tf.Graph().as_default():
    loss = tf.constant(1.0)
  with pytest.raises(cli.UsageError, match='a tensor of float32 and shape'):
    script_checks.check_builder(loss)


def test_a_loss_is_one_float():
  with tf.Graph().as_default():
    script_checks.check_loss(tf.constant(1.0))
    script_checks.check_loss(tf.constant(1.0, tf.float64))
    script_checks.check_loss(tf.placeholder(tf.float32))
    for wrong, said in (
      (None, 'NoneType'),
      ((tf.constant(1.0), 2), 'tuple'),
      (tf.zeros([3]), r'shape \(3,\)'),
      (tf.constant(1), 'int32'),
    ):
      with pytest.raises(cli.UsageError, match=f'gives .*{said}.*, expected'):
        script_checks.check_loss(wrong)


def test_a_session_takes_a_number_and_a_list_of_hooks():
  hook = tf.train.SessionRunHook()
  script_checks.check_session(10, ())
  script_checks.check_session(10, [hook])
  for last_step, hooks, said in (
    (None, (), 'last_step=None'),
    (1e4, (), 'last_step=10000.0'),
    (10, hook, r'hooks=SessionRunHook\)'),
    (10, [str], r'hooks=\[type\]'),
  ):
    with pytest.raises(cli.UsageError, match=said):
      script_checks.check_session(last_step, hooks)


def test_a_variable_of_all_workers_is_on_a_ps():
  with tf.Graph().as_default():
    with tf.device(_CLUSTER.device_setter()):
      tf.get_variable('kept', [])
    tf.get_variable('own', [], collections=[tf.GraphKeys.LOCAL_VARIABLES])
    script_checks.check_places(_CLUSTER)
    tf.get_variable('counter', [], trainable=False)
    script_checks.check_places(cluster_lib.Cluster())
    with pytest.raises(cli.UsageError, match="'counter' is made outside"):
      script_checks.check_places(_CLUSTER)
