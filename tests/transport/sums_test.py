"""sums: what is added up over workers, steps and slices, of 16 bits."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.nn import gradient_accumulation, optimizers
from distmnist.strategies import agn, bmuf, dc_asgd, easgd, sagn, sync_sgd
from distmnist.transport import model_state, sharding, sums, weight_averages
from tests.support import stepper as stepper_lib

RATE = 1e-5


@pytest.mark.parametrize(
  ('dtype', 'expected'),
  [
    ('float16', 'float32'),
    ('bfloat16', 'float32'),
    ('float32', 'float32'),
    ('float64', 'float64'),
    ('int64', 'int64'),
  ],
)
def test_what_has_16_bits_is_added_up_in_32(dtype, expected):
  assert sums.choose_dtype(tf.as_dtype(dtype)).name == expected
  with tf.Graph().as_default() as graph:
    given = tf.zeros([2], dtype)
    num_ops = len(graph.get_operations())
    assert sums.widen(given).dtype.name == expected
    is_same = dtype == expected
    assert len(graph.get_operations()) - num_ops == (0 if is_same else 1)


def build(dtype, x):
  """Returns (w, loss): a weight from 0 on whose gradient is x."""
  w = tf.get_variable('w', [1], dtype, tf.zeros_initializer())
  return w, tf.reduce_sum(tf.cast(w, tf.float32) * x)


# What all workers push is finite, and so is its mean; the sum is not.
@pytest.mark.daily(but=['rule0-2-40000.0-1-1', 'rule4-2-40000.0-2-2'])
@pytest.mark.slow
@pytest.mark.parametrize(
  ('rule', 'num_workers', 'gradient', 'num_steps', 'expected'),
  [
    (
      functools.partial(sync_sgd.SyncSgd, replicas_to_aggregate=2),
      2,
      4e4,
      1,
      1,
    ),
    (
      functools.partial(
        sync_sgd.SyncSgd, replicas_to_aggregate=2, barrier='shard'
      ),
      *(2, 4e4, 1, 1),
    ),
    (
      functools.partial(
        sagn.Sagn, communication_period=2, replicas_to_aggregate=2
      ),
      *(2, 4e4, 2, 1),
    ),
    (functools.partial(agn.Agn, communication_period=10), 1, 1e4, 10, 1),
    # Each worker steps twice.
    (
      functools.partial(
        bmuf.Bmuf, communication_period=2, momentum=0.5, learning_rate=1
      ),
      *(2, 4e4, 2, 2),
    ),
    # Its g (.) g is no number of 16 bits.
    (functools.partial(dc_asgd.DcAsgd, dc_lambda=0.04), 1, 3e2, 1, 1),
    (functools.partial(dc_asgd.DcAsgd, dc_lambda=2.0, decay=0.9), 1, 3e2, 1, 1),
  ],
)
def test_a_sum_of_float16_does_not_overflow(
  make_cluster, rule, num_workers, gradient, num_steps, expected
):
  cluster = make_cluster(1, num_workers)
  stepper = stepper_lib.Stepper(
    cluster, rule, rate=RATE, build=functools.partial(build, tf.float16)
  )
  for _ in range(num_steps):
    stepper.step_together([[gradient]] * num_workers)
  [found] = stepper.read_center()
  assert found == pytest.approx(-expected * gradient * RATE, rel=0.003)
  stepper.close()


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
  ],
)
def test_a_mean_that_overflows_moves_nothing(make_cluster, rule):
  stepper = stepper_lib.Stepper(
    make_cluster(1, 2), rule, build=functools.partial(build, tf.bfloat16)
  )
  stepper.step_together([[3e38], [3e38]])
  assert stepper.read_center() == [0]
  stepper.step_together([[1.0], [2.0]])
  assert stepper.read_center() == [-0.75]
  stepper.close()


@pytest.mark.slow
def test_changes_whose_sum_overflows_move_nothing(make_cluster):
  stepper = stepper_lib.Stepper(
    make_cluster(1, 2),
    lambda member: easgd.Easgd(member, 0.9, 1, is_sync=True),
    rate=1.0,
    build=functools.partial(build, tf.float16),
  )
  for _ in range(2):  # 0.9 times 60,000 of each worker.
    stepper.step_together([[-6e4], [-6e4]])
  assert stepper.read_center() == [0]
  stepper.close()


@pytest.mark.slow
def test_slices_are_added_up_in_32_bits(tf_session):
  w = tf.get_variable('w', [1], tf.float16, tf.zeros_initializer())
  gates = [tf.identity(tf.constant(4e4)) for _ in range(3)]
  losses = [tf.reduce_sum(tf.cast(w, tf.float32) * gate) for gate in gates]
  loss = gradient_accumulation.build_mean(losses, [gate.op for gate in gates])
  optimizer = optimizers.make_optimizer('sgd', RATE)
  [(gradient, _)] = optimizer.compute_gradients(loss)
  assert gradient.dtype == tf.float16
  tf_session.run(tf.global_variables_initializer())
  np.testing.assert_allclose(tf_session.run(gradient), [4e4], rtol=1e-3)


def test_what_towers_leave_in_a_variable_is_added_up_in_32_bits(tf_session):
  state = model_state.ModelState(cluster_lib.Cluster(), is_lock_step=False)
  state.activate()
  average = tf.get_variable(
    'average', [1], tf.float16, tf.zeros_initializer(), trainable=False
  )
  for value in 4e4, 5e4:
    model_state.change(average, tf.constant([value], tf.float16))
  state.build_updates()
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
  np.testing.assert_allclose(tf_session.run(average), [4.5e4], rtol=1e-3)


@pytest.mark.parametrize('dtype', [tf.float16, tf.bfloat16])
@pytest.mark.slow
@pytest.mark.parametrize('num_shards', [0, 2])
def test_the_average_of_weights_reaches_them(tf_session, dtype, num_shards):
  step = tf.train.get_or_create_global_step()
  with sharding.sharded(num_shards):
    tf.get_variable('w', [2, 2], dtype, initializer=tf.zeros_initializer())
  shards = tf.trainable_variables()
  average = weight_averages.WeightAverages(shards, 0.999, step)
  assert [v.dtype.base_dtype for v in average.variables] == [dtype] * len(
    shards
  )
  with tf.control_dependencies([step.assign_add(1)]):
    move = average.move_after([tf.no_op()])
  tf_session.run(tf.global_variables_initializer())
  tf_session.run([v.assign(tf.ones(v.shape, dtype)) for v in shards])
  left = 1.0
  for t in range(1, 1501):
    tf_session.run(move)
    left *= min(0.999, (1 + t) / (10 + t))
  expected = np.array(1 - left).astype(dtype.as_numpy_dtype)
  for found in tf_session.run(average.variables):
    last_bit = 2**-10 if dtype == tf.float16 else 2**-8
    assert abs(found.astype(float) - float(expected)).max() <= last_bit


@pytest.mark.slow
def test_block_momentum_grows_by_what_is_below_its_last_bit(tf_session):
  rule = bmuf.Bmuf(cluster_lib.Cluster(), 1, 1.0, 1.0)
  with rule.scope():
    tf.get_variable('w', [2], tf.bfloat16, initializer=tf.zeros_initializer())
  update = rule._filter([tf.constant([2**-10, 2**-9], tf.bfloat16)])
  tf_session.run(tf.global_variables_initializer())
  for _ in range(600):
    tf_session.run(update)
  [delta] = [v for v in tf.global_variables() if 'block_delta' in v.op.name]
  assert tf_session.run(delta).tolist() == [600 * 2**-10, 600 * 2**-9]
