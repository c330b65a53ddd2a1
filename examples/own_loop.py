"""A script with its own training loop on a cluster: launch --module."""

import distmnist

# isort: split
import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

LAST_STEP = flags.DEFINE_integer('last_step', 2000, 'Where it ends.', 1)


def build_loss(x):
  hidden = tf.get_variable('hidden', [1, 32])
  biases = tf.get_variable('biases', [32])
  outputs = tf.get_variable('outputs', [32, 1])
  found = tf.tanh(x @ hidden + biases) @ outputs
  errors = found - tf.sin(x)
  return tf.reduce_mean(errors**2), {'largest': tf.reduce_max(tf.abs(errors))}


def train(task):
  x = tf.placeholder(tf.float32, [None, 1])
  train_op, loss, outputs = task.minimize(lambda: build_loss(x))
  numbers, step = np.random.default_rng(task.index), None
  test_x = np.linspace(-3, 3, 100)[:, None]
  with task.session(LAST_STEP.value) as session:
    while not session.should_stop():
      batch = numbers.uniform(-3, 3, [50, 1])
      step, loss_v = session.run([train_op, loss], {x: batch})
    if step:  # None if the run had already ended.
      largest = task.evaluate(outputs['largest'], {x: test_x})
      print(
        f'worker {task.index}: loss {loss_v:.4f} at step {step}', flush=True
      )
      print(f'worker {task.index}: largest error {largest:.3f}', flush=True)


def run():
  distmnist.run_task(train)


if __name__ == '__main__':
  run()
