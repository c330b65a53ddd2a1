"""saving: how checkpoints are written."""

import errno
import resource
import shutil
import signal
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli, files
from distmnist.lifecycle import restoring
from distmnist.logdir import checkpoint_reader, checkpoints, saving
from distmnist.tables import table_saver
from tests.logdir.checkpoints_test import truncate


@pytest.fixture
def session(tf_session):
  """With a global_step of 0 and a variable of 2000 floats."""
  tf.train.get_or_create_global_step()
  tf.get_variable('w', [2000])
  tf_session.run(tf.global_variables_initializer())
  return tf_session


def save(session, folder, *steps, keep=5):
  """Saves `session` as these steps, as one life of a chief does."""
  writer = saving.CheckpointWriter(str(folder), keep)
  saver = table_saver.TableSaver('/cpu:0')
  for step in steps:
    writer.save(saver, session, step)
  return writer


def list_names(folder):
  return sorted(path.name for path in folder.iterdir())


def files_of(*steps):
  """The names in a folder with these checkpoints, and nothing else."""
  endings = 'data-00000-of-00001', 'index'
  return sorted(
    ['checkpoint', *(f'model.ckpt-{s}.{e}' for s in steps for e in endings)]
  )


@pytest.mark.slow
def test_the_last_checkpoints_are_kept(session, tmp_path):
  save(session, tmp_path, 1, 2, 3, keep=2)
  assert list_names(tmp_path) == files_of(2, 3)
  # A restarted chief drops those of before, too.
  save(session, tmp_path, 4, keep=2)
  assert list_names(tmp_path) == files_of(3, 4)
  state = tf.train.get_checkpoint_state(str(tmp_path))
  assert state.all_model_checkpoint_paths == [
    str(tmp_path / f'model.ckpt-{step}') for step in (3, 4)
  ]
  assert tf.train.latest_checkpoint(str(tmp_path)).endswith('model.ckpt-4')


@pytest.mark.slow
@pytest.mark.parametrize('keep', [1, 5])
def test_a_save_that_fails_leaves_all_that_was_there(session, tmp_path, keep):
  save(session, tmp_path, 5, keep=keep)
  before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  # As a quota does: the kernel's signal is ignored, and the write fails.
  ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
  resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1]))
  try:
    for step in 5, 6:
      with pytest.raises(
        saving.SaveError, match='File too large; give another'
      ):
        save(session, tmp_path, step, keep=keep)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, ignored)
  assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_step_that_is_there_and_whole_is_known(session, tmp_path):
  save(session, tmp_path, 5)
  writer = saving.CheckpointWriter(str(tmp_path), 5)
  assert writer.is_saved(5)
  assert not writer.is_saved(6)
  truncate(tmp_path / 'model.ckpt-5.data-00000-of-00001')
  assert not saving.CheckpointWriter(str(tmp_path), 5).is_saved(5)


@pytest.mark.parametrize('failing', ['sync', 'replacing'])
def test_nothing_is_dropped_before_the_new_one_is_on_the_disk(
  session, tmp_path, monkeypatch, failing
):
  save(session, tmp_path, 5, keep=1)

  def fail(path):
    raise OSError(errno.EIO, 'Input/output error')

  monkeypatch.setattr(files, failing, fail)
  with pytest.raises(saving.SaveError, match='Input/output error'):
    save(session, tmp_path, 6, keep=1)
  assert checkpoints.find_damage(str(tmp_path / 'model.ckpt-5')) is None
  assert checkpoints.find_usable(str(tmp_path), checkpoints.find_fault)


@pytest.mark.slow
def test_an_older_one_that_cannot_be_read_now_ends_no_training(
  session, tmp_path, monkeypatch, logged
):
  save(session, tmp_path, 1, 2)

  def fail(path):
    raise cli.PassingError(f'checkpoint {path} cannot be read: Input/output')

  with monkeypatch.context() as patch:
    patch.setattr(checkpoint_reader, 'find_base', fail)
    writer = save(session, tmp_path, 3, keep=2)
  [line] = logged
  assert line.startswith(f'{tmp_path}/model.ckpt-3 is saved')
  assert list_names(tmp_path) == files_of(1, 2, 3)
  writer.save(table_saver.TableSaver('/cpu:0'), session, 4)
  assert list_names(tmp_path) == files_of(3, 4)


