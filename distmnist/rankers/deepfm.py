"""DeepFM: Guo et al. 2017, arXiv 1703.04247.

A factorisation machine (Rendle 2010) and a net share the rows v_i of the table:

  w . x + sum_i w_i + sum_{i < j} v_i . v_j + net(x, v)
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.nn import layers


def build(
  numbers: tf.Tensor, ids: tf.Tensor, num_rows: int, width: int
) -> tf.Tensor:
  """Returns the logits of a click, float32 [n]; see problems/clicks.py."""
  # Near 0, as in dlrm: most products mean nothing.
  start = tf.random_uniform_initializer(-0.1, 0.1)
  rows = layers.embedding(ids, num_rows, width, 'rows', initializer=start)
  first = tf.reduce_sum(layers.embedding(ids, num_rows, 1, 'weights'), [1, 2])
  first += layers.dense(numbers, 1, 'numbers')[:, 0]
  squares = tf.square(tf.reduce_sum(rows, 1)) - tf.reduce_sum(
    tf.square(rows), 1
  )
  second = tf.reduce_sum(squares, 1) / 2
  deep = tf.concat([numbers, layers.flatten(rows)], 1)
  return first + second + layers.dense_stack(deep, [64, 32, 1], 'deep')[:, 0]
