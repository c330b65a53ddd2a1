"""whole_copy: a partial checkpoint and its base become a whole one."""

import os
import shutil
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli, partial_names
from distmnist.logdir import checkpoint_files, saving, whole_copy
from tests.logdir.checkpoints_test import truncate
from tests.support import partial


@pytest.fixture
def both(tmp_path):
  """Has the paths of a partial checkpoint and its base, and what it is."""
  path, whole = partial.make_both(str(tmp_path))
  return types.SimpleNamespace(
    path=path, base=f'{tmp_path}/model.ckpt-2', whole=whole
  )


def put_together(both, folder):
  target = f'{folder}/whole/model.ckpt-7'
  os.makedirs(os.path.dirname(target))
  whole_copy.put_together(both.path, both.base, target, 'THE_BASE')
  return target


@pytest.mark.parametrize('slice_bytes', [4, 2**25])
def test_rows_that_were_touched_replace_those_of_the_base(
  both, tmp_path, monkeypatch, slice_bytes
):
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', slice_bytes)
  path = put_together(both, tmp_path)
  reader = tf.train.load_checkpoint(path)
  names = reader.get_variable_to_shape_map()
  assert names.keys() == both.whole.keys()
  for name in names:
    np.testing.assert_array_equal(reader.get_tensor(name), both.whole[name])
  found = os.listdir(os.path.dirname(path))
  assert not [name for name in found if 'part' in name]


def find_error(both, tmp_path):
  with pytest.raises(whole_copy.PartialError) as caught:
    put_together(both, tmp_path)
  return str(caught.value)


AFTER = 'and model.ckpt-7 has only the rows touched since then'


def test_a_base_that_is_gone_is_named(both, tmp_path):
  checkpoint_files.remove(both.base)
  assert find_error(both, tmp_path) == f'THE_BASE is not there, {AFTER}'


def test_a_damaged_base_is_named(both, tmp_path):
  truncate(tmp_path / 'model.ckpt-2.data-00000-of-00001')
  found = find_error(both, tmp_path)
  assert found.startswith(f'THE_BASE is not whole, {AFTER}: ')


def test_another_checkpoint_of_the_name_of_the_base_is_refused(both, tmp_path):
  values = partial.make_values(2) | {'a/rows': partial.TABLE + 1}
  saving.CheckpointWriter(str(tmp_path), 5).save_values(values, 2)
  assert find_error(both, tmp_path) == f'THE_BASE was written anew, {AFTER}'


def test_a_damaged_partial_one_is_no_fault_of_its_base(both, tmp_path):
  truncate(tmp_path / 'model.ckpt-7.data-00000-of-00001')
  assert 'THE_BASE' not in find_error(both, tmp_path)


def test_rows_that_are_missing_are_found(both, tmp_path, monkeypatch):
  monkeypatch.delitem(partial.ROWS, (0, 6))
  writer = saving.CheckpointWriter(str(tmp_path), 5)
  partial.write(writer, str(tmp_path), 2, 7)
  assert find_error(both, tmp_path) == 'it lacks rows of a/rows'


def test_where_there_is_no_room_the_folder_is_named(
  both, tmp_path, monkeypatch
):
  usage = types.SimpleNamespace(free=100)
  monkeypatch.setattr(shutil, 'disk_usage', lambda path: usage)
  with pytest.raises(cli.RunError) as caught:
    put_together(both, tmp_path)
  assert not isinstance(caught.value, whole_copy.PartialError)
  assert 'distmnist_scratch_' in str(caught.value)
  assert 'another folder by the environment variable TMPDIR' in str(
    caught.value
  )
