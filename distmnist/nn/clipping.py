"""Clipping by the global norm: Pascanu et al. 2013, arXiv 1211.5063."""

import functools

import tensorflow.compat.v1 as tf

from distmnist.transport import sums


def add(optimizer, norm):
  """Makes `optimizer` scale gradients down to a global L2 norm, a float."""
  optimizer.compute_gradients = functools.partial(
    _compute_clipped, optimizer.compute_gradients, norm
  )


def _compute_clipped(compute_gradients, norm, *args, **kwargs):
  gradients, variables = zip(*compute_gradients(*args, **kwargs), strict=True)
  if not any(tf.is_tensor(gradient) for gradient in gradients):
    return list(zip(gradients, variables, strict=True))
  clipped, _ = tf.clip_by_global_norm(gradients, norm, _find_norm(gradients))
  return list(zip(clipped, variables, strict=True))


def _find_norm(gradients):
  """Returns the norm of all `gradients`, which may be of several dtypes."""
  of_dtype = {}
  for gradient in gradients:
    if gradient is not None:
      with tf.device(gradient.device):
        gradient = sums.widen(gradient)
      of_dtype.setdefault(gradient.dtype, []).append(gradient)
  norms = [tf.global_norm(some) for some in of_dtype.values()]
  if len(norms) == 1:
    return norms[0]
  return tf.global_norm([tf.cast(norm, tf.float32) for norm in norms])
