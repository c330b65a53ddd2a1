"""Which rows are marked, in which order, and what a graph has without marks."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import partial_names
from distmnist.strategies import (
  async_sgd,
  dc_asgd,
  drop_stale,
  easgd,
  ssp,
  staleness_aware,
)
from distmnist.tables import key_map, sparse_table, tables_apart, touched_rows
from distmnist.transport import strategy
from tests.support import tables


@pytest.fixture
def small_slices(monkeypatch):
  """With which the tables of the tests are large ones."""
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', 100)


def build(make_rule, optimizer='adam', build_outputs=tables.build_outputs):
  member = cluster_lib.Cluster()
  model = tables.Model(
    *(member, make_rule(member), optimizer, tables.BATCH), build=build_outputs
  )
  found = {
    touched.rows.op.name: touched.build_find(
      tf.constant(0, tf.int64), tf.constant(touched.num_bytes, tf.int64)
    )
    for touched in touched_rows.get_all()
  }
  return model, found


def is_of_center(hook):
  return isinstance(hook, strategy.CenterHook)


def find_expected(step):
  """Returns {name: rows} that a step of the model updates."""
  count = tables.NUM_ROWS
  find = lambda ids: np.unique(sparse_table.find_positions(ids, count))  # noqa: E731
  ids = tables.IDS[step]
  return {'a/rows': find(ids).tolist(), 'b/rows': find(ids[:, 1:]).tolist()}


def train(model, found, steps):
  """Returns {name: marked rows} after some steps from a new center."""
  new_center = [h.on_new_center for h in model.hooks if is_of_center(h)]
  new_center.append(lambda session: session.run(model.clear_touched))
  scaffold = tf.train.Scaffold(
    init_fn=lambda _, session: [call(session) for call in new_center]
  )
  creator = tf.train.ChiefSessionCreator(scaffold)
  with tf.train.MonitoredSession(creator, model.hooks) as session:
    for step in steps:
      session.run(model.update.train_op, model.feed(step))
    marked = session.run(found)
  return {name: rows.tolist() for name, (rows, _) in marked.items()}


@pytest.mark.daily(but=['make-sgd0', 'make-ftrl', 'make_lock_step-adagrad'])
@pytest.mark.slow
@pytest.mark.parametrize(
  ('rule', 'optimizer'),
  [
    (async_sgd.make, 'sgd'),
    (async_sgd.make, 'adam'),
    (async_sgd.make, 'ftrl'),
    (ssp.make, 'adagrad'),
    (staleness_aware.make, 'sgd'),
    (drop_stale.make, 'momentum'),
    (dc_asgd.make, 'sgd'),
    (tables.make_lock_step, 'adagrad'),
  ],
)
def test_a_step_marks_the_rows_of_its_batch(
  set_flags, small_slices, rule, optimizer
):
  set_flags('--save_tables=touched')
  with tf.Graph().as_default():
    assert train(*build(rule, optimizer), [1]) == find_expected(1)


@pytest.mark.slow
def test_rows_of_a_rule_of_their_own_are_marked(set_flags, small_slices):
  set_flags('--save_tables=touched', '--table_strategy=async_sgd')
  with tf.Graph().as_default():
    model, found = build(easgd.make, 'adagrad')
    update = tables_apart.add_to(
      model.update, lambda: tables.optimizers.make_optimizer('adagrad', 0.1)
    )
    model.update = update
    assert train(model, found, [1]) == find_expected(1)


@pytest.mark.slow
def test_rows_that_are_made_are_marked(set_flags, small_slices):
  set_flags('--save_tables=touched')
  with tf.Graph().as_default():
    model, found = build(async_sgd.make, build_outputs=tables.build_by_keys)
    [keys] = [k for k in key_map.get_all_keys() if k.op.name[0] == 'a']
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      for hook in filter(is_of_center, model.hooks):
        hook.on_new_center(session)
      key_map.fill(session)
      session.run(model.clear_touched)
      # A pull makes the rows; nothing is pushed.
      with tf.control_dependencies(None):
        pulled = session.graph.get_operations()
      makes = [op for op in pulled if op.type == 'BatchFunction']
      session.run(makes, model.feed(0))
      rows, _ = session.run(found)['a/rows']
      held = session.run(keys)
  made = np.flatnonzero(held >= -(2**63) + 16)
  assert made.size
  assert rows.tolist() == made.tolist()


@pytest.mark.slow
@pytest.mark.parametrize('words', [[], ['--save_tables=all']])
def test_without_the_flag_a_graph_has_no_marks(set_flags, small_slices, words):
  set_flags(*words)
  with tf.Graph().as_default() as graph:
    build(async_sgd.make)
    assert touched_rows.get_all() == []
    assert not [
      op.name for op in graph.get_operations() if 'touched' in op.name
    ]


@pytest.mark.slow
def test_a_table_saved_in_one_piece_has_no_marks(set_flags):
  set_flags('--save_tables=touched')
  with tf.Graph().as_default():
    build(async_sgd.make)
    assert touched_rows.get_all() == []


def test_what_is_beside_a_shard_has_its_marks(
  tf_session, set_flags, monkeypatch
):
  set_flags('--save_tables=touched')
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', 10)
  with tf.variable_scope('a'):
    shards = [tf.get_variable(f'rows/part_{i}', [5, 1]) for i in (1, 10)]
    slot = tf.get_variable('rows/part_10/Adam', [5, 1])
    other = tf.get_variable('rowset', [5, 1])
  touched_rows.add(shards)
  assert touched_rows.find(shards[0]).rows is shards[0]
  assert touched_rows.find(slot).rows is shards[1]
  assert touched_rows.find(other) is None
  assert touched_rows.mark_after(['op'], other, None) == ['op']
  assert touched_rows.get_all()[0].num_bytes == 5


def test_marks_are_beside_the_rows_and_no_variables_to_be_placed(
  tf_session, set_flags, monkeypatch
):
  set_flags('--save_tables=touched')
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', 10)
  with tf.device('/job:ps/task:3'):
    rows = tf.get_variable('rows', [5, 1])
  with tf.device(lambda op: pytest.fail(op.type)):
    touched_rows.add([rows])
  ops = tf.get_default_graph().get_operations()
  marks = [op for op in ops if op.type == 'VarHandleOp'][1:]
  assert [op.device for op in marks] == [rows.device] * 2
  assert tf.global_variables() == [rows]


def test_a_new_center_has_marks_and_none_is_set(
  tf_session, set_flags, monkeypatch
):
  set_flags('--save_tables=touched')
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', 10)
  rows = tf.get_variable('rows', [5, 1])
  touched_rows.add([rows])
  [touched] = touched_rows.get_all()
  found = touched.build_find(tf.constant(0, tf.int64), tf.constant(5, tf.int64))
  mark = touched.mark(tf.constant([3], tf.int64))
  clear = touched_rows.build_clear_all()
  with pytest.raises(tf.errors.OpError):
    tf_session.run(mark)
  for _ in range(2):
    tf_session.run(clear)
    marked, cleared_by = tf_session.run(found)
    assert (marked.tolist(), cleared_by) == ([], touched_rows.NO_CHIEF)
    tf_session.run(mark)
    assert tf_session.run(found)[0].tolist() == [3]


def test_without_marks_there_is_nothing_to_clear():
  with tf.Graph().as_default():
    assert touched_rows.build_clear_all() == []
