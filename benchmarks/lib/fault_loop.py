"""A script with a loop of its own, for faults; see fault_phases.py."""

import distmnist.runtime  # TensorFlow, quiet and in graph mode.

# isort: split
import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

LAST_STEP = flags.DEFINE_integer('last_step', 1000, 'Where it ends.', 1)


def train(task):
  x = tf.placeholder(tf.float32, [None, 2])

  def build_loss():
    found = (x @ tf.get_variable('weights', [2, 1]))[:, 0]
    return tf.reduce_mean((found - x[:, 0]) ** 2)

  train_op, _ = task.minimize(build_loss)
  numbers = np.random.default_rng(task.index)
  with task.session(LAST_STEP.value) as session:
    while not session.should_stop():
      step = session.run(train_op, {x: numbers.normal(size=[20, 2])})
      print(f'step {step}/{LAST_STEP.value}', flush=True)


def run():
  distmnist.run_task(train)


if __name__ == '__main__':
  run()
