"""Softmax regression: one layer, no hidden units."""

from distmnist.nn import layers


def make(num_classes):
  def build(images, is_training):
    del is_training
    return layers.dense(layers.flatten(images), num_classes, 'softmax')

  return build
