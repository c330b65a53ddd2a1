"""A floor for the step of a ps: what plain TensorFlow allows, nothing else.

A step of an asynchronous worker is one message each way. The ps concatenates
all weights, the worker pulls them as one tensor, concatenates all gradients and
pushes them as one; TensorFlow's fused Adam applies them on the ps, where the
global step is counted. With --steps_per_call=K a session.run has K copies of
that, each of which begins once the ps has applied the one before: no message
goes to the worker between them.
"""

import math

import common
import numpy as np
import tensorflow.compat.v1 as tf
import tf_nets

PS = '/job:ps/task:0'


class Center:
  """The weights on the ps, as one worker pulls and pushes them."""

  def __init__(self, net, worker):
    """
    Args:
      net: common.Net.
      worker: str, the worker's device.
    """
    self._worker, self._shapes = worker, net.shapes
    with tf.device(PS):
      self.variables = {
        name: tf.get_variable(
          name, shape, initializer=tf_nets.make_initializer(net, shape)
        )
        for name, shape in net.shapes.items()
      }
      self.global_step = tf.train.get_or_create_global_step()
    self._optimizer = tf.train.AdamOptimizer(net.learning_rate)

  def pull(self, after=()):
    """Builds the weights on the worker, read on the ps after the ops `after`.

    Returns:
      dict of name -> tensor.
    """
    with tf.device(PS), tf.control_dependencies(after):
      packed = flatten([v.read_value() for v in self.variables.values()])
    with tf.device(self._worker):
      return self._split(tf.identity(packed))

  def push(self, gradients, after=()):
    """Builds the update of the weights and of the global step.

    Args:
      gradients: list of tensors on the worker, in the order of the weights.
      after: ops on the ps, after which Adam's own state is read.

    Returns:
      tf.Operation on the ps.
    """
    with tf.device(self._worker):
      packed = flatten(gradients)
    with tf.device(PS), tf.control_dependencies(after):
      arrived = self._split(tf.identity(packed))
      return self._optimizer.apply_gradients(
        [(arrived[name], v) for name, v in self.variables.items()],
        self.global_step,
      )

  def _split(self, packed):
    parts = tf.split(packed, [math.prod(s) for s in self._shapes.values()])
    return {
      name: tf.reshape(part, shape)
      for part, (name, shape) in zip(parts, self._shapes.items(), strict=True)
    }


def flatten(tensors):
  return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def make_resident(name, array):
  """Returns a local variable with `array`, which is in no GraphDef."""

  def build():
    tensor = tf.py_func(lambda: array, [], tf.as_dtype(array.dtype))
    tensor.set_shape(array.shape)
    return tensor

  return tf.get_local_variable(name, initializer=build, use_resource=True)


def build_steps(args, net, center, worker, images, labels):
  """Builds the steps of a session.run, one after the other.

  Args:
    args: Namespace of `common.parse_args`.
    net: common.Net.
    center: Center.
    worker: str, the worker's device.
    images, labels: NumPy arrays, which stay on the worker.

  Returns:
    (fed, step): int64 placeholder [--steps_per_call, batch size], the numbers
    of the images; int64 scalar, the global step after the last step.
  """
  with tf.device(worker):
    images = make_resident('images', images)
    labels = make_resident('labels', labels)
    fed = tf.placeholder(tf.int64, [args.steps_per_call, net.batch_size])
  before = ()
  for number in range(args.steps_per_call):
    weights = center.pull(before)
    with tf.device(worker):
      batch = [tf.gather(x, fed[number]) for x in (images, labels)]
      loss = tf_nets.build_loss(args.net, weights, *batch)
      gradients = tf.gradients(loss, list(weights.values()))
    before = [center.push(gradients, before)]
  with tf.device(PS), tf.control_dependencies(before):
    return fed, center.global_step.read_value()


def open_session(target, is_chief, config):
  """Returns a tf.Session in which all variables have their first values."""
  shared = tf.global_variables()
  manager = tf.train.SessionManager(
    ready_op=tf.report_uninitialized_variables(),
    ready_for_local_init_op=tf.report_uninitialized_variables(shared),
    local_init_op=tf.local_variables_initializer(),
    # 30 s by default, for which a worker that comes too early sleeps.
    recovery_wait_secs=0.2,
  )
  if not is_chief:
    return manager.wait_for_session(target, config)
  return manager.prepare_session(
    target, init_op=tf.variables_initializer(shared), config=config
  )


def main():
  args = common.parse_args()
  tf.disable_eager_execution()
  cluster = tf.train.ClusterSpec({'ps': args.ps, 'worker': args.workers})
  config = tf_nets.make_config()
  # Idle threads that spin take cores from the other tasks.
  config.experimental.disable_thread_spinning = True
  server = tf.train.Server(cluster, args.job, args.task, config=config)
  if args.job == 'ps':
    server.join()

  net, worker = common.NETS[args.net], f'/job:worker/task:{args.task}'
  data = common.load(args.data, 'train')
  center = Center(net, worker)
  fed, step_op = build_steps(args, net, center, worker, *data)
  pulled = center.pull()
  with tf.device(worker):
    images = tf.placeholder(tf.uint8, [None, common.PIXELS])
    logits = tf_nets.build_logits(args.net, pulled, images, is_training=False)
  recorder = common.Recorder(args)
  batches = common.make_batches(
    len(data[1]), args.task, len(args.workers), net.batch_size
  )
  is_chief = args.task == 0
  with open_session(server.target, is_chief, config) as session:
    while True:
      rows = np.stack([next(batches) for _ in range(args.steps_per_call)])
      step = session.run(step_op, {fed: rows})
      recorder.step(args.steps_per_call)
      if is_chief:
        recorder.snapshot_if_due(int(step), lambda: session.run(pulled))
      if recorder.is_over(args, step):
        break
    facts = {}
    if is_chief:
      facts['test_accuracy'] = common.compute_accuracy(
        lambda chunk: session.run(logits, {images: chunk}), args.data
      )
  recorder.save(**facts)


if __name__ == '__main__':
  main()
