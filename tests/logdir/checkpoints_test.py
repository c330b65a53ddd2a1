"""checkpoints: which there are, and whether they are whole."""

import functools
import glob
import os
import pathlib
import shutil
import tempfile

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.logdir import checkpoints


@functools.cache
def make_files(step, shapes):
  """Returns {end of its path: bytes} of each file of a checkpoint.

  Args:
    step: int.
    shapes: tuple of (name, tuple of int), of variables of zeros.
  """
  with (
    tempfile.TemporaryDirectory() as folder,
    tf.Graph().as_default(),
    tf.Session() as session,
  ):
    tf.train.get_or_create_global_step()
    for name, shape in shapes:
      tf.get_variable(name, shape, initializer=tf.zeros_initializer())
    session.run(tf.global_variables_initializer())
    session.run(tf.train.get_global_step().assign(step))
    path = tf.train.Saver().save(session, checkpoints.prefix(folder), step)
    return {
      str(file).removeprefix(path): file.read_bytes()
      for file in pathlib.Path(folder).glob('model.ckpt*')
    }


def save(folder, step=3, **shapes):
  """Writes a checkpoint with variables of zeros; returns its path.

  It is made once, as that takes longer than most of what is tested with it.
  """
  path = checkpoints.path_of_step(str(folder), step)
  os.makedirs(folder, exist_ok=True)
  given = tuple((name, tuple(shape)) for name, shape in shapes.items())
  for end, data in make_files(step, given).items():
    pathlib.Path(f'{path}{end}').write_bytes(data)
  tf.train.update_checkpoint_state(str(folder), path)
  return path


@pytest.mark.slow
def test_the_latest_checkpoint_is_found_and_knows_its_step(tmp_path):
  assert checkpoints.find_latest(str(tmp_path)) is None
  save(str(tmp_path), step=3)
  path = save(str(tmp_path), step=12)
  assert checkpoints.find_latest(str(tmp_path)) == path
  assert path == checkpoints.path_of_step(str(tmp_path), 12)
  assert checkpoints.read_step(path) == 12


def test_a_directory_that_is_not_there_has_no_checkpoint(tmp_path):
  assert checkpoints.find_latest(str(tmp_path / 'nowhere')) is None


def test_the_best_checkpoint_is_not_the_latest(tmp_path):
  best = checkpoints.best_dir(str(tmp_path))
  os.makedirs(best)
  save(best, step=2)
  assert checkpoints.find_latest(str(tmp_path)) is None
  assert checkpoints.read_step(checkpoints.find_latest(best)) == 2


def copy_of(path, folder):
  """Copies a checkpoint's files to `folder`; returns its new path."""
  for file in glob.glob(f'{path}.*'):
    shutil.copy(file, folder)
  return os.path.join(folder, os.path.basename(path))


def truncate(name):
  data = pathlib.Path(name).read_bytes()
  pathlib.Path(name).write_bytes(data[: len(data) // 2])


def flip(name):
  data = bytearray(pathlib.Path(name).read_bytes())
  data[len(data) // 2] ^= 1
  pathlib.Path(name).write_bytes(data)


def empty(name):
  pathlib.Path(name).write_bytes(b'')


DATA = 'data-00000-of-00001'


@pytest.mark.parametrize(
  'harm, ending',
  [
    *((harm, DATA) for harm in (truncate, flip, empty, os.remove)),
    *((harm, 'index') for harm in (truncate, empty, os.remove)),
  ],
)
def test_a_checkpoint_that_is_not_whole_is_named_and_the_one_before_taken(
  tmp_path, harm, ending, logged
):
  first = save(tmp_path, step=3, w=[50])
  with tf.Graph().as_default(), tf.Session() as session:
    w = tf.get_variable('w', [50])
    step = tf.train.get_or_create_global_step()
    saver = tf.train.Saver()
    saver.recover_last_checkpoints([first])
    session.run([w.initializer, step.initializer])
    second = saver.save(session, checkpoints.prefix(tmp_path), 9)
  assert (
    checkpoints.find_usable(str(tmp_path), checkpoints.find_fault) == second
  )
  harm(f'{second}.{ending}')
  assert checkpoints.find_usable(str(tmp_path), checkpoints.find_fault) == first
  [line] = logged
  assert line.startswith(f'checkpoint {second} is not whole, and not used: ')
  truncate(f'{first}.index')
  with pytest.raises(
    cli.RunError, match='^none of the checkpoints in .* can be used: .*never'
  ):
    checkpoints.find_usable(str(tmp_path), checkpoints.find_fault)


@pytest.mark.parametrize('harm', [truncate, empty, os.remove])
def test_without_the_list_the_checkpoints_are_found_by_name(tmp_path, harm):
  paths = [save(tmp_path, step=step, w=[2]) for step in (3, 20, 100)]
  harm(str(tmp_path / 'checkpoint'))
  found = checkpoints.list_checkpoints(str(tmp_path))
  # A list that was cut short may still name one.
  assert found[0] == paths[2] or found == paths[::-1]


def test_a_folder_that_was_moved_keeps_its_checkpoints(tmp_path):
  (tmp_path / 'a').mkdir()
  save(tmp_path / 'a', w=[2])
  (tmp_path / 'a').rename(tmp_path / 'b')
  assert checkpoints.find_usable(
    str(tmp_path / 'b'), checkpoints.find_fault
  ) == str(tmp_path / 'b' / 'model.ckpt-3')


def test_no_checkpoint_is_none(tmp_path):
  assert checkpoints.find_usable(str(tmp_path), checkpoints.find_fault) is None
  assert (
    checkpoints.find_usable(str(tmp_path / 'nowhere'), checkpoints.find_fault)
    is None
  )
