"""lamb: algorithm 2 of the paper, on whole layers that are in shards."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import lamb
from tests.support import lock_step

# As float32 has them and their powers: 1 - 0.999 is off by 1e-5 of itself.
BETAS = np.float32(0.9), np.float32(0.999)


class Oracle:
  """Algorithm 2 with phi(z) = z; biases have the ratio 1 and no decay."""

  def __init__(self, decay):
    self._decay, self._moments = decay, {}

  def __call__(self, name, w, g, step):
    m, v = self._moments.get(name, (0, 0))
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    self._moments[name] = m, v
    power1, power2 = (
      float(np.cumprod([beta] * (step + 1))[-1]) for beta in BETAS
    )
    r = m / (1 - power1) / (np.sqrt(v / (1 - power2)) + 1e-6)
    ratio = 1
    if w.ndim > 1:
      r = r + self._decay * w
      ratio = np.linalg.norm(w) / np.linalg.norm(r)
    return w - lock_step.RATES[step] * ratio * r


@pytest.mark.slow
def test_two_workers_and_shards_equal_numpy(make_cluster, set_flags):
  set_flags('--optimizer=lamb', '--weight_decay=0.3', *lock_step.FLAGS)
  lock_step.check(make_cluster(2, 2), Oracle(0.3))


def test_weights_of_zero_still_move(tf_session):
  w = tf.get_variable('w', initializer=[[0.0, 0.0]])
  update = lamb.Lamb(0.1).apply_gradients([(tf.constant([[1.0, -2]]), w)])
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(update)
  np.testing.assert_allclose(tf_session.run(w), [[-0.1, 0.1]], rtol=1e-4)
