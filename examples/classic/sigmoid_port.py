"""sigmoid.py on distmnist: the net and the loop as they were."""

import distmnist

# isort: split
import numpy as np
import tensorflow.compat.v1 as tf


def read_batch(numbers):
  """Returns 100 points of a chessboard of 4 fields, and their colours."""
  points = numbers.uniform(-1, 1, [100, 2])
  return points, np.eye(2)[(points[:, 0] * points[:, 1] > 0).astype(int)]


def main(task):
  index, global_step = task.index, task.global_step
  x = tf.placeholder(tf.float32, [None, 2])
  y = tf.placeholder(tf.float32, [None, 2])

  def build_loss():
    with tf.name_scope('hidden'):
      weights = tf.Variable(tf.random_normal([2, 32]), name='weights')
      biases = tf.Variable(tf.zeros([32]), name='biases')
      hidden = tf.sigmoid(tf.matmul(x, weights) + biases)
    with tf.name_scope('softmax'):
      weights = tf.Variable(tf.random_normal([32, 2]), name='weights')
      biases = tf.Variable(tf.zeros([2]), name='biases')
      logits = tf.matmul(hidden, weights) + biases
    return tf.reduce_mean(
      tf.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=logits)
    )

  train_op, loss = task.minimize(build_loss)
  numbers, step = np.random.RandomState(index), 0
  with task.session(2000) as session:
    while not session.should_stop():
      points, colours = read_batch(numbers)
      _, step, loss_v = session.run(
        [train_op, global_step, loss], feed_dict={x: points, y: colours}
      )
  print(f'worker {index}: loss {loss_v:.4f} at step {step}')


if __name__ == '__main__':
  distmnist.run_task(main)
