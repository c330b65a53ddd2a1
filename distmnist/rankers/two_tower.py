"""Two towers: Yi et al. 2019 (RecSys), "Sampling-bias-corrected modeling".

The numbers and the first half of the categories describe who asks, the other
half what is shown. Each goes through a net, and the dot product of the results
is the score, so the vectors of what can be shown may be computed beforehand.
"""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.nn import layers


def build(
  numbers: tf.Tensor, ids: tf.Tensor, num_rows: int, width: int
) -> tf.Tensor:
  """Returns the logits of a click, float32 [n]; see problems/clicks.py."""
  rows = layers.embedding(ids, num_rows, width, 'rows')
  half = rows.shape.as_list()[1] // 2
  asks = tf.concat([numbers, layers.flatten(rows[:, :half])], 1)
  asks = layers.dense_stack(asks, [64, width], 'asks')
  shown = layers.flatten(rows[:, half:])
  shown = layers.dense_stack(shown, [64, width], 'shown')
  bias = tf.get_variable('bias', [], initializer=tf.zeros_initializer())
  return tf.reduce_sum(asks * shown, 1) + bias
