"""Softmax regression: one layer, no hidden units."""

from __future__ import annotations

import tensorflow.compat.v1 as tf

from distmnist.nn import layers


def make(num_classes: int) -> layers.BuildLogits:
  def build(images: tf.Tensor, is_training: bool) -> tf.Tensor:
    del is_training
    return layers.dense(layers.flatten(images), num_classes, 'softmax')

  return build
