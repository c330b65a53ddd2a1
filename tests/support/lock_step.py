"""Least squares by sync_sgd, with workers and ps, and the same in NumPy.

A matrix in shards and a vector: y = x W + b, half the squared error, a batch a
worker and step, and a rate that halves.
"""

import dataclasses

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.nn import optimizers
from distmnist.strategies import sync_sgd
from distmnist.transport import sharding
from tests.support import in_process

NUM_WORKERS, STEPS = 2, 8
RATES = [0.1] * 3 + [0.05] * 5
FLAGS = (
  '--learning_rate=0.1',
  '--lr_schedule=step',
  '--lr_boundaries=3',
  '--lr_decay_rate=0.5',
)
_RNG = np.random.default_rng(11)
START = {
  'weights': _RNG.normal(size=(5, 3)).astype(np.float32),
  'biases': _RNG.normal(size=3).astype(np.float32),
}
X = _RNG.normal(size=(STEPS, NUM_WORKERS, 4, 5)).astype(np.float32)
Y = _RNG.normal(size=(STEPS, NUM_WORKERS, 4, 3)).astype(np.float32)


def train(cluster, wire_dtype='float32'):
  """Returns {name: whole array} of the center after STEPS steps.

  Args:
    cluster: in_process.InProcessCluster of NUM_WORKERS.
    wire_dtype: str, as --wire_dtype.
  """

  def work(index):
    member = dataclasses.replace(cluster.worker(index), wire_dtype=wire_dtype)
    with tf.device(member.device_setter()):
      global_step = tf.train.get_or_create_global_step()
      rule = sync_sgd.SyncSgd(member, NUM_WORKERS)
      x, y = (tf.placeholder(tf.float32, [4, n]) for n in (5, 3))
      with sharding.sharded(member.num_ps), rule.scope():
        weights, biases = (
          tf.get_variable(name, START[name].shape, initializer=_start(name))
          for name in ('weights', 'biases')
        )
      shards = tf.trainable_variables()
      errors = tf.matmul(x, weights) + biases - y
      loss = tf.reduce_mean(tf.reduce_sum(errors**2, 1)) / 2
      make_optimizer, _ = optimizers.from_flags(global_step, NUM_WORKERS)
      update = rule.minimize(loss, make_optimizer, global_step)
      hooks = rule.hooks(in_process.NoStop())
    with cluster.make_session(index, hooks) as session:
      for step in range(STEPS):
        feed = {x: X[step, index], y: Y[step, index]}
        session.run(update.train_op, feed)
      # The others push nothing more: they have no further step.
      return read_whole(session, shards)

  return cluster.run_workers(work)[0]


def compute(step_of):
  """Returns what `train` should, in float64.

  Args:
    step_of: callable(name, w, g, step) -> the array w after a step along g.
  """
  values = {name: value.astype(float) for name, value in START.items()}
  for step in range(STEPS):
    x, y = (
      part[step].astype(float).reshape(-1, part.shape[-1]) for part in (X, Y)
    )
    errors = (x @ values['weights'] + values['biases'] - y) / len(x)
    gradients = {'weights': x.T @ errors, 'biases': errors.sum(0)}
    values = {
      name: step_of(name, value, gradients[name], step)
      for name, value in values.items()
    }
  return values


def check(cluster, oracle):
  """Compares what `train` and `compute` return for an oracle.

  Args:
    cluster: in_process.InProcessCluster of NUM_WORKERS.
    oracle: callable, as `compute` takes it.
  """
  found = train(cluster)
  for name, value in compute(oracle).items():
    np.testing.assert_allclose(
      found[name], value, rtol=0, atol=1e-6, err_msg=name
    )


def read_whole(session, shards):
  """Returns {name: array} of tf.Variable `shards` that were cut in rows."""
  parts = {}
  for shard, value in zip(shards, session.run(shards), strict=True):
    parts.setdefault(shard.op.name.split('/part_')[0], []).append(value)
  return {name: np.concatenate(values) for name, values in parts.items()}


def _start(name):
  def initialize(shape, dtype=None, partition_info=None):
    begin = partition_info.var_offset if partition_info else [0] * len(shape)
    index = tuple(slice(b, b + n) for b, n in zip(begin, shape, strict=True))
    return tf.constant(START[name][index], dtype)

  return initialize
