"""Tables in a checkpoint: in slices, and as a Saver writes and reads them."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.lifecycle import restoring
from distmnist.logdir import checkpoints
from distmnist.strategies import async_sgd
from distmnist.tables import key_map, table_saver
from tests.support import tables


@pytest.fixture(autouse=True)
def flags(set_flags):
  set_flags()


def build(member, optimizer='adam', slice_bytes=300):
  """Returns (tables.Model, the saver): a slice has some rows of a shard."""
  model = tables.Model(member, async_sgd.make(member), optimizer, tables.BATCH)
  return model, table_saver.TableSaver('/cpu:0', slice_bytes)


def read_all(session):
  return checkpoints.fetch_whole(session, tf.global_variables())


def assert_same(found, expected):
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize('optimizer', ['adam', 'ftrl'])
def test_slices_are_the_checkpoint_that_a_saver_writes(tmp_path, optimizer):
  with tf.Graph().as_default():
    model, saver = build(cluster_lib.Cluster(), optimizer)
    names = {v.op.name for v in table_saver.find_shards()}
    assert {'a/rows', 'b/rows'} < names
    assert 'w' not in names
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      session.run(model.update.train_op, model.feed(0))
      path = f'{tmp_path}/model-3'
      assert saver.save(session, path) is None
      expected = read_all(session)
      reader = tf.train.load_checkpoint(path)
      assert_same(
        {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()},
        expected,
      )
      assert not list(tmp_path.glob('*part*'))
      session.run(model.update.train_op, model.feed(1))
      tf.train.Saver().restore(session, path)
      assert_same(read_all(session), expected)


@pytest.mark.slow
def test_what_a_saver_has_written_is_restored_in_slices(tmp_path):
  with tf.Graph().as_default():
    model, _ = build(cluster_lib.Cluster())
    restorer = restoring.Restorer(slice_bytes=300)
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      session.run(model.update.train_op, model.feed(0))
      path = tf.train.Saver().save(session, f'{tmp_path}/model')
      expected = read_all(session)
    with tf.Session() as session:
      restorer.restore(session, path)
      assert_same(read_all(session), expected)


@pytest.mark.slow
def test_slices_of_two_ps_are_restored_on_three(make_cluster, tmp_path):
  saved, restored = tables.save_on_two_ps_and_restore_on_three(
    *(make_cluster, build, lambda session, _: read_all(session)),
    f'{tmp_path}/model',
  )
  assert_same(restored, saved)


@pytest.mark.daily(but=['1000000'])
@pytest.mark.slow
@pytest.mark.parametrize('slice_bytes', [1000, 10**6])
def test_a_row_that_is_made_during_a_save_has_values_or_no_key(
  tmp_path, slice_bytes
):
  with tf.Graph().as_default():
    model = tables.Model(
      *(cluster_lib.Cluster(), async_sgd.make(cluster_lib.Cluster()), 'adam'),
      tables.BATCH,
      build=tables.build_by_keys,
    )
    saver = table_saver.TableSaver('/cpu:0', slice_bytes)
    restorer = restoring.Restorer(slice_bytes=slice_bytes)
    with tf.Session() as session:
      session.run(tf.global_variables_initializer())
      key_map.fill(session)
      runs, run = [], session.run

      def run_and_make_rows(*args):
        runs.append(args)
        ids = np.arange(36).reshape(12, 3) + 36 * len(runs)
        run(model.update.train_op, model.feed(0) | {model.ids: ids})
        return run(*args)

      session.run = run_and_make_rows
      saver.save(session, f'{tmp_path}/model')
      session.run = run
      num_made = len(model.read(session)['a/keys'])
      restorer.restore(session, f'{tmp_path}/model')
      found = model.read(session)
  # More are made with each slice.
  assert 0 < len(found['a/keys']) < num_made
  assert found['a/rows'].any(1).all()
  assert found['b/rows'].any(1).all()


@pytest.mark.slow
def test_without_tables_it_is_a_saver(tmp_path):
  with tf.Graph().as_default():
    v = tf.get_variable('v', initializer=2.0)
    saver = table_saver.TableSaver('/cpu:0')
    with tf.Session() as session:
      session.run(v.initializer)
      path = f'{tmp_path}/model'
      saver.save(session, path)
      session.run(v.assign(3.0))
      tf.train.Saver().restore(session, path)
      assert session.run(v) == 2
