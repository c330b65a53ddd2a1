"""A problem for tests: one small net of each kind that people write.

No example's output depends on the others of its batch, so that workers in
lock-step are to train as one process does.

  --kinds=scan,gather     the sum of these nets; all of them by default

Its data are drawn from a seed: numbers, words, and numbers of rows of a table.
"""

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.transport import model_state

_KINDS = flags.DEFINE_list('kinds', [], 'Which nets are added up.')

_TABLE = 10
best = '-error'


def load(split):
  seed = ['train', 'validation', 'test'].index(split)
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[120, 4])
  return {
    'float32': x.astype(np.float32),
    'float64': x,
    'bfloat16': x.astype(tf.bfloat16.as_numpy_dtype),
    'int64': np.rint(4 * x).astype(np.int64),
    'bool': x > 0,
    'row': np.rint(np.abs(3 * x)).astype(np.int64) % _TABLE,
    'word': np.where(x > 0, 'good', 'bäd'),
  }, np.tanh(x @ [0.5, -0.5, 0.25, 1])


def build(x, is_training):
  outputs = 0.0
  for name in _KINDS.value or sorted(NETS):
    with tf.variable_scope(name):
      outputs += NETS[name](x, is_training)
  return outputs


def loss(y, outputs):
  return (y - outputs) ** 2


def metrics(y, outputs):
  return {'error': tf.abs(y - outputs)}


def get_weights(name='weights', size=4, **how):
  """Returns the column [size, 1] of a linear net."""
  return tf.get_variable(name, [size, 1], **how)


def linear(x, is_training):
  return (x['float32'] @ get_weights())[:, 0] + tf.get_variable('bias', [])


def resource(x, is_training):
  return (x['float32'] @ get_weights(use_resource=True))[:, 0]


def reference(x, is_training):
  return (x['float32'] @ get_weights(use_resource=False))[:, 0]


def function(x, is_training):
  weights, more = get_weights(), get_weights('more')

  @tf.function
  def compute(x, weights):  # One is passed in, the other one closed over.
    for _ in tf.range(2):
      x *= 0.9 if tf.reduce_sum(weights) > 0 else 1.1
    return x @ (weights + more)

  return compute(x['float32'], weights)[:, 0]


def cond(x, is_training):
  x, first, second = x['float32'], get_weights(), get_weights('second')
  is_near = tf.reduce_sum(first - second) < 9.0
  both = tf.cond(is_near, lambda: x @ (first + second), lambda: x @ second)
  return both[:, 0]


def while_loop(x, is_training):
  square = tf.get_variable('square', [4, 4])
  _, x = tf.while_loop(
    lambda i, x: i < 3,
    lambda i, x: (i + 1, tf.tanh(x @ square)),
    [0, x['float32']],
  )
  return (x @ get_weights())[:, 0]


def scan(x, is_training):
  factor = tf.get_variable('factor', [])
  return tf.scan(
    lambda state, value: tf.tanh(factor * state + value),
    tf.transpose(x['float32']),
    tf.zeros_like(x['float32'][:, 0]),
  )[-1]


def map_fn(x, is_training):
  weights = tf.get_variable('weights', [4])
  return tf.map_fn(lambda row: tf.reduce_sum(row * weights), x['float32'])


def gather(x, is_training):
  table = tf.get_variable('table', [_TABLE, 3])
  return tf.reduce_sum(tf.gather(table, x['row']), [1, 2])


def embedding_lookup(x, is_training):
  table = tf.get_variable('table', [_TABLE, 3])
  found = tf.nn.embedding_lookup(table, x['row'], max_norm=1.0)
  return tf.reduce_sum(found, [1, 2])


def sparse(x, is_training):
  rows = tf.sparse.from_dense(x['row'] + 1)
  rows = tf.SparseTensor(rows.indices, rows.values - 1, rows.dense_shape)
  table = tf.get_variable('table', [_TABLE, 1])
  found = tf.nn.embedding_lookup_sparse(table, rows, None, combiner='sum')
  ones = tf.sparse.from_dense(tf.cast(x['bool'], tf.float32))
  found += tf.sparse.sparse_dense_matmul(ones, get_weights())
  return found[:, 0]


def word(x, is_training):
  table = tf.get_variable('table', [_TABLE])
  rows = tf.strings.to_hash_bucket_fast(x['word'], _TABLE)
  return tf.reduce_sum(tf.nn.embedding_lookup(table, rows), 1)


def lookup(x, is_training):
  words = tf.lookup.StaticHashTable(
    tf.lookup.KeyValueTensorInitializer(
      tf.constant(['good', 'bäd']), tf.constant([1, 2], tf.int64)
    ),
    0,
  )
  table = tf.get_variable('table', [3])
  return tf.reduce_sum(tf.gather(table, words.lookup(x['word'])), 1)


def float64(x, is_training):
  weights = get_weights(dtype=tf.float64)
  found = tf.cast(x['float64'], tf.float64) @ weights
  return tf.cast(found[:, 0], tf.float32)


def bfloat16(x, is_training):
  found = x['bfloat16'] @ tf.cast(get_weights(), tf.bfloat16)
  return tf.cast(found[:, 0], tf.float32)


def int64(x, is_training):
  return 0.1 * (tf.cast(x['int64'], tf.float32) @ get_weights())[:, 0]


def update_op(x, is_training):
  """An average and a count that their own ops move, once a worker and step."""
  x = x['float32']
  zeros = {'trainable': False, 'initializer': tf.zeros_initializer()}
  mean = tf.get_variable('mean', [4], use_resource=False, **zeros)
  count = tf.get_variable('count', [], tf.int64, **zeros)
  if is_training:
    moved = mean.assign_sub(0.1 * (mean - tf.reduce_mean(x, 0)))
    for op in moved, count.assign_add(1):
      tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, op)
  return (x @ get_weights())[:, 0]


def average(x, is_training):
  """An average that is exact under lock-step, as that of batch norm is."""
  x = x['float32']
  variable = tf.get_variable(
    'mean', [4], trainable=False, initializer=tf.zeros_initializer()
  )
  mean = model_state.read(variable)
  if is_training:
    model_state.change(variable, 0.9 * mean + 0.1 * tf.reduce_mean(x, 0))
    return (x @ get_weights())[:, 0]
  return ((x - mean) @ get_weights())[:, 0]


def penalty(x, is_training):
  weights = get_weights(regularizer=lambda w: 0.1 * tf.nn.l2_loss(w))
  tf.add_to_collection(
    tf.GraphKeys.REGULARIZATION_LOSSES, 0.1 * tf.nn.l2_loss(weights)
  )
  tf.losses.add_loss(0.1 * tf.nn.l2_loss(weights))
  return (x['float32'] @ weights)[:, 0]


def custom_gradient(x, is_training):
  @tf.custom_gradient
  def slow_down(x):
    return tf.identity(x), lambda grad: 0.5 * grad

  return slow_down(x['float32'] @ get_weights())[:, 0]


def unused(x, is_training):
  tf.get_variable('unused', [3, 2])
  return linear(x, is_training)


NETS = {
  f.__name__: f
  for f in (
    linear,
    resource,
    reference,
    function,
    cond,
    while_loop,
    scan,
    map_fn,
    gather,
    embedding_lookup,
    sparse,
    word,
    lookup,
    float64,
    bfloat16,
    int64,
    update_op,
    average,
    penalty,
    custom_gradient,
    unused,
  )
}
