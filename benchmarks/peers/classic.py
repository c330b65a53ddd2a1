"""The classic script, as tutorials have it: a feed_dict, one step per run.

One ps joins its server for ever, so that something has to kill it, and workers
train asynchronously under MonitoredTrainingSession. Nothing in it is slowed
down, and it has none of distmnist's remedies.
"""

import common
import tensorflow.compat.v1 as tf
import tf_nets


def build_graph(args, net, cluster):
  """Returns (images, labels, variables, logits, train_op)."""
  device = f'/job:worker/task:{args.task}'
  with tf.device(
    tf.train.replica_device_setter(worker_device=device, cluster=cluster)
  ):
    images = tf.placeholder(tf.uint8, [None, common.PIXELS])
    labels = tf.placeholder(tf.uint8, [None])
    variables = {
      name: tf.get_variable(
        name, shape, initializer=tf_nets.make_initializer(net, shape)
      )
      for name, shape in net.shapes.items()
    }
    loss = tf_nets.build_loss(args.net, variables, images, labels)
    logits = tf_nets.build_logits(
      args.net, variables, images, is_training=False
    )
    make_optimizer = {
      'adam': tf.train.AdamOptimizer,
      'sgd': tf.train.GradientDescentOptimizer,
    }[net.optimizer]
    train_op = make_optimizer(net.learning_rate).minimize(
      loss, global_step=tf.train.get_or_create_global_step()
    )
  return images, labels, variables, logits, train_op


def main():
  args = common.parse_args()
  tf.disable_eager_execution()
  cluster = tf.train.ClusterSpec({'ps': args.ps, 'worker': args.workers})
  config = tf_nets.make_config()
  server = tf.train.Server(cluster, args.job, args.task, config=config)
  if args.job == 'ps':
    server.join()

  net = common.NETS[args.net]
  train_images, train_labels = common.load(args.data, 'train')
  images, labels, variables, logits, train_op = build_graph(args, net, cluster)
  global_step = tf.train.get_global_step()
  recorder = common.Recorder(args)
  batches = common.make_batches(
    len(train_labels), args.task, len(args.workers), net.batch_size
  )
  is_chief = args.task == 0
  with tf.train.MonitoredTrainingSession(
    server.target, is_chief=is_chief, config=config
  ) as session:

    def run_alone(fetches, feed=None):
      # Bypasses the hooks: this is not a training step.
      return session.run_step_fn(
        lambda step_context: step_context.session.run(fetches, feed)
      )

    while not session.should_stop():
      batch = next(batches)
      _, step = session.run(
        [train_op, global_step],
        {images: train_images[batch], labels: train_labels[batch]},
      )
      recorder.step()
      if is_chief:
        recorder.snapshot_if_due(int(step), lambda: run_alone(variables))
      if recorder.is_over(args, step):
        break
    facts = {}
    if is_chief:
      facts['test_accuracy'] = common.compute_accuracy(
        lambda chunk: run_alone(logits, {images: chunk}), args.data
      )
  recorder.save(**facts)


if __name__ == '__main__':
  main()
