"""shared_rows: each row once, and its gradients added up."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.tables import shared_rows


@pytest.mark.parametrize('ids', [[], [5, 61, 5, 0, 3, 61, 5]])
def test_ids_are_in_order_and_each_once(tf_session, ids):
  keys, places = shared_rows.find_each(tf.constant(ids, tf.int64), 62)
  again = shared_rows.make_places(places.of_ids)
  keys, places, again = tf_session.run([keys, places, again])
  assert keys.tolist() == sorted(set(ids))
  assert keys[places.of_ids].tolist() == ids
  assert keys[places.in_order].tolist() == sorted(ids)
  for one, other in zip(places, again, strict=True):
    assert one.dtype == np.int32 and one.tolist() == other.tolist()


@pytest.mark.parametrize('end', [1, 1000, 10**12])
def test_what_is_equal_stays_in_its_order(tf_session, end):
  draw = np.random.default_rng(1)
  numbers = draw.integers(max(0, end - 50), end, 300)
  found, order = tf_session.run(shared_rows.sort(tf.constant(numbers), end))
  assert found.tolist() == sorted(numbers)
  assert order.dtype == np.int32
  assert order.tolist() == np.argsort(numbers, kind='stable').tolist()


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_the_gradient_is_that_of_a_plain_gather(tf_session, dtype):
  draw = np.random.default_rng(3)
  of_ids = draw.integers(0, 5, 40) * 2  # Rows 1, 3, ... are nobody's.
  rows = tf.constant(draw.normal(size=[11, 3]), dtype)
  weights = tf.constant(draw.normal(size=[40, 3]), dtype)
  places = shared_rows.make_places(tf.constant(of_ids, tf.int32))

  def differentiate(look_up, places):
    by_row = tf.gradients(tf.reduce_sum(weights * look_up(rows, places)), rows)
    return tf.cast(tf.convert_to_tensor(by_row[0]), tf.float64)

  plain, found = tf_session.run(
    [
      differentiate(tf.gather, places.of_ids),
      differentiate(shared_rows.gather, places),
    ]
  )
  assert found.shape == (11, 3)
  tolerance = 0.1 if dtype == 'bfloat16' else 1e-5
  np.testing.assert_allclose(found, plain, atol=tolerance)


@pytest.mark.slow
def test_a_gradient_of_the_gradient_is_right(tf_session):
  rows = tf.constant([[1.0], [2.0]])
  places = shared_rows.make_places(tf.constant([0, 1, 0]))
  loss = tf.reduce_sum(shared_rows.gather(rows, places) ** 3)
  [by_rows] = tf.gradients(loss, rows)
  [again] = tf.gradients(tf.reduce_sum(by_rows**2), rows)
  # 2 r^3 + s^3; (6 r^2)^2 + (3 s^2)^2; 144 r^3, 36 s^3.
  assert tf_session.run(by_rows).tolist() == [[6], [12]]
  assert tf_session.run(again).tolist() == [[144], [288]]
