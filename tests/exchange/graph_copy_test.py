"""Copies of a graph, one after the other."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange import graph_copy


def test_an_op_is_repeated_in_turn(tf_session):
  number = tf.get_variable('number', initializer=1.0)
  queue = tf.FIFOQueue(-1, tf.float32, ())
  doubled = number.assign(number * 2, read_value=False)
  with tf.control_dependencies([doubled]):
    op = queue.enqueue(number.read_value())
  thrice = graph_copy.repeat(op, 3, '/device:CPU:0')
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(thrice)
  tf_session.run(thrice)
  taken = tf_session.run(queue.dequeue_many(6))
  assert taken.tolist() == [2, 4, 8, 16, 32, 64]


@pytest.mark.slow
def test_a_loop_that_reads_a_variable_is_copied(tf_session):
  number = tf.get_variable('number', initializer=1.0, use_resource=True)
  _, total = tf.while_loop(
    lambda i, total: i < 2, lambda i, total: (i + 1, total + number), [0, 0.0]
  )
  doubled = number.assign(total, read_value=False)
  thrice = graph_copy.repeat(doubled, 3, '/device:CPU:0')
  tf_session.run(tf.global_variables_initializer())
  tf_session.run(thrice)
  assert tf_session.run(number) == 8


@pytest.mark.slow
def test_rows_that_are_gathered_and_summed_are_read_in_turn():
  def make(name, value):
    return tf.get_variable(name, initializer=value, use_resource=True)

  # TensorFlow rewrites ops that are known to be in one place.
  with tf.Graph().as_default():
    with tf.device('/device:CPU:0'):
      table = make('table', tf.ones([4, 1]))
      unique, places = tf.unique(make('rows', tf.constant([0, 1, 1])))
      # As tf.nn.embedding_lookup_sparse does it.
      total = tf.sparse.segment_sum(tf.gather(table, unique), places, [0, 0, 0])
      # A read that is not in turn would be over before a step this long.
      square = make('square', tf.zeros([600, 600]))
      total += tf.reduce_sum(square @ square @ square)
      added = table.assign_add(tf.tile(total, [4, 1]), read_value=False)
    thrice = graph_copy.repeat(added, 3, '/device:CPU:0')
    config = tf.ConfigProto()  # Most tests do without rewrites.
    rewriting = config.graph_options.rewrite_options
    rewriting.optimizers.extend(['pruning', 'arithmetic', 'dependency'])
    with tf.Session(config=config) as session:
      session.run(tf.global_variables_initializer())
      session.run(thrice)
      assert session.run(table).tolist() == [[64]] * 4


def test_what_another_worker_sends_is_taken_in_turn(tf_session):
  here, there = (f'/job:worker/task:{i}/device:CPU:0' for i in (0, 1))
  with tf.device(there):
    queue = tf.FIFOQueue(2, tf.int64, (), shared_name='there')
    taken = queue.dequeue()
  with tf.device(here):
    own = tf.FIFOQueue(2, tf.int64, (), shared_name='here').dequeue()
    step = graph_copy.Step({'global_step': taken + own}, {}, None)
  steps = graph_copy.Copier(step).build_chain([()] * 3, 'steps')
  before = taken.op, own.op, steps[0].tensors['global_step'].op
  for step in steps[1:]:
    end = step.tensors['global_step'].op
    ops = *(x.op for x in end.inputs), end
    assert [op.control_inputs for op in ops] == [[before[0]], [before[2]], []]
    before = ops


def test_of_a_copy_the_original_is_found(tf_session):
  op = tf.no_op('step')
  # In a scope, as a run of several steps is.
  with tf.name_scope('run_1'):
    graph_copy.repeat(op, 3, '/device:CPU:0')
  copies = [
    found
    for found in tf_session.graph.get_operations()
    if found.name.endswith('/step') and not found.traceback
  ]
  assert len(copies) == 2
  assert {graph_copy.find_original(copy) for copy in copies} == {op}
  assert graph_copy.find_original(op) is None
  copy = copies.pop()
  assert [*graph_copy.find_origins(copy)] == [copy, op]
  assert [*graph_copy.find_origins(None)] == []
