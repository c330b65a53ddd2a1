"""formulas: slots and oracles; each equation by itself: optimizers_test.py."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import formulas, optimizers
from tests.support import lock_step

# As float32 has them and their powers: 1 - 0.999 is off by 1e-5 of itself.
BETAS = np.float32(0.9), np.float32(0.999)
# As checkpoints have had them from the first: beside w.
SAVED = {
  'sgd': [],
  'momentum': ['w/Momentum'],
  'nesterov': ['w/Momentum'],
  'adam': ['beta1_power', 'beta2_power', 'w/Adam', 'w/Adam_1'],
  'adamw': ['beta1_power', 'beta2_power', 'w/Adam', 'w/Adam_1'],
  'adagrad': ['w/Adagrad'],
  'rmsprop': ['w/RMSProp', 'w/RMSProp_1'],
  'ftrl': ['w/Ftrl', 'w/Ftrl_1'],
  'lars': ['w/Lars'],
  'lamb': ['beta1_power', 'beta2_power', 'w/Lamb', 'w/Lamb_1'],
}


@pytest.mark.parametrize(
  'name, dtype',
  [('adam', tf.float32), *((n, tf.bfloat16) for n in optimizers.OPTIMIZERS)],
)
def test_what_is_kept_has_the_names_and_dtypes_of_checkpoints(
  tf_session, name, dtype
):
  w = tf.get_variable('w', [2, 3], dtype)
  optimizers.make_optimizer(name, 0.1).apply_gradients([(tf.ones_like(w), w)])
  found = {v.op.name: v.dtype.base_dtype for v in tf.global_variables()}
  assert found.pop('w') == dtype
  assert found == {
    name: tf.float32 if 'beta' in name else dtype for name in SAVED[name]
  }


@pytest.mark.parametrize('name', optimizers.OPTIMIZERS)
def test_a_formula_begins_anywhere_in_a_variable(tf_session, name):
  """What begins beside rows is that beside a whole variable."""
  value = np.random.default_rng(0).normal(size=[4, 2]).astype(np.float32)
  w = tf.get_variable('w', initializer=value)
  optimizer = optimizers.make_optimizer(name, 0.1)
  optimizer.apply_gradients([(tf.ones_like(w), w)])
  tf_session.run(tf.global_variables_initializer())
  for slot in formulas.make(name).slots:
    found = tf_session.run(optimizer.get_slot(w, slot.name))
    begun = slot.begin(value) if callable(slot.begin) else slot.begin
    np.testing.assert_array_equal(found, np.full([4, 2], begun, np.float32))


def make_ftrl(rate, **own):
  return optimizers.make_optimizer('ftrl', rate, **own)


def test_a_large_penalty_leaves_exact_zeros(tf_session):
  w = tf.get_variable('w', initializer=[1.0, -2.0, 0.5])
  optimizer = make_ftrl(0.1, l1=100.0)
  update = optimizer.apply_gradients([(tf.constant([0.3, 2.0, -1.0]), w)])
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(update)
  assert tf_session.run(w).tolist() == [0, 0, 0]


def test_its_sums_begin_where_random_first_weights_are(tf_session):
  w = tf.get_variable('w', [4], initializer=tf.random_normal_initializer())
  optimizer = make_ftrl(0.1)
  optimizer.apply_gradients([(tf.zeros([4]), w)])
  tf_session.run(tf.global_variables_initializer())
  found, linear = tf_session.run([w, optimizer.get_slot(w, 'linear')])
  np.testing.assert_allclose(linear, -np.sqrt(0.1) * found, rtol=1e-6)


class Lars:
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


class Lamb:
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


CASES = {
  'lars': (
    ('--momentum=0.8', '--trust_coefficient=0.5'),
    lambda: Lars(0.8, 0.3, 0.5),
  ),
  'lamb': ((), lambda: Lamb(0.3)),
}


@pytest.mark.daily(but=['lamb'])
@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_two_workers_and_shards_equal_numpy(make_cluster, set_flags, name):
  words, make_oracle = CASES[name]
  set_flags(
    f'--optimizer={name}', '--weight_decay=0.3', *words, *lock_step.FLAGS
  )
  lock_step.check(make_cluster(2, 2), make_oracle())


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, expected', [('lars', [0.1, 0.2]), ('lamb', [0.1, 0.1])]
)
def test_weights_of_zero_still_move(tf_session, name, expected):
  w = tf.get_variable('w', initializer=[[0.0, 0.0]])
  optimizer = optimizers.make_optimizer(name, 0.1)
  update = optimizer.apply_gradients([(tf.constant([[-1.0, -2]]), w)])
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(update)
  np.testing.assert_allclose(tf_session.run(w), [expected], rtol=1e-4)


@pytest.mark.slow
def test_weights_without_a_gradient_shrink_by_their_decay_alone(tf_session):
  w = tf.get_variable('w', initializer=[[2.0, 4.0]])
  optimizer = optimizers.make_optimizer(
    'lars', 0.1, weight_decay=0.01, trust_coefficient=0.5
  )
  update = optimizer.apply_gradients([(tf.zeros([1, 2]), w)])
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(update)
  # 1 - gamma beta; lambda by the formula, eta / beta, would make it 0.95.
  np.testing.assert_allclose(tf_session.run(w), [[2 * 0.999, 4 * 0.999]])
