"""Updates of some rows of a table, each there once, by an optimizer's kernels.

What a gradient of some rows leaves alone, for rows that are not in the batch:

  sgd, adagrad, ftrl   nothing: a gradient of 0 changes no row, so that these
                       are what they are for variables that are not sparse
  momentum, nesterov   a row does not go on along its velocity, which does not
                       fade
  rmsprop              likewise, and its mean square does not fade
  adam, adamw          likewise of both moments; the correction of their bias
                       counts all updates and not those of the row (LazyAdam)

Decoupled weight decay acts on the variables that are not sparse alone.
"""

import functools

import tensorflow.compat.v1 as tf

from distmnist.exchange.tables import sparse_table

# Those whose steps need more than the rows that have a gradient.
WITHOUT = 'lars', 'lamb'
# What each of the others keeps beside a table: so many more, each as large.
NUM_SLOTS = {
  'sgd': 0,
  'momentum': 1,
  'nesterov': 1,
  'adagrad': 1,
  'adam': 2,
  'adamw': 2,
  'rmsprop': 2,
  'ftrl': 2,
}


def add(optimizer):
  """Has a tf.train.Optimizer update a table by rows, and other variables whole.

  A gradient of rows comes of tf.gather as well, and there a row is as often as
  it was looked up; the variable is updated as if its gradient were dense.
  """
  if isinstance(optimizer, tf.train.AdamOptimizer):
    apply = functools.partial(_apply_adam, optimizer)
    optimizer._resource_apply_sparse = apply
  if isinstance(optimizer, tf.train.GradientDescentOptimizer):
    return  # A row that is there twice is updated twice: that is the sum.

  def apply_rows(gradient, variable, rows):
    tables = tf.get_collection(sparse_table.TABLES)
    if any(variable is table for table in tables):
      return optimizer._resource_apply_sparse(gradient, variable, rows)
    shape = tf.constant(variable.shape.as_list(), rows.dtype)
    whole = tf.convert_to_tensor(tf.IndexedSlices(gradient, rows, shape))
    return optimizer._resource_apply_dense(whole, variable)

  optimizer._resource_apply_sparse_duplicate_indices = apply_rows


def _apply_adam(optimizer, gradient, variable, rows):
  """Kingma and Ba 2015, arXiv 1412.6980, algorithm 1, on some rows alone."""
  beta_1, beta_2 = optimizer._beta1_t, optimizer._beta2_t
  power_1, power_2 = optimizer._get_beta_accumulators()
  rate = optimizer._lr_t * tf.sqrt(1 - power_2) / (1 - power_1)
  m, v = (optimizer.get_slot(variable, name) for name in 'mv')
  m_v = beta_1 * m.sparse_read(rows) + (1 - beta_1) * gradient
  v_v = beta_2 * v.sparse_read(rows) + (1 - beta_2) * gradient**2
  change = rate * m_v / (tf.sqrt(v_v) + optimizer._epsilon_t)
  slices = [(m, m_v), (v, v_v)]
  return tf.group(
    *(
      tf.raw_ops.ResourceScatterUpdate(
        resource=slot.handle, indices=rows, updates=value
      )
      for slot, value in slices
    ),
    tf.raw_ops.ResourceScatterSub(
      resource=variable.handle, indices=rows, updates=change
    ),
  )