def test_who_lost_the_folder_saves_nothing(session, tmp_path):
  save(session, tmp_path, 5)

  def refuse():
    raise cli.LostError('another has it')

  writer = saving.CheckpointWriter(str(tmp_path), 5, refuse)
  with pytest.raises(cli.LostError, match='another has it'):
    writer.save(table_saver.TableSaver('/cpu:0'), session, 6)
  assert list_names(tmp_path) == files_of(5)


def test_what_killed_saves_have_left_is_removed(session, tmp_path):
  writer = save(session, tmp_path, 5)
  (tmp_path / '.unfinished_0123').mkdir()
  (tmp_path / '.unfinished_0123' / 'model.ckpt-6.index').write_text('')
  (tmp_path / 'model.ckpt-6.index.tempstate123').write_text('')
  # Killed between the renames of the data and the index.
  (tmp_path / 'model.ckpt-7.data-00000-of-00001').write_text('')
  writer.remove_unfinished()
  assert list_names(tmp_path) == files_of(5)


def test_values_are_written_as_a_saver_writes_them(session, tmp_path):
  values = checkpoints.fetch_whole(session, tf.global_variables())
  writer = saving.CheckpointWriter(str(tmp_path), 1)
  writer.save_values(values | {'global_step': np.int64(7)}, 7)
  assert list_names(tmp_path) == files_of(7)
  path = checkpoints.find_usable(str(tmp_path), checkpoints.find_fault)
  session.run(tf.global_variables_initializer())
  restoring.Restorer().restore(session, path)
  found = checkpoints.fetch_whole(session, tf.global_variables())
  assert found['w'].tolist() == values['w'].tolist()
  assert found['global_step'] == 7


def test_a_folder_that_cannot_be_made_is_named(session, tmp_path):
  folder = tmp_path / 'run'
  folder.write_text('a file')
  with pytest.raises(
    cli.RunError,
    match='^cannot write checkpoint .*run/model.ckpt-1: .*; give another',
  ):
    save(session, folder, 1)


@pytest.mark.parametrize(
  'error_class, text',
  [
    (tf.errors.UnavailableError, 'UNAVAILABLE: From /job:worker:'),
    (tf.errors.CancelledError, 'RecvFromRemote: Socket closed'),
  ],
)
def test_a_ps_that_dies_while_the_chief_saves_is_no_full_disk(
  session, tmp_path, error_class, text
):
  class Saver(table_saver.TableSaver):
    def save(self, session, path):
      with open(f'{path}.index', 'w') as file:
        file.write('half of it')
      [op] = [
        op
        for op in tf.get_default_graph().get_operations()
        if op.type == 'SaveV2'
      ]
      raise error_class(op.node_def, op, text)

  writer = saving.CheckpointWriter(str(tmp_path), 5)
  with pytest.raises(error_class):
    writer.save(Saver('/cpu:0'), session, 1)
  assert list_names(tmp_path) == []


@pytest.mark.parametrize('kind', ['SaveV2', 'MergeV2Checkpoints'])
def test_a_disk_that_gets_full_in_any_op_that_writes_is_a_failed_save(
  session, tmp_path, kind
):
  op = types.SimpleNamespace(type=kind)

  class Saver(table_saver.TableSaver):
    def save(self, session, path):
      error = tf.errors.ResourceExhaustedError(
        None, op, f'{path}.index; No space left on device'
      )
      raise error

  writer = saving.CheckpointWriter(str(tmp_path), 5)
  with pytest.raises(saving.PassingSaveError, match='No space left on device'):
    writer.save(Saver('/cpu:0'), session, 1)
  assert list_names(tmp_path) == []


def test_a_disk_that_is_too_small_is_found_out_at_the_start(
  tmp_path, tf_session, monkeypatch
):
  w = tf.get_variable('w', [1000, 1000])
  saving.check_space(str(tmp_path), [w])
  usage = shutil.disk_usage(tmp_path)._replace(free=3_000_000)
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage)
  with pytest.raises(
    cli.PassingError, match='3.0 MB are free, and one checkpoint takes 4.0 MB'
  ):
    saving.check_space(str(tmp_path), [w])
