"""grown_copy: each block of a table gets longer, all else stays as it is."""

import os
import shutil
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli, partial_names
from distmnist.logdir import grown_copy, saving

GROWTH = grown_copy.Growth('a', 3, 2, 5, 1)
VALUES = {
  'a/keys': np.arange(6),
  'a/rows': np.arange(12, dtype=np.float32).reshape(6, 2),
  'a/rows/Adam': np.arange(12, dtype=np.float32).reshape(6, 2) + 50,
  'a/rows/Adam/power': np.float32(0.9),
  'a/rows_of_mine': np.zeros([6, 2], np.float32),
  'w': np.ones([6, 2], np.float32),
  'global_step': np.int64(7),
}


@pytest.fixture
def write(tmp_path):
  """Returns a callable that writes the copy, and returns its path."""
  folder, target = str(tmp_path / 'run'), str(tmp_path / 'copy/model.ckpt-7')
  saving.CheckpointWriter(folder, 5).save_values(VALUES, 7)
  os.makedirs(os.path.dirname(target))

  def write(growth=GROWTH):
    grown_copy.write(f'{folder}/model.ckpt-7', target, [growth])
    return target

  return write


@pytest.mark.parametrize(
  'slice_bytes',
  [40, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2**25))],
)
def test_blocks_get_longer(write, monkeypatch, slice_bytes):
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', slice_bytes)
  path = write()
  reader = tf.train.load_checkpoint(path)
  found = {n: reader.get_tensor(n) for n in reader.get_variable_to_shape_map()}
  at = [0, 1, 1, 1, 1, 2, 3, 3, 3, 3, 4, 5, 5, 5, 5]
  expected = VALUES | {
    name: VALUES[name][at] for name in ('a/keys', 'a/rows', 'a/rows/Adam')
  }
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, err_msg=name)
  assert not [n for n in os.listdir(os.path.dirname(path)) if 'part' in n]


def test_what_does_not_fit_there_is_not_begun(write, monkeypatch, tmp_path):
  usage = types.SimpleNamespace(free=10**6)
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage)
  with pytest.raises(cli.RunError) as caught:
    write(grown_copy.Growth('a', 3, 2, 50_000, 1))
  assert 'larger tables is written in /' in str(caught.value)
  assert '1.0 MB are free and it takes 3.6 MB; make' in str(caught.value)
  assert not os.listdir(tmp_path / 'copy')
