"""partial_checkpoints: which is partial, and where it lies as a whole one."""

import os

import pytest

from distmnist.logdir import partial_checkpoints, whole_copy
from tests.logdir.checkpoints_test import truncate
from tests.support import partial


@pytest.fixture
def paths(tmp_path):
  path, _ = partial.make_both(str(tmp_path))
  yield path, f'{tmp_path}/model.ckpt-2'
  partial_checkpoints.drop()


def find_whole(paths):
  path, base = paths
  return partial_checkpoints.find_whole(path, path, base, base)


def test_the_base_is_named_by_the_checkpoint(paths, tmp_path):
  path, base = paths
  assert partial_checkpoints.find_base(path) == 'model.ckpt-2'
  assert partial_checkpoints.find_base(base) is None
  assert partial_checkpoints.find_base(f'{tmp_path}/none') is None


def test_it_is_put_together_once_until_a_file_changes(paths, logged):
  whole = find_whole(paths)
  assert os.path.basename(whole) == 'model.ckpt-7'
  assert find_whole(paths) == whole
  assert len(logged) == 1
  assert logged[0] == (
    f'{paths[0]} has the rows touched since {paths[1]}: reading both'
  )
  os.utime(f'{paths[1]}.index', (1, 1))
  another = find_whole(paths)
  assert another != whole
  assert not os.path.exists(os.path.dirname(whole))
  partial_checkpoints.drop()
  assert not os.path.exists(os.path.dirname(another))


def test_what_fails_leaves_nothing(paths, tmp_path):
  truncate(tmp_path / 'model.ckpt-2.data-00000-of-00001')
  folder = os.path.dirname(os.path.dirname(find_whole_of_others(tmp_path)))
  before = os.listdir(folder)
  with pytest.raises(whole_copy.PartialError):
    find_whole(paths)
  assert len(os.listdir(folder)) < len(before)


def find_whole_of_others(tmp_path):
  os.makedirs(tmp_path / 'others')
  path, _ = partial.make_both(f'{tmp_path}/others')
  return find_whole((path, f'{tmp_path}/others/model.ckpt-2'))
