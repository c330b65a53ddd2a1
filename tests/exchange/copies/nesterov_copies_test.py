"""nesterov_copies: x, v and the look-ahead, by hand and beside plain SGD."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.copies import nesterov_copies
from distmnist.nn import optimizers


@pytest.fixture
def build(tf_session):
  """Returns build(momentum) -> (copies, the fetches of a step)."""

  def build(momentum):
    copies = nesterov_copies.NesterovCopies(cluster_lib.Cluster(), momentum)
    with copies.scope():
      w = tf.get_variable('w', [1], initializer=tf.zeros_initializer())
    optimizer = optimizers.make_optimizer('sgd', 0.5)
    # The gradient is w - 8.
    gradients, positions, step = copies.begin_step(
      optimizer, tf.reduce_sum((w - 8) ** 2) / 2
    )
    with tf.control_dependencies([step]):
      moved = copies.end_step(optimizer, gradients)
    tf_session.run(tf.global_variables_initializer())
    tf_session.run(tf.local_variables_initializer())
    return copies, (gradients[0], positions[0], step, moved)

  return build


@pytest.mark.slow
def test_the_velocity_of_bfloat16_reaches_its_limit(tf_session):
  copies = nesterov_copies.NesterovCopies(cluster_lib.Cluster(), 0.99)
  with copies.scope():
    w = tf.get_variable('w', [1], tf.bfloat16, tf.zeros_initializer())
  optimizer = optimizers.make_optimizer('sgd', 0.01)
  gradients, _, step = copies.begin_step(
    optimizer, tf.reduce_sum(tf.cast(w, tf.float32))
  )
  with tf.control_dependencies([step]):
    moved = copies.end_step(optimizer, gradients)
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(tf.local_variables_initializer())
  for _ in range(1000):
    tf_session.run(moved)
  [velocity] = [v for v in tf.local_variables() if 'velocity' in v.name]
  assert tf_session.run(velocity) == pytest.approx([-1], abs=0.001)


@pytest.mark.slow
def test_the_copies_look_ahead_and_x_is_read_off_them(tf_session, build):
  copies, fetches = build(0.5)
  [velocity] = [v for v in tf.local_variables() if 'velocity' in v.name]
  assert tf_session.run(velocity) == [0]
  # v = 4, x = 4; the copy holds x + v / 2.
  assert tf_session.run(fetches) == ([-8], [0], 1, None)
  assert tf_session.run(copies.variables) == [[6]]
  # g = 6 - 8, v = 2 + 1 = 3, x = 7.
  assert tf_session.run(fetches) == ([-2], [4], 2, None)
  assert tf_session.run(copies.variables) == [[8.5]]
  assert tf_session.run(fetches)[:2] == ([0.5], [7])
