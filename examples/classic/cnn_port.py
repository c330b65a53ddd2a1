"""cnn.py on distmnist: the net and the loop as they were."""

import distmnist

# isort: split
import numpy as np
import tensorflow.compat.v1 as tf


def read_batch(numbers):
  """Returns 50 images of a bar, and whether it stands or lies."""
  images, lies = np.zeros([50, 8, 8, 1]), numbers.randint(2, size=50)
  for image, is_lying in zip(images, lies, strict=True):
    bar = image.transpose(1, 0, 2) if is_lying else image
    bar[:, numbers.randint(8)] = 1
  return images + numbers.normal(scale=0.3, size=images.shape), lies


def build_logits(x):
  filters = tf.get_variable(
    'filters', initializer=tf.truncated_normal([3, 3, 1, 16], stddev=0.3)
  )
  x = tf.nn.relu(tf.nn.conv2d(x, filters, 1, 'SAME'))
  x = tf.reshape(tf.nn.max_pool2d(x, 2, 2, 'SAME'), [-1, 256])
  weights = tf.get_variable(
    'weights', initializer=tf.truncated_normal([256, 2], stddev=0.1)
  )
  return tf.matmul(x, weights)


def main(task):
  index, global_step = task.index, task.global_step
  x = tf.placeholder(tf.float32, [None, 8, 8, 1])
  y = tf.placeholder(tf.int64, [None])
  train_op, loss = task.minimize(
    lambda: tf.losses.sparse_softmax_cross_entropy(y, build_logits(x))
  )
  numbers = np.random.RandomState(index)
  with task.session(500) as session:
    while not session.should_stop():
      images, lies = read_batch(numbers)
      _, step, loss_v = session.run(
        [train_op, global_step, loss], feed_dict={x: images, y: lies}
      )
  print(f'worker {index}: loss {loss_v:.4f} at step {step}')


def run():
  distmnist.run_task(main)


if __name__ == '__main__':
  run()
