"""gradient_accumulation: the mean of the gradients of slices, in order."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import gradient_accumulation, optimizers

RNG = np.random.default_rng(5)
NUM_SLICES, SIZE = 3, 4
X = RNG.normal(size=(NUM_SLICES * SIZE, 2)).astype(np.float32)
IDS = RNG.integers(0, 6, NUM_SLICES * SIZE)


def build_loss(events=None):
  """Builds a net on slices of X and IDS; returns (loss, whole loss, variables).

  Args:
    events: list, takes what is computed in its order, such as ('begin', 0).
  """
  x, ids = tf.constant(X), tf.constant(IDS)
  table = tf.get_variable('table', [6, 2])
  weights = tf.get_variable('weights', [2, 1])
  unused = tf.get_variable('unused', [2])

  def compute(x, ids, note=tf.identity):
    hidden = note(tf.gather(table, ids) * tf.tanh(x))
    # No mean over examples, as under batch norm: a slice has its own.
    return tf.reduce_mean(hidden @ weights) ** 2

  losses, gates = [], []
  for number in range(NUM_SLICES):
    gate = tf.identity(x)
    part = slice(number * SIZE, (number + 1) * SIZE)
    note = tf.identity if events is None else _make_note(number, events)
    losses.append(compute(gate[part], ids[part], note))
    gates.append(gate.op)
  pairs = zip(*(tf.split(t, NUM_SLICES) for t in (x, ids)), strict=True)
  whole = tf.add_n([compute(*pair) for pair in pairs]) / NUM_SLICES
  mean = gradient_accumulation.build_mean(losses, gates)
  return mean, whole, [table, weights, unused]


def _make_note(number, events):
  """Returns an identity that notes a slice's way there and back."""

  def call(word, value):
    def note(value):
      events.append((word, number))
      return value

    noted = tf.py_func(note, [value], tf.float32)
    return tf.ensure_shape(noted, value.shape)

  @tf.custom_gradient
  def pass_on(value):
    return call('there', value), lambda upstream: call('back', upstream)

  return pass_on


@pytest.mark.slow
@pytest.mark.parametrize(
  'name, clip_norm',
  [('momentum', None), ('adam', 0.01), ('adagrad', None)],
)
def test_a_step_is_that_of_the_mean_loss(tf_session, name, clip_norm):
  loss, whole, variables = build_loss()
  found = []
  for minimized in (loss, whole):
    optimizer = optimizers.make_optimizer(name, 0.1, clip_norm=clip_norm)
    step = optimizer.minimize(minimized)
    tf_session.run(tf.global_variables_initializer())
    for number, variable in enumerate(variables):
      rng = np.random.default_rng(number)
      variable.load(rng.normal(size=variable.shape), tf_session)
    for _ in range(3):
      tf_session.run(step)
    found.append(tf_session.run(variables))
  for mine, wanted in zip(*found, strict=True):
    np.testing.assert_allclose(mine, wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_rows_are_summed_up_and_what_has_no_gradient_has_none(tf_session):
  loss, _, variables = build_loss()
  optimizer = optimizers.make_optimizer('sgd', 0.1)
  pairs = optimizer.compute_gradients(loss, variables)
  (rows, _), (dense, _), (none, _) = pairs
  assert none is None
  assert rows.shape == [6, 2] and dense.shape == [2, 1]


@pytest.mark.slow
def test_a_slice_begins_when_the_gradient_of_the_one_before_is_there(
  tf_session,
):
  events = []
  loss, _, variables = build_loss(events)
  optimizer = optimizers.make_optimizer('sgd', 0.1)
  step = optimizer.minimize(loss, var_list=variables)
  tf_session.run(tf.global_variables_initializer())
  for _ in range(10):
    tf_session.run([step, loss])
  once = [(word, i) for i in range(NUM_SLICES) for word in ('there', 'back')]
  assert events == 10 * once


@pytest.mark.slow
def test_another_loss_has_its_own_gradient(tf_session):
  _, whole, variables = build_loss()
  optimizer = optimizers.make_optimizer('sgd', 0.1)
  pairs = optimizer.compute_gradients(whole, variables[:2])
  wanted = tf.gradients(whole, variables[1])
  tf_session.run(tf.global_variables_initializer())
  found, wanted = tf_session.run([pairs[1][0], wanted[0]])
  np.testing.assert_array_equal(found, wanted)
