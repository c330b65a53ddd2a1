"""Clipping by the global norm: Pascanu et al. 2013, arXiv 1211.5063."""

import functools

import tensorflow.compat.v1 as tf


def add(optimizer, norm):
  """Makes `optimizer` scale gradients down to a global L2 norm, a float."""
  optimizer.compute_gradients = functools.partial(
    _compute_clipped, optimizer.compute_gradients, norm
  )


def _compute_clipped(compute_gradients, norm, *args, **kwargs):
  gradients, variables = zip(*compute_gradients(*args, **kwargs), strict=True)
  clipped, _ = tf.clip_by_global_norm(gradients, norm)
  return list(zip(clipped, variables, strict=True))
