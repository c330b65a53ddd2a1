"""Wide and deep: Cheng et al. 2016, arXiv 1606.07792.

Adds up a linear model of all features and a net on the numbers and the rows of
the table.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.nn import layers


def build(
  numbers: tf.Tensor, ids: tf.Tensor, num_rows: int, width: int
) -> tf.Tensor:
  """Returns the logits of a click, float32 [n]; see problems/clicks.py."""
  wide = tf.reduce_sum(layers.embedding(ids, num_rows, 1, 'weights'), [1, 2])
  wide += layers.dense(numbers, 1, 'wide')[:, 0]
  deep = tf.concat(
    [numbers, layers.flatten(layers.embedding(ids, num_rows, width, 'rows'))], 1
  )
  return wide + layers.dense_stack(deep, [64, 32, 1], 'deep')[:, 0]
