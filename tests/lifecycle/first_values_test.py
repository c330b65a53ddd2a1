"""first_values: taken over if alive, else restored, else initialised."""

import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli, console, names, partial_names
from distmnist.exchange.center import center
from distmnist.lifecycle import first_values
from distmnist.logdir import checkpoint_reader
from distmnist.nn import layers
from distmnist.tables import first_rows, key_map, new_rows
from distmnist.transport import fed_initial_values, strategy
from tests.logdir import checkpoints_test
from tests.support import in_process


class Told(strategy.CenterHook):
  """Counts the new centers."""

  num_centers = 0

  def on_new_center(self, session):
    self.num_centers += 1


class Start:
  """The chief of one process, with a variable and an optional one.

  Attributes:
    task: task.Task.
    lines: list of str, what it says.
    told: Told.
  """

  def __init__(self, path=None):
    self.needed = tf.Variable(7.0, name='needed', use_resource=True)
    self.saver_of_needed = tf.train.Saver()
    self.optional = tf.Variable(5.0, name='optional', use_resource=True)
    graph_record.current().optional.append(self.optional)
    self.lines, self.told, self.num_starts = [], Told(), 0
    self.task = task = in_process.make_task(cluster_lib.Cluster())
    console.print_logs(self.lines.append)
    restart = types.SimpleNamespace(find=lambda: path, go_on=self._go_on)
    self._values = first_values.FirstValues(task, restart, None, [self.told])
    self.saver_of_all = tf.train.Saver()
    self._scaffold = types.SimpleNamespace(
      ready_for_local_init_op=tf.report_uninitialized_variables(),
    )

  def _go_on(self):
    self.num_starts += 1

  def set_in(self, session):
    """Returns the values of the variable and of the optional one."""
    self._values.set_in(self._scaffold, session)
    return session.run([self.needed, self.optional])


def test_without_a_checkpoint_all_is_initialised(tf_session):
  start = Start()
  assert start.set_in(tf_session) == [7, 5]
  assert (start.told.num_centers, start.num_starts) == (1, 1)
  assert start.lines == []


@pytest.mark.slow
def test_a_center_that_is_alive_is_taken_over(tf_session):
  start = Start()
  start.set_in(tf_session)
  tf_session.run(start.needed.assign(9.0))
  assert start.set_in(tf_session) == [9, 5]
  assert (start.told.num_centers, start.num_starts) == (1, 2)
  assert start.lines == ['taking over the live variables']


@pytest.mark.slow
@pytest.mark.parametrize('has_all', [True, False])
def test_what_a_checkpoint_lacks_keeps_its_first_value(
  tf_session, tmp_path, has_all
):
  with tf.Graph().as_default(), tf.Session() as session:
    before = Start()
    before.set_in(session)
    session.run([before.needed.assign(9.0), before.optional.assign(6.0)])
    saver = before.saver_of_all if has_all else before.saver_of_needed
    path = saver.save(session, f'{tmp_path}/model.ckpt', 40)
  start = Start(path)
  assert start.set_in(tf_session) == [9, 6 if has_all else 5]
  assert (start.told.num_centers, start.num_starts) == (1, 1)
  assert start.lines == [f'restored {path}']


@pytest.mark.slow
def test_a_new_center_fills_its_maps_of_keys(tf_session):
  rows = layers.embedding(tf.constant([5]), layers.NewRows(10), 1, 'user')
  Start().set_in(tf_session)
  # Without its map a shard gives no row.
  assert tf_session.run(rows).shape == (1, 1)


N = 10


@pytest.fixture
def small_slices(monkeypatch):
  """Two rows of one number and their keys fill a slice."""
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', 24)


def make_table(keys):
  rows = np.arange(N, dtype=np.float32)[:, None]
  made = layers.NewRows(1000, first=(keys, rows))
  with center.Center(cluster_lib.Cluster()).scope():
    layers.embedding(tf.constant(keys, tf.int64), made, 1, 'user')
  first_rows.build(lambda *_: [], '/cpu:0', of_all=True)
  [part] = key_map.get_all(tf.get_default_graph())
  return part


@pytest.mark.slow
@pytest.mark.usefixtures('small_slices')
def test_each_slice_of_first_rows_shows_that_the_chief_goes_on(tf_session):
  part, start = make_table(np.arange(N)), Start()
  calls = []
  start.task.stalls.goes_on = lambda: calls.append(1)
  start.set_in(tf_session)
  keys, rows = tf_session.run([part.keys, part.rows])
  at = np.flatnonzero(keys >= new_rows.LOWEST_KEY)
  assert sorted(keys[at]) == list(range(N))
  np.testing.assert_array_equal(rows[at, 0], keys[at])
  # They are read to be checked, for equal keys, and to be put.
  assert len(calls) == 3 * N // 2


@pytest.mark.slow
def test_wrong_first_rows_are_found_before_anything_has_a_value(tf_session):
  make_table(np.zeros(N, int))
  start = Start()
  with pytest.raises(cli.UsageError):
    start.set_in(tf_session)
  assert (start.told.num_centers, start.num_starts) == (0, 0)
  assert tf_session.run(tf.report_uninitialized_variables()).size


class Lost:
  """A source whose checkpoint cannot be read once it has been found."""

  def __init__(self, folder, is_dropped):
    self.folder, self.is_dropped = folder, is_dropped

  def read(self):
    """Drops the checkpoint's values, or writes others, and reads them."""
    path = checkpoints_test.save(self.folder, v=[4])
    with checkpoint_reader.Reader(path) as reader:
      (data,) = self.folder.glob('*.data-*')
      data.write_bytes(b'\1' * data.stat().st_size)
      if self.is_dropped:
        data.unlink()
      return reader.read('v')


@pytest.mark.slow
@pytest.mark.parametrize(
  'is_dropped, code', [(True, 3), (False, 1)], ids=['gone', 'damaged']
)
@pytest.mark.parametrize('is_table', [False, True], ids=['whole', 'rows'])
def test_a_warm_start_begins_again_if_its_checkpoint_is_gone_not_if_damaged(
  tf_session, monkeypatch, tmp_path, is_table, is_dropped, code
):
  monkeypatch.delenv(names.ATTEMPT, raising=False)
  lost = Lost(tmp_path, is_dropped)
  make_table(np.arange(N))
  load = (lambda: ({}, {'user': lost})) if is_table else lost.read
  fed_initial_values.give_first(load)
  with pytest.raises(cli.RunError) as caught:
    Start().set_in(tf_session)
  assert caught.value.exit_code == code
