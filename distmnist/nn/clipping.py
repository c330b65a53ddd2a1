"""Clipping by the global norm: Pascanu et al. 2013, arXiv 1211.5063."""

import tensorflow.compat.v1 as tf

from distmnist.transport import sums


def clip(pairs, norm):
  """Scales gradients down to a global L2 norm.

  Args:
    pairs: list of (gradient, variable); the gradient is a tensor or None.
    norm: float.

  Returns:
    A list like `pairs`.
  """
  gradients, variables = zip(*pairs, strict=True)
  if not any(tf.is_tensor(gradient) for gradient in gradients):
    return pairs
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
