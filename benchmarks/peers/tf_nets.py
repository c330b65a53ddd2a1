"""The nets for TensorFlow, eager or in a graph, and parts for TensorFlow 2."""

import common
import tensorflow as tf

# A thread that computes and one that waits for others: what distmnist's
# launcher gives to its tasks.
INTRA_OP_THREADS, INTER_OP_THREADS = 1, 2


def build_logits(net, variables, images, is_training):
  """Builds the logits: uint8 [n, 784] -> float32 [n, 10].

  Args:
    net: str, of common.NETS.
    variables: dict of name -> variable, as in common.Net.shapes.
    images: tensor.
    is_training: bool, whether dropout acts.
  """

  def dense(x, name):
    return tf.nn.bias_add(
      tf.matmul(x, variables[f'{name}/weights']), variables[f'{name}/biases']
    )

  def conv(x, name):
    weights = variables[f'{name}/weights']
    x = tf.nn.conv2d(x, weights, strides=1, padding='SAME')
    x = tf.nn.relu(tf.nn.bias_add(x, variables[f'{name}/biases']))
    return tf.nn.max_pool2d(x, ksize=2, strides=2, padding='SAME')

  x = tf.cast(images, tf.float32) * (1 / 255)
  if net != 'cnn':
    return dense(tf.nn.sigmoid(dense(x, 'hidden1')), 'softmax')
  x = conv(conv(tf.reshape(x, [-1, 28, 28, 1]), 'conv1'), 'conv2')
  x = tf.reshape(x, [-1, variables['dense1/weights'].shape[0]])
  x = tf.nn.relu(dense(x, 'dense1'))
  if is_training:
    x = tf.nn.dropout(x, rate=common.DROPOUT_RATE)
  return dense(x, 'softmax')


def build_loss(net, variables, images, labels):
  """Builds the mean cross entropy of a batch; labels are uint8 [n]."""
  logits = build_logits(net, variables, images, is_training=True)
  return tf.reduce_mean(
    tf.nn.sparse_softmax_cross_entropy_with_logits(
      labels=tf.cast(labels, tf.int32), logits=logits
    )
  )


def make_initializer(net, shape):
  """Returns the initializer of a classic graph's variable of a common.Net."""
  if len(shape) == 1:
    return tf.compat.v1.zeros_initializer()
  if net.weight_stddev:
    return tf.compat.v1.random_normal_initializer(stddev=net.weight_stddev)
  return tf.compat.v1.glorot_uniform_initializer()


def make_config():
  """Returns the tf.ConfigProto of a classic program's servers and sessions."""
  return tf.compat.v1.ConfigProto(
    intra_op_parallelism_threads=INTRA_OP_THREADS,
    inter_op_parallelism_threads=INTER_OP_THREADS,
  )


def set_threads():
  tf.config.threading.set_intra_op_parallelism_threads(INTRA_OP_THREADS)
  tf.config.threading.set_inter_op_parallelism_threads(INTER_OP_THREADS)


def make_variables(net):
  """Returns a dict of name -> tf.Variable with Glorot's initial weights."""
  shapes = common.NETS[net].shapes
  limits = {n: common.compute_glorot_limit(s) for n, s in shapes.items()}
  return {
    name: tf.Variable(
      tf.random.stateless_uniform(
        shape, [0, i], minval=-limits[name], maxval=limits[name]
      )
      if limits[name]
      else tf.zeros(shape),
      name=name,
    )
    for i, (name, shape) in enumerate(shapes.items())
  }


class Adam:
  """TensorFlow's one-kernel Adam, as in the classic optimizer.

  Keras 3's optimizers build it from some twenty small ops, and do not support
  parameter servers.
  """

  def __init__(self, variables, learning_rate):
    """To be called in the scope in which `variables` (a list) were made."""
    self._learning_rate = learning_rate
    self._slots = [
      [tf.Variable(tf.zeros(v.shape), trainable=False) for _ in range(2)]
      for v in variables
    ]
    self._powers = [tf.Variable(beta, trainable=False) for beta in (0.9, 0.999)]

  def apply(self, gradients, variables, get_own=lambda variable: variable):
    """Updates `variables`; get_own returns the part of one with a handle."""
    power1, power2 = (get_own(p) for p in self._powers)
    values = power1.read_value(), power2.read_value()
    for gradient, variable, slots in zip(
      gradients, variables, self._slots, strict=True
    ):
      variable = get_own(variable)
      # On the variable's device, or its value would travel for the update.
      with tf.device(variable.device):
        tf.raw_ops.ResourceApplyAdam(
          var=variable.handle,
          m=get_own(slots[0]).handle,
          v=get_own(slots[1]).handle,
          beta1_power=values[0],
          beta2_power=values[1],
          lr=self._learning_rate,
          beta1=0.9,
          beta2=0.999,
          epsilon=1e-8,
          grad=gradient,
        )
    for power, value, beta in zip(
      (power1, power2), values, (0.9, 0.999), strict=True
    ):
      with tf.device(power.device):
        power.assign(value * beta)


def make_dataset(folder, worker, num_workers, batch_size):
  """Returns a tf.data.Dataset of batches, uint8 [n, 784] and uint8 [n].

  It reads files, so it can be sent to a worker; each of its steps handles whole
  records, not pixels.
  """
  records = tf.data.Dataset.zip(
    tuple(
      tf.data.FixedLengthRecordDataset(str(folder / f'train.{part}'), size)
      for part, size in (('images', common.PIXELS), ('labels', 1))
    )
  )
  num_images = (folder / 'train.labels').stat().st_size
  records = records.shard(num_workers, worker).cache()
  records = records.shuffle(num_images // num_workers).repeat()

  def decode(images, labels):
    labels = tf.io.decode_raw(labels, tf.uint8)
    images = tf.io.decode_raw(images, tf.uint8)
    images = tf.reshape(images, [batch_size, common.PIXELS])
    return images, tf.reshape(labels, [batch_size])

  return records.batch(batch_size, drop_remainder=True).map(decode).prefetch(4)


def make_predict(net, variables):
  """Returns predict for common.compute_accuracy."""

  @tf.function
  def predict(images):
    return build_logits(net, variables, images, is_training=False)

  return lambda images: predict(tf.constant(images)).numpy()
