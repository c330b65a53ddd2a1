"""weight_decay: beside each optimizer, and on shards in lock-step."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import optimizers
from tests.support import lock_step

# FTRL refuses it, and the others have a decay of their own.
DECAYING = [
  name for name in optimizers.OPTIMIZERS if name not in ('ftrl', 'lars', 'lamb')
]
QUICK = 'sgd', 'adamw'


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK))
    for name in DECAYING
  ],
)
def test_a_matrix_decays_beside_the_step_and_a_vector_does_not(
  tf_session, name
):
  """By how much: against the same optimizer without decay, at the same w."""
  start, gradient = np.float32([1, -2]), np.float32([0.5, 0.25])
  found = {}
  for decay in (0, 0.3):
    variables = [
      tf.get_variable(f'w{rank}_{decay > 0}', initializer=value)
      for rank, value in ((1, start), (2, start[np.newaxis]))
    ]
    pairs = [(tf.reshape(gradient, v.shape), v) for v in variables]
    update = optimizers.make_optimizer(
      name, 0.1, weight_decay=decay
    ).apply_gradients(pairs)
    tf_session.run(tf.global_variables_initializer())
    tf_session.run(update)
    found[decay] = tf_session.run(variables)
  np.testing.assert_allclose(found[0.3][0], found[0][0])
  np.testing.assert_allclose(
    found[0.3][1], found[0][1] - 0.1 * 0.3 * start, rtol=1e-6
  )


# As float32 has them and their powers: 1 - 0.999 is off by 1e-5 of itself.
BETAS = float(np.float32(0.9)), float(np.float32(0.999))


class AdamW:
  """Algorithm 2 of the paper; each variable has a state of its own."""

  def __init__(self, rates, decay):
    self._rates, self._decay = rates, decay
    self._state = {}

  def __call__(self, name, w, g, step):
    beta1, beta2 = BETAS
    m, v = self._state.get(name, (0, 0))
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
    self._state[name] = m, v
    power1, power2 = (
      float(np.cumprod([np.float32(beta)] * (step + 1))[-1]) for beta in BETAS
    )
    m = m / (1 - power1)
    # TensorFlow has epsilon beside the root that is not yet corrected.
    root = (np.sqrt(v) + 1e-8) / np.sqrt(1 - power2)
    decay = self._decay if w.ndim > 1 else 0
    return w - self._rates[step] * (m / root + decay * w)


class Ftrl:
  """Algorithm 1 of McMahan et al. 2013, with eta in z; z starts as for w."""

  def __init__(self, rates, l1, l2):
    self._rates, self._l1, self._l2 = rates, l1, l2
    self._state = {}

  def __call__(self, name, w, g, step):
    eta = self._rates[step]
    n, z = self._state.get(name, (0.1, -np.sqrt(0.1) * w))
    z = z + eta * g - (np.sqrt(n + g**2) - np.sqrt(n)) * w
    n = n + g**2
    self._state[name] = n, z
    shrunk = np.sign(z) * np.maximum(np.abs(z) - eta * self._l1, 0)
    return -shrunk / (np.sqrt(n) + 2 * eta * self._l2)


ORACLES = {
  'adamw': (('--weight_decay=0.3',), functools.partial(AdamW, decay=0.3)),
  'ftrl': (
    ('--ftrl_l1=0.02', '--ftrl_l2=0.1'),
    functools.partial(Ftrl, l1=0.02, l2=0.1),
  ),
}


@pytest.mark.daily(but=['adamw'])
@pytest.mark.slow
@pytest.mark.parametrize('name', ORACLES)
def test_two_workers_and_two_ps_equal_numpy(make_cluster, set_flags, name):
  words, make_oracle = ORACLES[name]
  set_flags(f'--optimizer={name}', *words, *lock_step.FLAGS)
  lock_step.check(make_cluster(2, 2), make_oracle(lock_step.RATES))
