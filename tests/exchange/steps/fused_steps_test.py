"""fused_steps: several training steps in one session.run."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import input_pipeline, split, step_rows
from distmnist.exchange.copies import periodic_exchange
from distmnist.exchange.steps import fused_steps, run_length
from distmnist.training.hooks import stop_hook as stop_hook_lib
from tests.support import in_process


def build_step():
  """A step that takes a number from a queue; returns (tensors, queue)."""
  total = tf.get_variable('total', initializer=0.0)
  global_step = tf.train.get_or_create_global_step()
  queue = tf.FIFOQueue(-1, tf.float32, ())
  number = queue.dequeue()
  added = total.assign_add(number, read_value=False)
  with tf.control_dependencies([added]):
    sum_so_far = total.read_value()
    counted = global_step.assign_add(1, read_value=False)
  with tf.control_dependencies([counted]):
    new_step = global_step.read_value()
  tensors = {'global_step': new_step, 'number': number, 'sum': sum_so_far}
  return tensors, queue


@pytest.fixture
def make_steps(tf_session):
  """Returns make(...) -> Steps on 1, 2, 3, ... in the default session."""

  def make(*args):
    tensors, queue = build_step()
    steps = fused_steps.Steps(tensors, *args)
    tf_session.run(tf.global_variables_initializer())
    tf_session.run(queue.enqueue_many([np.arange(1.0, 50.0)]))
    return steps

  return make


@pytest.mark.parametrize('seed', [1, None])
def test_each_step_of_a_run_draws_numbers_of_its_own(tf_session, seed):
  tf.set_random_seed(seed)
  tensors, queue = build_step()
  tensors['drawn'] = tf.random.uniform(())
  steps = fused_steps.Steps(tensors, 5)
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(queue.enqueue_many([np.arange(1.0, 50.0)]))
  drawn = []
  for _ in range(3):
    steps.before_run(None)
    drawn += [step['drawn'] for step in tf_session.run(steps.chosen_tensors())]
  assert len(set(drawn)) == 15


def run(session, steps):
  """Does what a MonitoredSession does with Steps; returns the metrics."""
  args = steps.before_run(None)
  results = session.run(args.fetches, args.feed_dict)
  values = tf.train.SessionRunValues(results, None, None)
  steps.after_run(None, values)
  return steps.done


def test_what_is_fetched_has_the_metrics_of_each_step(tf_session, make_steps):
  steps = make_steps(3, in_process.Countdown(4))
  assert run(tf_session, steps) == [
    {'global_step': 1, 'number': 1, 'sum': 1},
    {'global_step': 2, 'number': 2, 'sum': 3},
    {'global_step': 3, 'number': 3, 'sum': 6},
  ]
  assert steps.last['sum'] == 6
  assert run(tf_session, steps) == [{'global_step': 4, 'number': 4, 'sum': 10}]
  # One for int64 and one for float32.
  assert len(steps.before_run(None).fetches) == 2


def test_some_metrics_are_those_of_a_runs_last_step_alone(tf_session):
  tensors, queue = build_step()
  last_step_tensors = {'number': tensors.pop('number')}
  source = in_process.Countdown(4)
  steps = fused_steps.Steps(
    tensors, 3, source, last_step_tensors=last_step_tensors
  )
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(queue.enqueue_many([np.arange(1.0, 50.0)]))
  assert run(tf_session, steps) == [
    {'global_step': 1, 'sum': 1},
    {'global_step': 2, 'sum': 3},
    {'global_step': 3, 'sum': 6, 'number': 3},
  ]
  assert run(tf_session, steps) == [{'global_step': 4, 'sum': 10, 'number': 4}]


def test_where_fewer_are_left_steps_are_run_one_by_one(make_steps):
  source = in_process.Countdown(100, num_workers=3)
  steps = make_steps(5, source)
  lengths = []
  for source.step in (0, 85, 86, 99):
    steps.before_run(None)
    lengths.append(len(steps.chosen_tensors()))
  assert lengths == [5, 5, 1, 1]


@pytest.mark.slow
def test_each_step_of_a_run_is_fed_with_a_row_of_its_own(tf_session, set_flags):
  set_flags()
  tensors, queue = build_step()
  images = np.arange(5, dtype=np.uint8).reshape(5, 1, 1, 1)
  _, labels, _ = input_pipeline.build_batches(
    split.Split(images, np.arange(5)),
    lambda x, y, is_training: (x, y),
    2,
    '/device:CPU:0',
  )
  tensors['label'] = labels[1]

  class Source(in_process.Countdown):
    def make_feed(self, num_batches):
      [batches] = step_rows.get_all()
      return {batches.fed: [[0, 0, n + 1] for n in range(num_batches)]}

  steps = fused_steps.Steps(tensors, 3, Source(4))
  tf_session.run(
    [tf.global_variables_initializer(), tf.local_variables_initializer()]
  )
  tf_session.run(queue.enqueue_many([np.arange(1.0, 50.0)]))
  assert [step['label'] for step in run(tf_session, steps)] == [1, 2, 3]
  assert [step['label'] for step in run(tf_session, steps)] == [1]


@pytest.mark.slow
@pytest.mark.parametrize('first_step', [90, 97])
def test_a_session_begins_with_all_the_steps_of_a_run(first_step):
  with tf.Graph().as_default():
    tensors, queue = build_step()
    global_step = tf.train.get_global_step()
    source = in_process.Countdown(100)
    source.step = first_step
    steps = fused_steps.Steps(tensors, 4, source)
    stop_hook = stop_hook_lib.StopHook(
      steps, global_step, 100, in_process.NoStop(), lambda: False
    )
    restore = [
      tf.global_variables_initializer(),
      global_step.assign(first_step).op,
      queue.enqueue_many([np.arange(1.0, 50.0)]),
    ]
    scaffold = tf.train.Scaffold(
      init_fn=lambda scaffold, session: [session.run(op) for op in restore]
    )
    creator = tf.train.ChiefSessionCreator(scaffold)
    with tf.train.MonitoredSession(creator, [steps, stop_hook]) as session:
      session.run([])
  num_steps = 4 if first_step <= 96 else 1
  assert len(steps.done) == num_steps
  assert steps.last['global_step'] == first_step + num_steps


def test_a_loop_ends_at_its_step(tf_session, make_steps):
  steps, known = make_steps(5, in_process.Countdown(23)), [0]
  while known[-1] < 23:
    known.append(run(tf_session, steps)[-1]['global_step'])
  assert known == [0, 5, 10, 15, 20, 21, 22, 23]


def test_one_step_a_run_copies_nothing(make_steps):
  before = len(tf.get_default_graph().get_operations())
  steps = make_steps()
  steps.before_run(None)
  names = [op.name for op in tf.get_default_graph().get_operations()]
  assert len(names) > before
  assert not [name for name in names if name.startswith('step_')]
  assert len(steps.chosen_tensors()) == 1


def test_no_part_of_a_step_runs_before_the_step_before_is_over(make_steps):
  steps = make_steps(2)
  steps.before_run(None)
  _, second = steps.chosen_tensors()
  whole = tf.get_default_graph().as_graph_def()
  part = tf.graph_util.extract_sub_graph(
    whole, [tensor.op.name for tensor in second.values()]
  )
  graph = tf.get_default_graph()
  copies = [
    graph.get_operation_by_name(node.name)
    for node in part.node
    if node.name.startswith('steps_2/')
  ]
  assert 'AssignAddVariableOp' in {op.type for op in copies}
  waits_for_nothing = [
    op.name
    for op in copies
    if not op.control_inputs and all(x.dtype == tf.resource for x in op.inputs)
  ]
  assert waits_for_nothing == []


class LoseOnce(tf.train.SessionRunHook):
  """Loses the session in its run `number`; ends at `last_step`."""

  def __init__(self, number, steps, last_step):
    self._runs_left = number
    self._steps = steps
    self._last_step = last_step

  def before_run(self, run_context):
    self._runs_left -= 1
    if self._runs_left == 0:
      raise tf.errors.UnavailableError(None, None, 'lost')

  def after_run(self, run_context, run_values):
    if self._steps.last['step'] >= self._last_step:
      run_context.request_stop()


@pytest.mark.slow
def test_after_a_recovery_each_exchange_is_where_it_is_due():
  period, found = 2, []
  with tf.Graph().as_default():
    global_step = tf.train.get_or_create_global_step()
    count = tf.get_local_variable('count', initializer=tf.constant(0, tf.int64))
    known = tf.get_local_variable('known', initializer=tf.constant(0, tf.int64))
    step = tf.identity(count.assign_add(1))

    def exchange():
      with tf.control_dependencies([global_step.assign_add(1).op]):
        return global_step.read_value(), tf.constant(0, tf.int64)

    new_step, staleness, _ = periodic_exchange.every(
      period, step, exchange, known
    )
    steps = fused_steps.Steps(
      {'global_step': new_step, 'step': step, 'staleness': staleness},
      3,
      None,
      periodic_exchange.get_all(),
    )
    # Three runs of one step; the first one of three is lost.
    hooks = [steps, LoseOnce(4, steps, last_step=12)]
    with tf.train.MonitoredSession(hooks=hooks) as session:
      while not session.should_stop():
        session.run([])
        found += [(int(x['step']), int(x['staleness'])) for x in steps.done]
  assert [step for step, _ in found] == [1, 2, 3, *range(1, 13)]
  assert all((x == -1) == bool(step % period) for step, x in found)


class Loss(tf.train.SessionRunHook):
  """Loses the session before its third run; then nothing is left to do."""

  num_runs = 0

  def after_create_session(self, session, coord):
    if self.num_runs:
      coord.request_stop()

  def before_run(self, run_context):
    self.num_runs += 1
    if self.num_runs == 3:
      raise tf.errors.AbortedError(None, None, 'a ps is lost')


@pytest.mark.slow
def test_a_session_that_comes_back_at_the_end_makes_no_step_more():
  with tf.Graph().as_default():
    step = tf.train.get_or_create_global_step().assign_add(1)
    loss, num_steps = Loss(), 0
    steps = fused_steps.Steps({'global_step': step})
    with tf.train.MonitoredSession(hooks=[loss, steps]) as session:
      while not session.should_stop():
        session.run([])
        num_steps += 1
  # The third is lost, and so is its repetition.
  assert (loss.num_runs, num_steps) == (4, 2)


class Pace(run_length.Pace):
  """Chooses 3 steps after two of a session, but one after its fifth step."""

  def begin_session(self):
    super().begin_session()
    self.num_steps = 0

  def end_run(self, global_step, num_steps):
    super().end_run(global_step, num_steps)
    self.num_steps += num_steps

  def choose_length(self, steps_left, periods):
    if self.num_steps == 2:
      self.length = 3
    return self.length

  def is_long(self):
    return self.num_steps != 5


def test_longer_runs_are_built_once_their_length_is_known(tf_session):
  tensors, queue = build_step()
  steps = fused_steps.Steps(tensors, pace=Pace())
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(queue.enqueue_many([np.arange(1.0, 50.0)]))
  graph, context = tf_session.graph, types.SimpleNamespace(session=tf_session)
  graph.finalize()
  num_ops, lengths, numbers = len(graph.get_operations()), [], []
  for _ in range(5):
    args = steps.before_run(context)
    results = tf_session.run(args.fetches)
    values = tf.train.SessionRunValues(results, None, None)
    steps.after_run(context, values)
    lengths.append(len(steps.done))
    numbers += [step['number'] for step in steps.done]
    if len(lengths) == 2:
      assert len(graph.get_operations()) == num_ops
  assert lengths == [1, 1, 3, 1, 3]
  assert numbers == list(range(1, 10))
  assert graph.finalized


def test_a_new_session_begins_with_single_steps(tf_session):
  tensors, queue = build_step()
  steps = fused_steps.Steps(tensors, pace=Pace())
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(queue.enqueue_many([np.arange(1.0, 50.0)]))
  context = types.SimpleNamespace(session=tf_session)
  for _ in range(2):
    steps.after_create_session(tf_session, None)
    lengths = []
    for _ in range(3):
      args = steps.before_run(context)
      results = tf_session.run(args.fetches)
      steps.after_run(context, tf.train.SessionRunValues(results, None, None))
      lengths.append(len(steps.done))
    assert lengths == [1, 1, 3]
