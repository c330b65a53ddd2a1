"""LARS: momentum, with each layer's rate set by the norm of its weights.

You, Gitman and Ginsburg 2017, "Large batch training of convolutional networks"
(arXiv 1708.03888), algorithm 1. For each layer, gamma being the rate, m the
momentum, beta the weight decay and eta the trust coefficient:

  lambda = eta ||w|| / (||g|| + beta ||w||)
  v <- m v + gamma lambda (g + beta w);  w <- w - v

lambda is 1 where ||w|| or ||g|| is 0, as in the authors' program: where g is 0
the weights shrink by gamma beta, not by gamma eta. Biases and the scales of
batch norm (rank 0 or 1) have lambda = 1 and beta = 0. Norms of whole layers:
see trust_ratio.py.
"""

import tensorflow.compat.v1 as tf

from distmnist.nn import lean_updates, trust_ratio


class Lars(tf.train.MomentumOptimizer):
  """Plain momentum on gradients already scaled by gamma and lambda."""

  def __init__(
    self,
    learning_rate,
    momentum,
    weight_decay=0.0,
    trust_coefficient=0.001,
    use_locking=False,
  ):
    """
    Args:
      learning_rate: float or float32 scalar tensor, gamma.
      momentum, weight_decay, trust_coefficient: float, m, beta and eta.
      use_locking: bool, whether an update locks its variable.
    """
    super().__init__(1.0, momentum, use_locking, 'Lars')
    self._rate = lean_updates.make_number(learning_rate)
    self._decay = weight_decay
    self._coefficient = trust_coefficient

  def apply_gradients(self, grads_and_vars, global_step=None, name=None):
    pairs = [(g, w) for g, w in grads_and_vars if g is not None]
    with tf.name_scope('lars'):
      norms = trust_ratio.build_norms(pairs)
      steps = [(self._scale(g, w, norms.get(id(w))), w) for g, w in pairs]
    return super().apply_gradients(steps, global_step, name)

  def _scale(self, gradient, weights, norms):
    """Returns gamma lambda (g + beta w), on the weights' device."""
    with tf.device(weights.device), tf.control_dependencies([gradient]):
      if norms is None:
        return trust_ratio.scale(self._rate, gradient)
      w, g = norms
      ratio = self._coefficient * w / (g + self._decay * w)
      ratio = trust_ratio.choose(ratio, norms)
      if self._decay:
        gradient += self._decay * weights.read_value()
      return trust_ratio.scale(self._rate * ratio, gradient)
