"""seeds: what random numbers depend on, and on what they do not."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import image_ops, seeds
from distmnist.nn import hidden, layers
from distmnist.transport import sharding


@functools.cache
def draw_weights(seed, worker=0, num_ps=0, num_slices=1, before=None):
  """Returns {name: first weights, whole} of a small net."""
  with tf.Graph().as_default(), tf.Session() as session:
    seeds.set_seed(seed, worker)
    if before:
      before()
    with sharding.sharded(num_ps):
      outputs = layers.flatten(
        layers.conv(tf.zeros([1, 4, 4, 1]), 8, 3, 'conv', 'he')
      )
      slices = hidden.split_dense([outputs], 12, num_slices, 'hidden')
      layers.dense(tf.concat(slices, 1), 10, 'softmax', 'normal')
    session.run(tf.global_variables_initializer())
    whole = {}
    for variable in tf.global_variables():
      info = variable._get_save_slice_info()
      name = info.full_name if info else variable.op.name
      whole.setdefault(name, []).append((info, session.run(variable)))

  def join(parts):
    if parts[0][0] is None:
      return parts[0][1]
    array = np.full(parts[0][0].full_shape, np.nan, np.float32)
    for info, value in parts:
      place = zip(info.var_offset, info.var_shape, strict=True)
      array[tuple(slice(at, at + n) for at, n in place)] = value
    return array

  return {
    name: join(parts)
    for name, parts in whole.items()
    if name.endswith('weights')
  }


def check_equal(found, expected):
  assert found.keys() == expected.keys() and len(found) == 3
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value)


@pytest.mark.slow
@pytest.mark.parametrize('shape', [(3, 1), (2, 3)])
def test_the_first_weights_are_the_same_for_any_number_of_shards(shape):
  check_equal(draw_weights(3, 0, *shape), draw_weights(3))


@pytest.mark.slow
def test_the_first_weights_do_not_depend_on_worker_or_input():
  def build_input():
    images = tf.zeros([2, 5, 5, 1], tf.uint8)
    image_ops.shift(images, 1)
    tf.random.uniform([3])

  check_equal(draw_weights(3, worker=2, before=build_input), draw_weights(3))


@pytest.mark.slow
def test_two_seeds_and_two_variables_share_no_weight():
  found = [x for s in (0, 1) for x in draw_weights(s).values()]
  values = np.concatenate([np.ravel(x) for x in found])
  assert len(np.unique(values)) > 0.999 * len(values)


def draw_mask(session, seed, place, name='dropout', worker=0):
  with tf.Graph().as_default(), tf.Session() as session:
    seeds.set_seed(seed, worker)
    seeds.set_place(tf.constant(place, tf.int64))
    with tf.name_scope(name):
      return session.run(layers.dropout(tf.ones([8, 64]), 0.5, True))


@pytest.mark.slow
def test_a_mask_depends_on_seed_batch_and_op_and_not_on_the_worker(tf_session):
  mask = draw_mask(tf_session, 1, 700)
  np.testing.assert_array_equal(draw_mask(tf_session, 1, 700, worker=3), mask)
  for other in (
    draw_mask(tf_session, 2, 700),
    draw_mask(tf_session, 1, 800),
    draw_mask(tf_session, 1, 700, 'tower_1'),
  ):
    # Independent masks agree in half of their units.
    assert 0.4 < np.mean(other == mask) < 0.6


def test_where_no_batches_are_dealt_each_step_draws_anew(tf_session):
  tf.set_random_seed(1)
  mask = layers.dropout(tf.ones([8, 64]), 0.5, True)
  one, two = tf_session.run(mask), tf_session.run(mask)
  assert 0.4 < np.mean(one == two) < 0.6


def test_without_a_seed_no_two_starts_are_alike():
  def draw():
    with tf.Graph().as_default(), tf.Session() as session:
      initialize = layers.make_initializer('normal', 'w')
      return session.run(initialize([5, 5]))

  assert not np.any(draw() == draw())
