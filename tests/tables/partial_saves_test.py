"""Partial checkpoints: with their base they are what a whole one would be."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import partial_names
from distmnist.lifecycle import restoring
from distmnist.logdir import checkpoint_reader
from distmnist.nn import layers
from distmnist.strategies import async_sgd
from distmnist.tables import key_map, table_saver, touched_rows
from tests.support import tables
from tests.tables.table_saver_test import assert_same, read_all


@pytest.fixture(autouse=True)
def touched(set_flags, monkeypatch):
  set_flags('--save_tables=touched')
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', 300)


def build(member, optimizer='adam', build_outputs=tables.build_outputs):
  """Returns (tables.Model, the saver): a slice has some rows of a shard."""
  if build_outputs is tables.build_by_keys:
    # These have room for many more rows. The fixture sets it back.
    partial_names.SLICE_BYTES = 2000
  model = tables.Model(
    *(member, async_sgd.make(member), optimizer, tables.BATCH),
    build=build_outputs,
  )
  return model, table_saver.TableSaver('/cpu:0', partial_names.SLICE_BYTES)


def make_restorer():
  return restoring.Restorer(slice_bytes=partial_names.SLICE_BYTES)


def start(session, model):
  session.run(tf.global_variables_initializer())
  key_map.fill(session)
  session.run(model.clear_touched)


def read_checkpoint(path):
  with checkpoint_reader.Reader(path) as reader:
    return {name: reader.read(name) for name in reader.shapes}


def find_base(path):
  base = checkpoint_reader.find_base(path)
  return base and os.path.basename(base)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('optimizer', 'outputs'),
  [
    ('sgd', tables.build_outputs),
    ('ftrl', tables.build_outputs),
    ('adam', tables.build_by_keys),
  ],
)
def test_a_partial_checkpoint_and_its_base_are_a_whole_one(
  tmp_path, optimizer, outputs
):
  with tf.Graph().as_default():
    model, saver = build(cluster_lib.Cluster(), optimizer, outputs)
    restorer = make_restorer()
    with tf.Session() as session:
      start(session, model)
      assert saver.save(session, f'{tmp_path}/model.ckpt-0') is None
      for step in (1, 2):
        session.run(model.update.train_op, model.feed(step))
        path = f'{tmp_path}/model.ckpt-{step}'
        assert saver.save(session, path) == 'model.ckpt-0' == find_base(path)
        assert_same(read_checkpoint(path), read_all(session))
      expected = read_all(session)
      session.run(model.update.train_op, model.feed(3))
      restorer.restore(session, path)
      assert_same(read_all(session), expected)


@pytest.mark.slow
def test_it_has_the_touched_rows_of_tables_and_nothing_more(tmp_path):
  with tf.Graph().as_default():
    model, saver = build(cluster_lib.Cluster())
    with tf.Session() as session:
      start(session, model)
      saver.save(session, f'{tmp_path}/model.ckpt-0')
      session.run(model.update.train_op, model.feed(1))
      path = f'{tmp_path}/model.ckpt-1'
      saver.save(session, path)
      touched = {
        t.rows.op.name: session.run(
          t.build_find(tf.constant(0, tf.int64), tf.constant(120, tf.int64))[0]
        )
        for t in touched_rows.get_all()
      }
      values = read_all(session)
  reader = tf.train.load_checkpoint(path)
  names = reader.get_variable_to_shape_map()
  assert 'w' in names and 'a/rows' not in names
  ranges = partial_names.find_ranges(names)
  assert set(ranges) == {
    f'{name}/rows{slot}' for name in 'ab' for slot in ('', '/Adam', '/Adam_1')
  }
  for name, found in ranges.items():
    parts = [partial_names.name_touched(name, *part) for part in found]
    rows = np.concatenate([reader.get_tensor(part[0]) for part in parts])
    np.testing.assert_array_equal(rows, touched[name[:6]])
    saved = np.concatenate([reader.get_tensor(part[1]) for part in parts])
    np.testing.assert_array_equal(saved, values[name][rows])


# Of tables whose rows have numbers: table_saver_test.py.
@pytest.mark.daily
@pytest.mark.slow
def test_what_two_ps_have_saved_is_restored_on_three(make_cluster, tmp_path):
  found, path = [], None
  for num_ps in (2, 3):
    cluster = make_cluster(num_ps, 1)
    with tf.Graph().as_default():
      member = cluster.worker(0)
      model, saver = build(member, 'adagrad', tables.build_by_keys)
      restorer = make_restorer()
      with tf.Session(cluster.servers[0].target) as session:
        if path:
          restorer.restore(session, path)
        else:
          start(session, model)
          session.run(model.update.train_op, model.feed(0))
          saver.save(session, f'{tmp_path}/model.ckpt-0')
          session.run(model.update.train_op, model.feed(1))
          path = f'{tmp_path}/model.ckpt-1'
          assert saver.save(session, path) == find_base(path) == 'model.ckpt-0'
        found.append(read_all(session))
  assert_same(found[1], found[0])


@pytest.mark.slow
def test_one_ps_may_have_more_than_a_slice_of_a_table_and_another_less(
  make_cluster, monkeypatch, tmp_path
):
  def build_outputs(ids, widths):
    del widths
    # Of 59 rows one ps has 30, or 360 bytes.
    start = tf.zeros_initializer()
    rows = layers.embedding(ids % 59, 59, 3, 'a', initializer=start)
    return tf.reduce_sum(rows, [1, 2])

  monkeypatch.setattr(partial_names, 'SLICE_BYTES', 350)
  cluster = make_cluster(2, 1)
  with tf.Graph().as_default():
    model, saver = build(cluster.worker(0), 'adagrad', build_outputs)
    with tf.Session(cluster.servers[0].target) as session:
      start(session, model)
      for step in (0, 1):
        session.run(model.update.train_op, model.feed(step))
        path = f'{tmp_path}/model.ckpt-{step}'
        saver.save(session, path)
      assert find_base(path) == 'model.ckpt-0'
      assert_same(read_checkpoint(path), read_all(session))


class Steps:
  """Saves after each of several steps, and tells which were whole."""

  def __init__(self, folder, session, model, saver):
    self._folder, self._model, self.saver = folder, model, saver
    self.session, self._step = session, 0
    start(session, model)

  def save(self):
    """Returns the name of the base, or None."""
    feed = self._model.feed(self._step % tables.STEPS)
    self.session.run(self._model.update.train_op, feed)
    self._step += 1
    path = f'{self._folder}/model.ckpt-{self._step}'
    base = self.saver.save(self.session, path)
    assert find_base(path) == base
    return base


@pytest.fixture
def saves(tmp_path, monkeypatch):
  # Few of the rows of the tests' tables are untouched.
  monkeypatch.setattr(table_saver, 'MOST_TOUCHED', 1.0)
  with tf.Graph().as_default():
    model, saver = build(cluster_lib.Cluster(), 'sgd')
    with tf.Session() as session:
      yield Steps(tmp_path, session, model, saver)


@pytest.mark.slow
def test_after_some_partial_ones_the_next_is_whole(saves, monkeypatch):
  monkeypatch.setattr(table_saver, 'MOST_PARTIAL', 2)
  bases = [saves.save() for _ in range(5)]
  assert bases == [None, 'model.ckpt-1', 'model.ckpt-1', None, 'model.ckpt-4']


@pytest.mark.slow
def test_where_most_rows_were_touched_the_next_is_whole(saves, monkeypatch):
  monkeypatch.setattr(table_saver, 'MOST_TOUCHED', 0.1)
  assert [saves.save() for _ in range(3)] == [None, 'model.ckpt-1', None]


@pytest.mark.slow
def test_it_is_whole_once_there_is_no_base_that_the_marks_follow(
  saves, tmp_path
):
  assert [saves.save(), saves.save()] == [None, 'model.ckpt-1']
  saves.saver.forget_base()
  assert [saves.save(), saves.save()] == [None, 'model.ckpt-3']
  # Another chief clears the marks.
  other = table_saver.TableSaver('/cpu:0', 300)
  other.save(saves.session, f'{tmp_path}/of_another')
  assert [saves.save(), saves.save()] == [None, 'model.ckpt-5']
  with tf.Session() as session:
    start(session, saves._model)
    saves.session = session
    assert saves.save() is None


@pytest.mark.slow
def test_what_is_pushed_while_a_base_is_written_is_in_the_next(saves, tmp_path):
  saves.save()
  session, run = saves.session, saves.session.run
  saves.saver.forget_base()

  def run_and_push(*args):
    run(saves._model.update.train_op, saves._model.feed(len(pushed) % 4))
    pushed.append(args)
    return run(*args)

  pushed, session.run = [], run_and_push
  saves.saver.save(session, f'{tmp_path}/model.ckpt-2')
  session.run = run
  assert len(pushed) > 10
  path = f'{tmp_path}/model.ckpt-3'
  assert saves.saver.save(session, path) == 'model.ckpt-2'
  assert_same(read_checkpoint(path), read_all(session))


@pytest.mark.slow
def test_without_marks_every_save_is_whole(set_flags, tmp_path):
  set_flags('--save_tables=all')
  with tf.Graph().as_default():
    model, saver = build(cluster_lib.Cluster(), 'sgd')
    with tf.Session() as session:
      steps = Steps(tmp_path, session, model, saver)
      assert [steps.save(), steps.save()] == [None, None]
      assert saver.base is None
