"""Gradients as one tensor each, also those of rows from tf.gather.

tf.gather gives a gradient of rows, in which a row occurs as often as it was
looked up. Its norm is not that of the gradient, LARS and LAMB cannot scale it,
and an optimizer's update of rows knows nothing of weight decay. So it is made
whole before it is clipped, added up or applied. Sparse tables are not
concerned: a loss is differentiated by their rows in the batch, each once
(tables/row_exchange.py).
"""

import functools

from distmnist.transport import gradients


def add(optimizer):
  """Makes `optimizer` compute each gradient as one tensor, or None."""
  optimizer.compute_gradients = functools.partial(
    _compute_whole, optimizer.compute_gradients
  )


def _compute_whole(compute_gradients, *args, **kwargs):
  pairs = compute_gradients(*args, **kwargs)
  return [(gradients.make_dense(g), v) for g, v in pairs]
