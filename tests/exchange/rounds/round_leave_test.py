"""Leave: what ends the updates, what the others wait for, and how long.

With servers it is tested in shard_barrier_test.py.
"""

import threading
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_hook
from tests.support import in_process


class Fake:
  """A round of one graph, whose state the test sets."""

  def __init__(self, session, is_chief, is_whole=True):
    self.session, self.calls = session, []
    self.whole = tf.Variable(is_whole)
    self.is_over, self.full = tf.Variable(False), tf.Variable(False)
    self.offers = tf.Variable(0)
    session.run(tf.global_variables_initializer())
    tokens = types.SimpleNamespace(
      offer_own=lambda: self.offers.assign_add(1).op,
    )
    entry = types.SimpleNamespace(
      build_end=lambda: (
        self.is_over.read_value(),
        self.is_over.assign(True).op,
      ),
      build_full=lambda: self.full.assign(True).op,
    )
    cluster = types.SimpleNamespace(is_chief=is_chief)
    self.stop = in_process.AskedStop()
    self.stop.is_requested = True
    self.leave = round_hook.Leave(
      types.SimpleNamespace(
        build_is_whole=lambda: self.whole.read_value(),
        tokens=tokens,
        entry=entry,
        cluster=cluster,
      ),
      self.stop,
    )
    self.leave.build()

  def read(self, *names):
    return self.session.run([getattr(self, name) for name in names])

  def end_updates(self):
    self.calls.append(self.read('full', 'is_over'))

  def start(self):
    thread = threading.Thread(
      target=self.leave.leave, args=(self.session, self.end_updates)
    )
    thread.start()
    return thread


@pytest.mark.slow
def test_a_chief_ends_the_updates_once_all_are_of_one(tf_session):
  fake = Fake(tf_session, is_chief=True, is_whole=False)
  assert not fake.leave.is_whole(tf_session)
  thread = fake.start()
  thread.join(0.3)
  assert not fake.calls
  tf_session.run(fake.whole.assign(True))
  wait_for(lambda: fake.read('offers')[0] > 0)
  # It ends them once none may enter any more, and only then may others go.
  assert fake.calls == [[True, False]]
  assert fake.read('is_over') == [True]
  fake.leave.has_left.set()
  thread.join(in_process.DEADLINE_SECS)
  assert not thread.is_alive()


def wait_for(is_so):
  for _ in range(1000):
    if is_so():
      return
    threading.Event().wait(0.02)
  raise TimeoutError


def test_it_waits_for_half_of_what_the_stop_leaves(tf_session):
  fake = Fake(tf_session, is_chief=True, is_whole=False)
  fake.stop.secs_left = 0.1
  fake.leave.finish_round(tf_session, fake.end_updates)
  assert fake.calls == [[True, False]]
  # At its end it does not wait again.
  fake.stop.secs_left = 1e9
  fake.leave.finish_round(tf_session, fake.end_updates)
  assert len(fake.calls) == 2
  assert not fake.leave.is_whole(tf_session)


def test_a_worker_whose_step_ends_meanwhile_keeps_its_session(tf_session):
  fake = Fake(tf_session, is_chief=False)
  thread = fake.start()
  fake.leave.has_left.set()
  thread.join(in_process.DEADLINE_SECS)
  assert fake.read('is_over') == [False]


def test_a_chief_whose_session_is_closed_meanwhile_offers_no_more():
  with tf.Graph().as_default():
    session = tf.Session()
    fake = Fake(session, is_chief=True)
    thread = fake.start()
    wait_for(lambda: fake.read('offers')[0] > 0)
    session.close()
    thread.join(in_process.DEADLINE_SECS)
  assert not thread.is_alive()
