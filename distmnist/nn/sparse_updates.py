"""Updates of some rows of a table, no row twice, by an optimizer's kernels.

What such an update omits for rows that are not in the batch:

  sgd, adagrad, ftrl   nothing: a gradient of 0 changes no row, so these act as
                       they do on dense variables
  momentum, nesterov   a row does not keep moving along its velocity, which does
                       not decay
  rmsprop              likewise, and its mean square does not decay
  adam, adamw          likewise for both moments; the bias correction counts all
                       updates, not only those of the row (LazyAdam)

Decoupled weight decay acts only on dense variables.
"""

import functools

import tensorflow.compat.v1 as tf

from distmnist.exchange.tables import touched_rows

# Optimizers whose steps need more than the rows that have a gradient.
WITHOUT = 'lars', 'lamb'
# How many slots, each as large as a table, each of the others keeps for it.
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
  """Makes a tf.train.Optimizer update tables by rows.

  The rows that it updates are marked as touched, if they have marks. Gradients
  of other variables are whole: whole_gradients.py.
  """
  if isinstance(optimizer, tf.train.AdamOptimizer):
    apply = functools.partial(_apply_adam, optimizer)
    optimizer._resource_apply_sparse = apply
  is_sgd = isinstance(optimizer, tf.train.GradientDescentOptimizer)
  # Plain SGD has no update of its own for rows that are different.
  apply_rows = (
    optimizer._resource_apply_sparse_duplicate_indices
    if is_sgd
    else optimizer._resource_apply_sparse
  )

  def apply_and_mark(gradient, variable, rows):
    applied = apply_rows(gradient, variable, rows)
    return touched_rows.mark_after([applied], variable, rows)[0]

  optimizer._resource_apply_sparse_duplicate_indices = apply_and_mark


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
