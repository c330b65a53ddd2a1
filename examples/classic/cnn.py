"""A script of 2017: get_variable in shards, and SyncReplicasOptimizer."""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.app.flags.DEFINE_string('ps_hosts', '', 'host:port, separated by commas')
tf.app.flags.DEFINE_string('worker_hosts', '', 'host:port, ...')
tf.app.flags.DEFINE_string('job_name', '', 'ps or worker')
tf.app.flags.DEFINE_integer('task_index', 0, 'which of them')
FLAGS = tf.app.flags.FLAGS


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


def main(_):
  ps, workers = FLAGS.ps_hosts.split(','), FLAGS.worker_hosts.split(',')
  cluster = tf.train.ClusterSpec({'ps': ps, 'worker': workers})
  server = tf.train.Server(cluster, FLAGS.job_name, FLAGS.task_index)
  if FLAGS.job_name == 'ps':
    server.join()  # For ever.
  index = FLAGS.task_index
  x = tf.placeholder(tf.float32, [None, 8, 8, 1])
  y = tf.placeholder(tf.int64, [None])
  with (
    tf.device(tf.train.replica_device_setter(cluster=cluster)),
    tf.variable_scope('net', partitioner=tf.fixed_size_partitioner(len(ps))),
  ):
    loss = tf.losses.sparse_softmax_cross_entropy(y, build_logits(x))
  with tf.device(tf.train.replica_device_setter(cluster=cluster)):
    global_step = tf.train.get_or_create_global_step()
    optimizer = tf.train.SyncReplicasOptimizer(
      tf.train.AdamOptimizer(0.01), len(workers), len(workers)
    )
    train_op = optimizer.minimize(loss, global_step=global_step)
  hooks = [
    tf.train.StopAtStepHook(last_step=500),
    optimizer.make_session_run_hook(index == 0),
  ]
  numbers = np.random.RandomState(index)
  with tf.train.MonitoredTrainingSession(
    server.target, index == 0, 'logs/cnn', hooks=hooks
  ) as session:
    while not session.should_stop():
      images, lies = read_batch(numbers)
      _, step, loss_v = session.run(
        [train_op, global_step, loss], feed_dict={x: images, y: lies}
      )
  print(f'worker {index}: loss {loss_v:.4f} at step {step}')


if __name__ == '__main__':
  tf.app.run()
