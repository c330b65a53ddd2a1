"""DLRM: Naumov et al. 2019, arXiv 1906.00091.

A net turns the numbers into a vector as wide as the rows of the table; this
vector and the dot products of all pairs of vectors go through another net. Rows
start near 0: most products mean nothing, and until the nets have learnt which,
they are noise.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.nn import layers

_FIRST_ROWS = 0.1


def build(
  numbers: tf.Tensor, ids: tf.Tensor, num_rows: int, width: int
) -> tf.Tensor:
  """Returns the logits of a click, float32 [n]; see problems/clicks.py."""
  bottom = layers.dense_stack(
    numbers, [64, width], 'bottom', is_last_linear=False
  )
  start = tf.random_uniform_initializer(-_FIRST_ROWS, _FIRST_ROWS)
  rows = layers.embedding(ids, num_rows, width, 'rows', initializer=start)
  vectors = tf.concat([bottom[:, tf.newaxis], rows], 1)
  products = tf.matmul(vectors, vectors, transpose_b=True)
  n = vectors.shape.as_list()[1]
  pairs = [n * i + j for i in range(n) for j in range(i)]
  products = tf.gather(tf.reshape(products, [-1, n * n]), pairs, axis=1)
  top = tf.concat([bottom, products], 1)
  return layers.dense_stack(top, [64, 1], 'top')[:, 0]
