"""strategy: the contract's defaults, its flags, and how updates are counted."""

import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import cluster as cluster_lib
from distmnist.transport import strategy


def make_member(num_ps, num_workers):
  """A worker; nothing is started."""
  ps_hosts = tuple(f'p{i}:1' for i in range(num_ps))
  worker_hosts = tuple(f'w{i}:1' for i in range(num_workers))
  return cluster_lib.make_cluster(ps_hosts, worker_hosts, 'worker', 0)


def test_by_default_each_step_of_a_worker_is_an_update():
  rule = strategy.Strategy(make_member(1, 2))
  assert rule.batches_per_update == rule.pull_period == rule.push_period == 1
  assert (rule.is_lock_step, rule.max_staleness) == (False, None)
  assert rule.hooks(stop=None) == []
  with pytest.raises(NotImplementedError):
    rule.minimize(None, None, None)


def test_a_loop_ends_at_once_unless_a_rule_says_otherwise():
  context = tf.train.SessionRunContext(None, None)
  strategy.Strategy(make_member(1, 2)).request_stop(context)
  assert context.stop_requested


def test_a_mark_comes_after_the_ops_if_anybody_wants_to_know():
  rule = strategy.Strategy(make_member(1, 2))
  assert rule.mark_done(['a', 'b']) == ['a', 'b']
  rule.mark_by(lambda ops: f'after {ops}')
  assert rule.mark_done(['a', 'b']) == ['a', 'b', "after ['a', 'b']"]


class Waits(strategy.CenterHook):
  def __init__(self, text):
    self._text = text

  def describe_wait(self):
    return self._text


def test_a_wait_is_what_the_hooks_of_the_center_know_of_it():
  hooks = [
    tf.train.SessionRunHook(),
    strategy.CenterHook(),
    Waits('for worker 1'),
    Waits(''),
    Waits('for ps 0'),
  ]
  assert strategy.describe_wait(hooks) == 'for worker 1; for ps 0'
  assert strategy.describe_wait(hooks[:2]) == ''


@pytest.fixture
def global_step(tf_session):
  """An int64 variable that is 7."""
  step = tf.get_variable('global_step', initializer=tf.constant(7, tf.int64))
  tf_session.run(step.initializer)
  return step


def test_a_read_comes_after_the_ops(tf_session, global_step):
  added = global_step.assign_add(10, read_value=False)
  value = strategy.read_after(global_step, [added])
  assert [tf_session.run(value) for _ in range(3)] == [17, 27, 37]


@pytest.mark.parametrize('num_others', [0, 1, 4])
def test_staleness_is_the_updates_between_read_and_write(
  tf_session, global_step, num_others
):
  read_step = tf.placeholder(tf.int64, [])
  counted = strategy.count_update(global_step, [], read_step)
  read_v = tf_session.run(global_step)
  global_step.load(read_v + num_others, tf_session)
  found = tf_session.run(counted, {read_step: read_v})
  assert found == (8 + num_others, num_others)
  assert tf_session.run(global_step) == 8 + num_others


def test_an_update_is_counted_when_it_is_done_and_marked_before_it_is_told(
  tf_session, global_step
):
  seen = tf.get_variable('seen', initializer=tf.zeros([2], tf.int64))
  tf_session.run(seen.initializer)
  # The ops see the step before, the mark the one after.
  applied = seen[0].assign(global_step.read_value())

  def mark_done(ops):
    value = strategy.read_after(global_step, ops)
    return [*ops, seen[1].assign(value)]

  new_step, _ = strategy.count_update(
    global_step, [applied], tf.constant(7, tf.int64), mark_done
  )
  assert tf_session.run(new_step) == 8
  assert tf_session.run(seen).tolist() == [7, 8]


def test_all_of_a_count_is_beside_the_global_step(tf_session):
  place = '/job:ps/task:1/device:CPU:0'
  with tf.device(place):
    global_step = tf.train.get_or_create_global_step()
  read_step = tf.placeholder(tf.int64, [])
  before = set(tf.get_default_graph().get_operations())
  with tf.device('/job:worker/task:0/device:CPU:0'):
    strategy.count_update(global_step, [], read_step)
  added = set(tf.get_default_graph().get_operations()) - before
  assert {op.device for op in added} == {place}
  # One op counts and tells the number, or two updates might have the same.
  assert [op.type for op in added if op.op_def.is_stateful] == [
    'ResourceCountUpTo'
  ]


def test_bytes_are_elements_times_their_size(tf_session):
  variables = [
    tf.get_variable('a', [3, 5]),
    tf.get_variable('b', [2], tf.int64),
    tf.get_variable('c', [], tf.float32),
  ]
  assert strategy.count_bytes(variables) == 60 + 16 + 4
  assert strategy.count_bytes([]) == 0


def test_the_period_is_that_of_the_rule_unless_it_is_given(set_flags):
  set_flags()
  assert strategy.communication_period_from_flags(5) == 5
  set_flags('--communication_period=1')
  assert strategy.communication_period_from_flags(5) == 1


def test_a_gradient_of_each_worker_is_aggregated_unless_told(set_flags):
  member = make_member(1, 3)
  set_flags()
  assert strategy.replicas_to_aggregate_from_flags(member) == 3
  set_flags('--replicas_to_aggregate=2')
  assert strategy.replicas_to_aggregate_from_flags(member) == 2


@pytest.mark.parametrize(
  'word, message',
  [
    (
      '--communication_period=0',
      '^flag --communication_period=0: 0 is not a positive integer$',
    ),
    ('--communication_period=x', 'communication_period=x'),
    ('--replicas_to_aggregate=0', 'replicas_to_aggregate=0'),
  ],
)
def test_a_period_or_a_number_of_replicas_below_one_is_refused(
  set_flags, word, message
):
  with pytest.raises(flags.IllegalFlagValueError, match=message):
    set_flags(word)


def test_a_center_is_whole_if_all_hooks_of_it_say_so():
  class Half(strategy.CenterHook):
    def is_whole(self, session):
      return session == 'whole'

  hooks = [strategy.CenterHook(), tf.train.SessionRunHook(), Half()]
  assert strategy.is_whole(hooks, 'whole')
  assert not strategy.is_whole(hooks, 'half')
