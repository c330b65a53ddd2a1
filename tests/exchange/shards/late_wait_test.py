"""late_wait: one token each, or the newest of the round and none of units."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.shards import late_wait

DEVICE = '/device:CPU:0'


@pytest.mark.parametrize(
  'staleness, token, left, unit_left', [(0, 5, 2, 1), (2, 7, 0, 0)]
)
def test_who_is_late_takes_all_and_who_is_not_one(
  tf_session, staleness, token, left, unit_left
):
  own = tf.FIFOQueue(-1, tf.int64, ())
  unit = tf.FIFOQueue(-1, tf.bool, ())
  tf_session.run(own.enqueue_many([[5, 6, 7]]))
  tf_session.run(unit.enqueue_many([[True, True]]))
  wait = late_wait.LateWait(own, DEVICE, tf.constant(staleness, tf.int64))
  fetches = wait.take(), wait.take_of_unit(unit)
  assert tf_session.run(fetches)[0] == token
  assert tf_session.run([own.size(), unit.size()]) == [left, unit_left]


@pytest.mark.slow
def test_who_is_late_waits_for_a_token_of_the_round_and_not_of_units(
  tf_session,
):
  own = tf.FIFOQueue(-1, tf.int64, ())
  unit = tf.FIFOQueue(-1, tf.bool, ())
  late = tf.placeholder(tf.int64, [])
  wait = late_wait.LateWait(own, DEVICE, late)
  fetches = wait.take(), wait.take_of_unit(unit)
  soon = tf.RunOptions(timeout_in_ms=300)
  with pytest.raises(tf.errors.DeadlineExceededError):
    tf_session.run(fetches, {late: 1}, options=soon)
  tf_session.run(own.enqueue_many([[5]]))
  assert tf_session.run(fetches, {late: 1})[0] == 5
  # One that is not waits for each.
  tf_session.run(own.enqueue_many([[6]]))
  with pytest.raises(tf.errors.DeadlineExceededError):
    tf_session.run(fetches, {late: 0}, options=soon)
