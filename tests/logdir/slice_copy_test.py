"""slice_copy: variables are copied as they are, in slices or at once."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import partial_names
from distmnist.logdir import saving, slice_copy

VALUES = {
  'w': np.arange(12, dtype=np.float32).reshape(6, 2),
  'n': np.arange(5),
  'text': np.array([b'a', b'b'], object),
  'global_step': np.int64(7),
}


@pytest.mark.parametrize('slice_bytes', [1, 20, 2**25])
def test_the_copy_is_the_same(tmp_path, tf_session, monkeypatch, slice_bytes):
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', slice_bytes)
  saving.CheckpointWriter(str(tmp_path), 5).save_values(VALUES, 7)
  target = f'{tmp_path}/copy/it'
  os.makedirs(os.path.dirname(target))
  copy = slice_copy.SliceCopy(tf_session, target)
  copy.copy(f'{tmp_path}/model.ckpt-7', ['w', 'global_step'], 'it')
  copy.copy(f'{tmp_path}/model.ckpt-7', ['n', 'text'], 'it')
  copy.merge()
  reader = tf.train.load_checkpoint(target)
  assert reader.get_variable_to_shape_map().keys() == VALUES.keys()
  for name, value in VALUES.items():
    np.testing.assert_array_equal(reader.get_tensor(name), value)
  assert list(slice_copy.cut(reader, 'w'))[0][0] == 0
  assert sum(n for _, n in slice_copy.cut(reader, 'w')) == 6


def test_bytes_are_counted(tmp_path):
  saving.CheckpointWriter(str(tmp_path), 5).save_values(VALUES, 7)
  reader = tf.train.load_checkpoint(f'{tmp_path}/model.ckpt-7')
  count = [slice_copy.count_bytes(reader, n) for n in ('w', 'n', 'global_step')]
  assert count == [48, 40, 8]
