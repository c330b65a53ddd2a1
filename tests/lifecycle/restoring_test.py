"""restoring: what a checkpoint has goes into the variables that it fits."""

import os
import re

import pytest
import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.lifecycle import restoring
from distmnist.strategies import async_sgd
from distmnist.tables import key_map, table_saver
from distmnist.transport import sharding
from tests.logdir.checkpoints_test import save
from tests.support import tables


@pytest.fixture(autouse=True)
def flags(set_flags):
  set_flags()


class Run:
  """Trains tables of one capacity, in one process."""

  def __init__(
    self, monkeypatch, capacity, optimizer='adam', slice_bytes=2**25
  ):
    monkeypatch.setattr(tables, 'NUM_ROWS', capacity)
    member = cluster_lib.Cluster()
    self._graph = tf.Graph()
    with self._graph.as_default():
      self._model = tables.Model(
        member,
        async_sgd.make(member),
        optimizer,
        tables.BATCH,
        build=tables.build_by_keys,
      )
      self._saver = table_saver.TableSaver('/cpu:0', slice_bytes)
      self._restorer = restoring.Restorer(slice_bytes=slice_bytes)
      self._session = tf.Session()
      self._session.run(tf.global_variables_initializer())
    key_map.fill(self._session)

  def train(self, *steps):
    for step in steps:
      self._session.run(self._model.update.train_op, self._model.feed(step))
    return self

  def save(self, path):
    self._saver.save(self._session, str(path))
    return str(path)

  def restore(self, path):
    self._restorer.restore(self._session, path)
    key_map.fill(self._session)
    return self

  def read(self):
    return {
      name: value.tolist()
      for name, value in self._model.read(self._session).items()
    }


@pytest.mark.daily
@pytest.mark.slow
# The second begins its slots with a number that is not 0. A slice has several
# blocks of rows, or a part of one.
@pytest.mark.parametrize(
  ('optimizer', 'slice_bytes'),
  [('adam', 2**25), ('ftrl', 2000), ('adam', 300)],
)
def test_a_table_grows_as_if_it_had_had_the_room_before(
  tmp_path, monkeypatch, optimizer, slice_bytes
):
  how = optimizer, slice_bytes
  small = Run(monkeypatch, 100, *how).train(0, 1)
  path = small.save(tmp_path / 'model.ckpt-2')
  grown = Run(monkeypatch, 3000, *how).restore(path)
  assert grown.read() == small.read()
  expected = Run(monkeypatch, 3000, *how).train(0, 1, 2, 3).read()
  assert len(expected['a/keys']) > len(small.read()['a/keys'])
  assert grown.train(2, 3).read() == expected
  assert small.train(2, 3).read() == expected  # It was not full.


@pytest.mark.slow
def test_a_table_does_not_shrink(tmp_path, monkeypatch):
  path = Run(monkeypatch, 3000).save(tmp_path / 'model.ckpt-2')
  with pytest.raises(cli.RunError) as caught:
    Run(monkeypatch, 100).restore(path)
  assert str(caught.value) == (
    f"checkpoint {path} has 6,060 rows in the table 'a', and the model 1,080: "
    'a capacity may become larger, not smaller; give NewRows the capacity it '
    'had, or another --logdir'
  )


@pytest.mark.slow
def test_all_else_has_to_fit(tmp_path, monkeypatch):
  path = Run(monkeypatch, 100, 'sgd').save(tmp_path / 'model.ckpt-2')
  with pytest.raises(cli.RunError, match='has no async_sgd/beta1_power: it'):
    Run(monkeypatch, 3000).restore(path)


@pytest.mark.slow
@pytest.mark.parametrize('shape', [[7, 2], [3, 9]])
def test_the_number_of_shards_does_not_matter(tmp_path, shape):
  def build(num_ps):
    with sharding.sharded(num_ps):
      w = tf.get_variable('w', shape)
    # With slots, as an optimizer has them.
    gradients = [tf.zeros(part.shape) for part in tf.global_variables()]
    tf.train.AdamOptimizer().apply_gradients(
      zip(gradients, tf.global_variables(), strict=True)
    )
    return tf.convert_to_tensor(w)

  saved = {}
  for num_ps in (1, 2, 3, 7):
    with tf.Graph().as_default(), tf.Session() as session:
      w = build(num_ps)
      session.run(tf.global_variables_initializer())
      path = tf.train.Saver().save(session, str(tmp_path / f'{num_ps}'))
      saved[num_ps] = path, session.run(w).tolist()
  for num_ps in saved:
    with tf.Graph().as_default(), tf.Session() as session:
      w, restorer = build(num_ps), restoring.Restorer()
      for num_saved, (path, expected) in saved.items():
        assert not restorer.restore(session, path)
        assert session.run(w).tolist() == expected, (num_saved, num_ps)


