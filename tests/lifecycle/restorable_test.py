"""restorable: a checkpoint goes into tables that have room for more keys."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.lifecycle import restorable
from distmnist.logdir import checkpoint_files
from distmnist.strategies import async_sgd
from distmnist.tables import key_map
from tests.support import tables


@pytest.fixture(autouse=True)
def flags(set_flags):
  set_flags()
  yield
  checkpoint_files.drop_copies()


class Run:
  """Trains tables of one capacity, in one process."""

  def __init__(self, monkeypatch, capacity, optimizer='adam'):
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
      self._saver = tf.train.Saver()
      self._session = tf.Session()
      self._session.run(tf.global_variables_initializer())
    key_map.fill(self._session)

  def train(self, *steps):
    for step in steps:
      self._session.run(self._model.update.train_op, self._model.feed(step))
    return self

  def save(self, path):
    return self._saver.save(self._session, str(path))

  def restore(self, path):
    with self._graph.as_default():
      variables = tf.global_variables()
    restorable.restore(path, self._session, self._saver, variables)
    return self

  def read(self):
    return {
      name: value.tolist()
      for name, value in self._model.read(self._session).items()
    }


@pytest.mark.slow
# The second begins its slots with a number that is not 0.
@pytest.mark.parametrize('optimizer', ['adam', 'ftrl'])
def test_a_table_grows_as_if_it_had_had_the_room_before(
  tmp_path, monkeypatch, optimizer
):
  small = Run(monkeypatch, 100, optimizer).train(0, 1)
  path = small.save(tmp_path / 'model.ckpt-2')
  grown = Run(monkeypatch, 3000, optimizer).restore(path)
  assert grown.read() == small.read()
  expected = Run(monkeypatch, 3000, optimizer).train(0, 1, 2, 3).read()
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
