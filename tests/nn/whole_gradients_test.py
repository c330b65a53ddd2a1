"""whole_gradients: a net with tf.gather trains as one with dense gradients."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.nn import optimizers

START = np.random.default_rng(0).normal(size=[4, 2]).astype(np.float32)


@pytest.mark.parametrize(
  'decay, clip_norm',
  [
    (0, None),
    pytest.param(0.3, None, marks=pytest.mark.slow),
    pytest.param(0, 0.5, marks=pytest.mark.slow),
  ],
)
@pytest.mark.parametrize('name', optimizers.OPTIMIZERS)
def test_rows_that_are_looked_up_more_than_once_are_summed_up_first(
  tf_session, name, decay, clip_norm
):
  if decay and name == 'ftrl':
    pytest.skip('refused')
  found = []
  for is_gathered in True, False:
    variable = tf.Variable(START, use_resource=True)
    unused = tf.Variable(START, use_resource=True)
    rows = tf.constant([2, 0, 2, 2])
    if is_gathered:
      given = tf.gather(variable, rows)
    else:
      given = tf.matmul(tf.one_hot(rows, 4), variable)
    optimizer = optimizers.make_optimizer(
      name, 0.1, clip_norm=clip_norm, weight_decay=decay
    )
    pairs = optimizer.compute_gradients(
      tf.reduce_sum(given**2), [variable, unused]
    )
    assert [tf.is_tensor(g) for g, _ in pairs] == [True, False]
    apply = optimizer.apply_gradients(pairs)
    tf_session.run(tf.global_variables_initializer())
    for _ in range(3):
      tf_session.run(apply)
    found.append(tf_session.run(variable))
  np.testing.assert_allclose(*found, atol=1e-6)
