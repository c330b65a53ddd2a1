"""A checkpoint in a store: written, listed, read, removed."""

import os

import numpy as np
import pytest

from distmnist.common import cli
from distmnist.logdir import checkpoint_reader, checkpoints, saving
from distmnist.storage import paths, retries, scratch
from tests.support import partial

VALUES = {'w': np.arange(6.0), 'global_step': np.int64(7)}


@pytest.fixture
def folder(store, tmp_path):
  return f'{store.url}/{tmp_path.name}'


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
  monkeypatch.setattr(retries, 'WAITS_SECS', ())


@pytest.mark.slow
def test_what_is_saved_is_there_is_read_and_is_removed(folder):
  saving.CheckpointWriter(folder, 2).save_values(VALUES, 7)
  path = f'{folder}/model.ckpt-7'
  assert checkpoint_reader.is_there(path)
  assert checkpoints.list_checkpoints(folder) == [path]
  assert checkpoints.find_damage(path) is None
  with checkpoint_reader.Reader(path) as reader:
    np.testing.assert_array_equal(reader.read('w'), VALUES['w'])
  found = checkpoints.find_files(path)
  assert found == [f'{path}.data-00000-of-00001', f'{path}.index']
  checkpoints.remove(path)
  assert paths.list_names(folder) == ['checkpoint']


@pytest.mark.slow
def test_a_partial_one_is_read_as_a_whole_one(folder):
  path, whole = partial.make_both(folder)
  before = os.listdir(scratch.folder())
  assert checkpoint_reader.find_base(path) == f'{folder}/model.ckpt-2'
  assert checkpoint_reader.find_base(f'{folder}/model.ckpt-2') is None
  assert os.listdir(scratch.folder()) == before  # No copy is left.
  assert checkpoints.find_damage(path) is None
  assert checkpoints.read_step(path) == 7
  with checkpoint_reader.Reader(path) as reader:
    assert reader.shapes.keys() == whole.keys()
    for name, value in whole.items():
      np.testing.assert_array_equal(reader.read(name), value)


@pytest.mark.slow
def test_a_partial_one_is_of_no_use_without_its_base(folder):
  path, _ = partial.make_both(folder)
  base = f'{folder}/model.ckpt-2'
  checkpoints.remove(base)
  why = (
    f'{base} is not there, and model.ckpt-7 has only the rows touched since '
    'then'
  )
  assert checkpoints.find_fault(path) == (checkpoints.NOT_WHOLE, why)
  with pytest.raises(cli.RunError, match='has only the rows touched since'):
    checkpoint_reader.Reader(path)


@pytest.mark.slow
def test_only_the_last_are_kept(folder):
  writer = saving.CheckpointWriter(folder, 2)
  for step in (1, 2, 30):
    writer.save_values(VALUES, step)
  assert checkpoints.list_checkpoints(folder) == [
    f'{folder}/model.ckpt-{step}' for step in (30, 2)
  ]
  assert writer.is_saved(30) and not writer.is_saved(1)


@pytest.mark.slow
def test_in_a_store_the_index_is_put_last(store, folder):
  saving.CheckpointWriter(folder, 2).save_values(VALUES, 7)
  put = [path for method, path in store.requests if method == 'PUT']
  assert [path.rpartition('/')[2] for path in put] == [
    *('model.ckpt-7.data-00000-of-00001', 'model.ckpt-7.index', 'checkpoint')
  ]


@pytest.mark.slow
def test_a_save_that_a_store_refuses_leaves_those_before(store, folder):
  writer = saving.CheckpointWriter(folder, 1)
  writer.save_values(VALUES, 7)
  store.trouble = lambda method, path: path.endswith('.index') and 'busy'
  with pytest.raises(saving.SaveError) as caught:
    writer.save_values(VALUES, 8)
  assert str(caught.value) == (
    f'cannot write checkpoint {folder}/model.ckpt-8: Reduce your request rate.;'
    ' give another --logdir; the checkpoints before it are untouched'
  )
  store.trouble = lambda method, path: None
  # The part that was put is no checkpoint, and the next life removes it.
  path = f'{folder}/model.ckpt-7'
  assert checkpoints.list_checkpoints(folder) == [path]
  assert checkpoints.find_damage(path) is None
  assert paths.exists(f'{folder}/model.ckpt-8.data-00000-of-00001')
  writer.remove_unfinished()
  assert not paths.exists(f'{folder}/model.ckpt-8.data-00000-of-00001')
  writer.save_values(VALUES, 9)
  assert checkpoints.list_checkpoints(folder) == [f'{folder}/model.ckpt-9']


def test_who_has_lost_the_folder_amid_a_save_adds_no_checkpoint(store, folder):
  def check_owner():
    if any('.data-' in path for _, path in store.requests):
      raise cli.LostError('taken over')

  writer = saving.CheckpointWriter(folder, 1, check_owner)
  with pytest.raises(cli.LostError):
    writer.save_values(VALUES, 7)
  assert checkpoints.list_checkpoints(folder) == []


def test_a_store_that_does_not_answer_is_no_damage(store, folder):
  saving.CheckpointWriter(folder, 1).save_values(VALUES, 7)
  store.trouble = lambda method, path: 'busy'
  with pytest.raises(cli.RunError, match='cannot be read: Reduce your request'):
    checkpoints.find_damage(f'{folder}/model.ckpt-7')
