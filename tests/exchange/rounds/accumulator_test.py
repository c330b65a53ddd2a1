"""Accumulator: means of any float dtype, also where TensorFlow has none."""

import functools

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import contributions
from distmnist.strategies import bmuf, sagn, sync_sgd
from tests.support import stepper as stepper_lib


@pytest.mark.parametrize('dtype', ['float16', 'bfloat16', 'float32', 'float64'])
def test_it_gives_the_mean_in_the_dtype_that_it_takes(tf_session, dtype):
  dtype = tf.as_dtype(dtype)
  own = contributions.Accumulator(dtype, [2], 'a')
  given = [own.apply_grad(tf.constant(g, dtype), 0) for g in ([1, 2], [3, 6])]
  tf_session.run(given)
  mean = own.take_grad(2)
  assert mean.dtype == dtype
  assert tf_session.run(mean).tolist() == [2, 4]


def build(x):
  w = tf.get_variable('w', [2], tf.bfloat16, tf.zeros_initializer())
  return w, tf.reduce_sum((tf.cast(w, tf.float32) - x) ** 2) / 2


@pytest.mark.daily(but=['rule0'])
@pytest.mark.slow
@pytest.mark.parametrize(
  'rule',
  [
    functools.partial(sync_sgd.SyncSgd, replicas_to_aggregate=2),
    functools.partial(
      sync_sgd.SyncSgd, replicas_to_aggregate=2, barrier='shard'
    ),
    functools.partial(
      sagn.Sagn, communication_period=1, replicas_to_aggregate=2
    ),
    functools.partial(
      bmuf.Bmuf, communication_period=1, momentum=0, learning_rate=1
    ),
  ],
)
def test_weights_in_bfloat16_train_in_lock_step(make_cluster, rule):
  stepper = stepper_lib.Stepper(make_cluster(1, 2), rule, size=2, build=build)
  stepper.step_together([[2, 4], [4, 8]])
  assert stepper.read_center() == [1.5, 3]
  stepper.close()
