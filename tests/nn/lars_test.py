"""lars: algorithm 1 of the paper, on whole layers that are in shards."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import lars
from tests.support import lock_step


class Oracle:
  """Algorithm 1; biases have lambda = 1 and beta = 0."""

  def __init__(self, momentum, decay, coefficient):
    self._momentum, self._decay = momentum, decay
    self._coefficient, self._velocity = coefficient, {}

  def __call__(self, name, w, g, step):
    ratio = 1
    if w.ndim > 1:
      norm_w, norm_g = np.linalg.norm(w), np.linalg.norm(g)
      ratio = self._coefficient * norm_w / (norm_g + self._decay * norm_w)
      g = g + self._decay * w
    v = self._momentum * self._velocity.get(name, 0)
    v = self._velocity[name] = v + lock_step.RATES[step] * ratio * g
    return w - v


@pytest.mark.slow
def test_two_workers_and_shards_equal_numpy(make_cluster, set_flags):
  set_flags(
    '--optimizer=lars',
    '--momentum=0.8',
    '--weight_decay=0.3',
    '--trust_coefficient=0.5',
    *lock_step.FLAGS,
  )
  lock_step.check(make_cluster(2, 2), Oracle(0.8, 0.3, 0.5))


def test_weights_of_zero_still_move(tf_session):
  w = tf.get_variable('w', initializer=[[0.0, 0.0]])
  update = lars.Lars(0.1, 0.9).apply_gradients([(tf.constant([[1.0, 2]]), w)])
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(update)
  np.testing.assert_allclose(tf_session.run(w), [[-0.1, -0.2]])


def test_weights_without_a_gradient_shrink_by_their_decay_alone(tf_session):
  w = tf.get_variable('w', initializer=[[2.0, 4.0]])
  optimizer = lars.Lars(0.1, 0.9, weight_decay=0.01, trust_coefficient=0.5)
  update = optimizer.apply_gradients([(tf.zeros([1, 2]), w)])
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(update)
  # 1 - gamma beta; lambda by the formula, eta / beta, would make it 0.95.
  np.testing.assert_allclose(tf_session.run(w), [[2 * 0.999, 4 * 0.999]])
