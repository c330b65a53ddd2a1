"""LAMB: Adam, with each layer's step scaled to the norm of its weights.

You et al. 2020, "Large batch optimization for deep learning: training BERT in
76 minutes" (ICLR, arXiv 1904.00962), algorithm 2, with phi(z) = z. For each
layer, eta being the rate and lambda the weight decay:

  m <- beta1 m + (1 - beta1) g;  v <- beta2 v + (1 - beta2) g^2
  r = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + lambda w
  w <- w - eta (||w|| / ||r||) r

The ratio is 1 where ||w|| or ||r|| is 0, as in the authors' program. Biases and
the scales of batch norm (rank 0 or 1) have the ratio 1 and lambda = 0. Norms of
whole layers: see trust_ratio.py.
"""

import tensorflow.compat.v1 as tf

from distmnist.nn import lean_updates, trust_ratio
from distmnist.nn import weight_decay as weight_decay_lib

_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-6  # As in the authors' program.


class Lamb(tf.train.AdamOptimizer):
  """LAMB, with Adam's slots and powers of beta but a step of its own."""

  def __init__(self, learning_rate, weight_decay=0.0, use_locking=False):
    """
    Args:
      learning_rate: float or float32 scalar tensor, eta.
      weight_decay: float, lambda.
      use_locking: bool, whether an update locks its variable.
    """
    rate = lean_updates.make_number(learning_rate)
    super().__init__(rate, _BETA1, _BETA2, _EPSILON, use_locking, 'Lamb')
    self._decay = weight_decay
    self._moments = {}

  def apply_gradients(self, grads_and_vars, global_step=None, name=None):
    pairs = [(g, w) for g, w in grads_and_vars if g is not None]
    with tf.init_scope():
      self._create_slots([w for _, w in pairs])
    with tf.name_scope('lamb'):
      powers = self._get_beta_accumulators()
      with tf.device(powers[0].device):  # To another ps goes one message.
        corrections = tf.stack([1 / (1 - power) for power in powers])
      steps = [(self._direct(g, w, corrections), w) for g, w in pairs]
      norms = trust_ratio.build_norms(steps)
      steps = [(_scale(r, w, norms.get(id(w))), w) for r, w in steps]
    return super().apply_gradients(steps, global_step, name)

  def _direct(self, gradient, weights, corrections):
    """Returns r, on the weights' device, and keeps m and v for the update."""
    with tf.device(weights.device), tf.control_dependencies([gradient]):
      correction1, correction2 = tf.unstack(corrections, num=2)
      m, v = (self.get_slot(weights, name).read_value() for name in 'mv')
      m = _BETA1 * m + (1 - _BETA1) * gradient
      v = _BETA2 * v + (1 - _BETA2) * tf.square(gradient)
      self._moments[id(weights)] = m, v
      root = tf.sqrt(trust_ratio.scale(correction2, v))
      step = trust_ratio.scale(correction1, m) / (root + _EPSILON)
      if self._decay and weight_decay_lib.decays(weights):
        step += self._decay * weights.read_value()
      return step

  def _resource_apply_dense(self, grad, var):
    kept = [
      self.get_slot(var, name).assign(value, read_value=False)
      for name, value in zip('mv', self._moments[id(var)], strict=True)
    ]
    # By now r has been computed from m and v.
    step = trust_ratio.scale(self._lr, grad)
    moved = var.assign_sub(step, read_value=False)
    return tf.group(moved, *kept)


def _scale(step, weights, norms):
  """Returns `step` times its ratio, on the weights' device."""
  if norms is None:
    return step
  with tf.device(weights.device):
    w, r = norms
    return trust_ratio.scale(trust_ratio.choose(w / r, norms), step)
