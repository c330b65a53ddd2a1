"""saved_model: written whole or not at all, and read back."""

import errno
import os
import pathlib
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.serving import saved_model
from tests.support import saved_models


@pytest.mark.slow
def test_what_is_written_is_read_back(tmp_path):
  folder = tmp_path / 'a' / 'model'
  num_bytes = saved_models.write_brightest(folder)
  files = [path for path in folder.rglob('*') if path.is_file()]
  assert num_bytes == sum(path.stat().st_size for path in files) > 0
  # Nothing is left beside it, and who may read the folder may read all of it.
  assert os.listdir(tmp_path / 'a') == ['model']
  assert folder.stat().st_mode == (tmp_path / 'a').stat().st_mode
  model = saved_model.Model(str(folder))
  assert [*model.inputs] == ['images']
  assert [*model.outputs] == ['classes', 'probabilities']
  found = model.run({'images': saved_models.make_images([4, 0, 5])})
  classes, probabilities = found['classes'], found['probabilities']
  assert (classes.dtype, classes.tolist()) == (np.int64, [4, 0, 5])
  assert (probabilities.dtype, probabilities.shape) == (np.float32, (3, 6))
  # From logits 0.9 and five times 0.
  expected = np.exp(0.9) / (np.exp(0.9) + 5)
  np.testing.assert_allclose(probabilities.max(axis=1), expected, rtol=1e-6)
  np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)


def test_an_empty_folder_is_taken_also_by_a_link(tmp_path):
  (tmp_path / 'disk').mkdir()
  (tmp_path / 'link').symlink_to(tmp_path / 'disk')
  saved_models.write_brightest(tmp_path / 'link')
  assert (tmp_path / 'link').is_symlink()
  assert [*saved_model.Model(str(tmp_path / 'disk')).inputs] == ['images']


def test_a_model_of_images_says_what_it_takes_and_another_is_refused(tmp_path):
  saved_models.write_brightest(tmp_path / 'images')
  model = saved_model.Model(str(tmp_path / 'images'))
  assert model.find_image_shape() == (2, 3, 1)
  assert model.outputs['probabilities'].shape[-1] == 6
  saved_models.write_other(tmp_path / 'a')
  with pytest.raises(cli.RunError) as caught:
    saved_model.Model(str(tmp_path / 'a')).find_image_shape()
  assert re.fullmatch(
    f'--export_dir={re.escape(str(tmp_path / "a"))} '
    r'takes x uint8 \[n, 4\] and gives y uint8 \[n, 4\], expected images uint8 '
    r'\[n, height, width, channels\] -> classes, probabilities: give its '
    'examples by --inputs, or the model of images',
    str(caught.value),
  )


@pytest.mark.parametrize('is_folder', [True, False])
def test_nothing_is_written_over(tmp_path, is_folder):
  folder = tmp_path / 'model'
  if is_folder:
    folder.mkdir()
  kept = folder / 'mine' if is_folder else folder
  kept.write_text('precious')
  what = 'is not empty, and nothing is' if is_folder else 'is not a folder:'
  with pytest.raises(
    cli.RunError, match=f'^--export_dir={re.escape(str(folder))} {what} '
  ):
    saved_model.check_free(str(folder))
  # Nor is what has come there since.
  with pytest.raises(cli.RunError, match='cannot be written: '):
    saved_models.write_brightest(folder)
  assert kept.read_text() == 'precious'
  assert os.listdir(tmp_path) == ['model']


def test_a_write_that_fails_leaves_nothing(tmp_path, monkeypatch):
  def fill_the_disk(file):
    raise OSError(errno.ENOSPC, 'No space left on device')

  monkeypatch.setattr(os, 'fsync', fill_the_disk)
  with pytest.raises(cli.RunError, match='written: No space left'):
    saved_models.write_brightest(tmp_path / 'model')
  assert os.listdir(tmp_path) == []


def cut(path):
  data = pathlib.Path(path).read_bytes()
  pathlib.Path(path).write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
  'harm, name, text',
  [
    (cut, 'index', 'is not whole: its variables are missing or damaged'),
    (os.remove, 'index', 'cannot be read: The passed save_path is not a valid'),
    (cut, 'data-00000-of-00001', 'is not whole: its variables are missing or '),
    (os.remove, 'data-00000-of-00001', 'is not whole: its variables are mis'),
  ],
)
def test_variables_that_are_not_whole_are_refused(tmp_path, harm, name, text):
  folder = tmp_path / 'model'
  saved_models.write_brightest(folder)
  harm(folder / 'variables' / f'variables.{name}')
  with pytest.raises(cli.RunError) as caught:
    saved_model.Model(str(folder))
  assert str(caught.value).startswith(f'--export_dir={folder} {text}')
  assert str(caught.value).endswith('; write it again with distmnist.export')


def test_another_signature_is_taken(tmp_path):
  saved_models.write_other(tmp_path / 'a')
  found = saved_model.Model(str(tmp_path / 'a')).run(
    {'x': np.ones([3, 4], np.uint8)}
  )
  assert found['y'].tolist() == [[2] * 4] * 3


def test_without_the_flag_the_folder_is_asked_for(set_flags, monkeypatch):
  set_flags()
  with pytest.raises(cli.UsageError, match='^--export_dir is missing: '):
    saved_model.export_dir_from_flags()
  monkeypatch.setenv('HOME', '/home/ada')
  set_flags('--export_dir=~/model')
  assert saved_model.export_dir_from_flags() == '/home/ada/model'


@pytest.mark.slow
@pytest.mark.parametrize(
  'make, said',
  [
    (
      lambda x: tf.boolean_mask(x, x > 1),
      r"gives 'y' of shape \[1\] for 2 examples: expected \[2, ...\]",
    ),
    (lambda x: tf.concat([x, x], 0), r'shape \[4\] for 2 examples'),
    (lambda x: tf.sparse.from_dense(x[:, None]), 'a sparse or ragged tensor'),
  ],
)
def test_an_output_without_a_value_for_each_example_is_refused(
  tmp_path, make, said
):
  saved_models.write_output(tmp_path / 'model', make)
  with pytest.raises(cli.RunError, match=said):
    saved_model.Model(str(tmp_path / 'model')).run({'x': np.array([1, 2.0])})
