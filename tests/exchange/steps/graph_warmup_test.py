"""graph_warmup: what is held back in a warm-up, and the pull after it."""

import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.copies import local_copies
from distmnist.exchange.steps import graph_warmup

CPU = '/device:CPU:0'


@pytest.fixture
def warmup(tf_session):
  """A Warmup in the default graph."""
  return graph_warmup.Warmup(CPU)


def start(session):
  session.run(
    [tf.global_variables_initializer(), tf.local_variables_initializer()]
  )


def test_a_session_does_not_begin_in_a_warmup(tf_session, warmup):
  start(tf_session)
  [is_on] = tf.local_variables()
  assert (is_on.op.name, is_on.device) == ('is_warmup', CPU)
  assert not tf_session.run(is_on)


@pytest.mark.parametrize('dtype', [tf.float32, tf.int64])
def test_metrics_of_a_warmup_are_zeros(tf_session, warmup, dtype):
  number = warmup.hold_back(tf.constant([3, 5], dtype))
  found = warmup.or_zeros(number + 1)
  start(tf_session)
  for is_on in (False, True, False):
    tf_session.run(warmup.turn(is_on))
    assert tf_session.run(found).tolist() == ([0, 0] if is_on else [4, 6])


class Steps:
  """Stands for fused_steps.Steps with two kinds of runs, which are counted."""

  def __init__(self, warmup, step):
    self._number = tf.placeholder(tf.float32, [])
    held = warmup.hold_back(self._number)
    self.seen = tf.get_local_variable('seen', initializer=0.0)
    self._one = warmup.or_zeros(step(held))
    # It does not depend on the batch, and so runs.
    self._two = self.seen.assign_add(self._number)

  def find_all_runs(self):
    return [(self._one, {self._number: 4}), (self._two, {self._number: 5})]

  def run(self, session, number):
    return session.run(self._one, {self._number: number})


def test_each_kind_of_run_is_run_and_the_copies_are_pulled_late(
  tf_session, warmup
):
  center = tf.get_variable('w', initializer=1.0)
  copy = tf.get_local_variable(
    'copy',
    initializer=-1.0,
    collections=[tf.GraphKeys.LOCAL_VARIABLES, local_copies.VARIABLES],
  )
  pull = copy.assign(center.read_value()).op
  tf.add_to_collection(local_copies.PULLS, pull)
  steps = Steps(warmup, center.assign_add)
  hook = warmup.hook(steps)
  hook.begin()
  start(tf_session)

  hook.after_create_session(tf_session, None)
  assert tf_session.run([steps.seen, center, copy]) == [5, 1, -1]
  # Another worker pushes before this one has made a step.
  center.load(20.0, tf_session)
  context = types.SimpleNamespace(session=tf_session)
  hook.before_run(context)
  assert tf_session.run(copy) == 20
  assert steps.run(tf_session, 4) == 24  # The warm-up is over.
  # Later runs do not pull: that is for the rule to do.
  hook.before_run(context)
  assert tf_session.run(copy) == 20
  # A session that was recovered has a warm-up of its own.
  hook.after_create_session(tf_session, None)
  assert tf_session.run([steps.seen, center]) == [10, 24]
  hook.before_run(context)
  assert tf_session.run(copy) == 24
