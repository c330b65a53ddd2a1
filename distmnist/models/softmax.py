"""Softmax regression: one layer, no hidden units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distmnist.nn import layers


def make(num_classes: int) -> Callable[..., Any]:
  def build(images, is_training: bool):
    del is_training
    return layers.dense(layers.flatten(images), num_classes, 'softmax')

  return build
