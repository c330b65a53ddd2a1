"""saving: the latest checkpoints stay, and the bases of those among them."""

import pytest

from distmnist.logdir import checkpoints, saving
from distmnist.storage import paths
from tests.support import partial


@pytest.fixture(
  params=['here', pytest.param('in a store', marks=pytest.mark.slow)]
)
def folder(request, tmp_path):
  if request.param == 'here':
    return str(tmp_path)
  return f'{request.getfixturevalue("store").url}/{tmp_path.name}'


def find_steps(folder):
  found = checkpoints.list_checkpoints(folder)
  return [checkpoints.parse_step(path) for path in found]


@pytest.mark.slow
def test_a_base_stays_as_long_as_it_is_needed(folder):
  found = []
  for steps in ((1, 2, 3), (4, 5)):  # By a chief and by its successor.
    writer = saving.CheckpointWriter(folder, 2)
    for step in steps:
      if step in (1, 4):
        partial.write_base(writer, step)
      else:
        partial.write(writer, folder, 1 if step < 4 else 4, step)
      found.append(find_steps(folder))
  assert found == [[1], [2, 1], [3, 2, 1], [4, 3, 1], [5, 4]]
  assert all(
    not checkpoints.find_damage(path)
    for path in checkpoints.list_checkpoints(folder)
  )


def test_only_one_partial_is_kept_with_its_base(folder):
  writer = saving.CheckpointWriter(folder, 1)
  partial.write_base(writer, 1)
  for step in (2, 3):
    partial.write(writer, folder, 1, step)
  assert find_steps(folder) == [3, 1]
  lines = paths.read_text(f'{folder}/checkpoint').splitlines()
  assert lines == [
    'model_checkpoint_path: "model.ckpt-3"',
    'all_model_checkpoint_paths: "model.ckpt-1"',
    'all_model_checkpoint_paths: "model.ckpt-3"',
  ]


@pytest.mark.slow
def test_a_whole_one_replaces_a_partial_one_of_its_step(folder):
  writer = saving.CheckpointWriter(folder, 1)
  partial.write_base(writer, 1)
  partial.write(writer, folder, 1, 2)
  assert writer.is_saved(2)
  assert not writer.is_saved(2, may_be_partial=False)
  partial.write_base(writer, 2)
  assert writer.is_saved(2, may_be_partial=False)
  assert find_steps(folder) == [2]
  assert checkpoints.find_damage(f'{folder}/model.ckpt-2') is None
