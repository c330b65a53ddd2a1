"""A script as the tutorials of 2016 had them: tf.Variable and a Supervisor."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.app.flags.DEFINE_string('ps_hosts', '', 'host:port, separated by commas')
tf.app.flags.DEFINE_string('worker_hosts', '', 'host:port, ...')
tf.app.flags.DEFINE_string('job_name', '', 'ps or worker')
tf.app.flags.DEFINE_integer('task_index', 0, 'which of them')
FLAGS = tf.app.flags.FLAGS


def read_batch(numbers):
  """Returns 100 points of a chessboard of 4 fields, and their colours."""
  points = numbers.uniform(-1, 1, [100, 2])
  return points, np.eye(2)[(points[:, 0] * points[:, 1] > 0).astype(int)]


def main(_):
  cluster = tf.train.ClusterSpec(
    {'ps': FLAGS.ps_hosts.split(','), 'worker': FLAGS.worker_hosts.split(',')}
  )
  server = tf.train.Server(cluster, FLAGS.job_name, FLAGS.task_index)
  if FLAGS.job_name == 'ps':
    server.join()  # For ever.
  index = FLAGS.task_index
  x = tf.placeholder(tf.float32, [None, 2])
  y = tf.placeholder(tf.float32, [None, 2])
  with tf.device(tf.train.replica_device_setter(cluster=cluster)):
    with tf.name_scope('hidden'):
      weights = tf.Variable(tf.random_normal([2, 32]), name='weights')
      biases = tf.Variable(tf.zeros([32]), name='biases')
      hidden = tf.sigmoid(tf.matmul(x, weights) + biases)
    with tf.name_scope('softmax'):
      weights = tf.Variable(tf.random_normal([32, 2]), name='weights')
      biases = tf.Variable(tf.zeros([2]), name='biases')
      logits = tf.matmul(hidden, weights) + biases
    loss = tf.reduce_mean(
      tf.nn.softmax_cross_entropy_with_logits_v2(labels=y, logits=logits)
    )
    global_step = tf.Variable(0, name='global_step', trainable=False)
    optimizer = tf.train.GradientDescentOptimizer(1.0)
    train_op = optimizer.minimize(loss, global_step=global_step)
  numbers, step = np.random.RandomState(index), 0
  supervisor = tf.train.Supervisor(is_chief=index == 0, global_step=global_step)
  with supervisor.managed_session(server.target) as session:
    while not supervisor.should_stop() and step < 2000:
      points, colours = read_batch(numbers)
      _, step, loss_v = session.run(
        [train_op, global_step, loss], feed_dict={x: points, y: colours}
      )
  print(f'worker {index}: loss {loss_v:.4f} at step {step}')


if __name__ == '__main__':
  tf.app.run()