@pytest.mark.slow
def test_a_variable_that_is_missing_is_named(tmp_path, tf_session):
  path = save(str(tmp_path), w=[2])
  tf.get_variable('w', [2])
  tf.get_variable('w/Momentum', [2])
  with pytest.raises(cli.RunError) as caught:
    restoring.Restorer(tf.global_variables()).check(path)
  told = str(caught.value)
  assert told.startswith(f'checkpoint {path} has no w/Momentum: ')
  assert '--strategy' in told and '--logdir' in told


@pytest.mark.slow
def test_another_shape_is_named_whole(tmp_path, tf_session):
  path = save(str(tmp_path), w=[5, 2])
  with sharding.sharded(2):
    tf.get_variable('w', [6, 2])
  with pytest.raises(cli.RunError) as caught:
    restoring.Restorer(tf.global_variables()).check(path)
  assert str(caught.value) == (
    f'checkpoint {path} has w with shape [5, 2], but the model has [6, 2]: it '
    'comes from another model; give the flags it was trained with, or another '
    '--logdir'
  )


@pytest.mark.slow
def test_another_dtype_is_named(tmp_path, tf_session):
  path = save(str(tmp_path), w=[5])
  w = tf.get_variable('w', [5], tf.float64)
  for variables in [w], {'w': w}:
    with pytest.raises(cli.RunError) as caught:
      restoring.Restorer(variables).check(path)
    assert str(caught.value) == (
      f'checkpoint {path} has w in float32, but the model has float64: it '
      'comes from another model; give the flags it was trained with, or '
      'another --logdir'
    )


@pytest.mark.slow
def test_a_checkpoint_may_hold_more_than_is_asked_for(tmp_path, tf_session):
  path = save(str(tmp_path), w=[2], unused=[3])
  tf.get_variable('w', [2])
  restoring.Restorer(tf.global_variables()).check(path)
  with pytest.raises(cli.RunError, match='has no x: '):
    restoring.Restorer([tf.get_variable('x', [2])]).check(path)


def test_a_file_that_is_no_checkpoint_cannot_be_read(tmp_path):
  path = save(str(tmp_path), w=[2])
  (tmp_path / (os.path.basename(path) + '.index')).write_bytes(b'rubbish' * 50)
  for name in (path, str(tmp_path / 'nowhere')):
    with pytest.raises(
      cli.RunError, match=f'^checkpoint {re.escape(name)} cannot be read: .'
    ):
      restoring.Restorer([]).check(name)


@pytest.mark.slow
def test_each_has_its_own_name_or_another_or_its_first_value(
  tf_session, tmp_path
):
  with tf.Graph().as_default(), tf.Session() as session:
    saved = [tf.Variable(i, name=f'saved/{i}') for i in (1.0, 2.0)]
    session.run([v.initializer for v in saved])
    path = tf.train.Saver(saved).save(session, f'{tmp_path}/model.ckpt')
  own, other, lacking = (
    tf.Variable(7.0, name=name) for name in ('saved/1.0', 'other', 'lacking')
  )
  record = graph_record.current()
  record.optional.append(lacking)
  record.other_names |= {
    own.op.name: lambda names: None,
    other.op.name: lambda names: max(names),
  }
  restorer = restoring.Restorer()
  tf_session.run(tf.global_variables_initializer())
  assert restorer.restore(tf_session, path) == [lacking]
  assert tf_session.run([own, other, lacking]) == [1, 2, 7]
  record.other_names['lost'] = lambda names: None
  tf.Variable(7.0, name='lost')
  with pytest.raises(cli.RunError, match='has no lost: it comes from'):
    restoring.Restorer().check(path)


def test_variables_that_begin_with_one_tensor_get_their_own_values(
  tf_session, tmp_path
):
  first = tf.zeros([3])
  both = [tf.Variable(first, name=name) for name in 'ab']
  tf_session.run([v.initializer for v in both])
  tf_session.run([v.assign([i] * 3) for i, v in enumerate(both)])
  path = tf.train.Saver().save(tf_session, f'{tmp_path}/model.ckpt')
  tf_session.run([v.initializer for v in both])
  restoring.Restorer().restore(tf_session, path)
  assert [v[0] for v in tf_session.run(both)] == [0, 1]
