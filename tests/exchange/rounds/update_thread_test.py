"""UpdateThread: updates one after the other, and what ends them."""

import threading
import time

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_hook

DEADLINE_SECS = 60


def wait_until(is_true):
  deadline = time.monotonic() + DEADLINE_SECS
  while not is_true():
    assert time.monotonic() < deadline
    time.sleep(0.01)


@pytest.fixture
def coord():
  return tf.train.Coordinator()


def test_it_updates_until_the_training_is_over(tf_session, coord):
  count = tf.get_variable('count', [], tf.int64, tf.zeros_initializer())
  update = count.assign_add(1).op
  tf_session.run(count.initializer)
  has_left = threading.Event()
  updates = round_hook.UpdateThread(update, tf_session, coord, has_left)
  updates.start()
  wait_until(lambda: tf_session.run(count) >= 3)
  assert updates.is_alive
  has_left.set()
  wait_until(lambda: not updates.is_alive)
  assert not coord.should_stop()


def test_an_update_that_fails_stops_the_session(tf_session, coord):
  fails = tf.debugging.Assert(False, ['broken'])
  updates = round_hook.UpdateThread(fails, tf_session, coord, threading.Event())
  updates.start()
  wait_until(coord.should_stop)
  with pytest.raises(tf.errors.InvalidArgumentError, match='broken'):
    coord.join([])
  wait_until(lambda: not updates.is_alive)
  with pytest.raises(RuntimeError, match='closed'):
    tf_session.run(tf.constant(0))


def test_it_is_ended_alone_where_there_is_a_server(make_cluster, coord):
  target = make_cluster(1, 1).servers[0].target
  with tf.Graph().as_default(), tf.device('/job:ps/task:0'):
    queue = tf.FIFOQueue(-1, tf.bool, ())
    waits, alive = queue.dequeue().op, tf.constant(7)
    has_left = threading.Event()
    with tf.Session(target) as session:
      updates = round_hook.UpdateThread(waits, session, coord, has_left)
      updates.start()
      has_left.set()
      updates.end()
      wait_until(lambda: not updates.is_alive)
      assert session.run(alive) == 7
  assert not coord.should_stop()
