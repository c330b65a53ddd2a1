"""checkpoint_reader: slices, touched rows; damage, and what is tried again."""

import errno
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli, partial_names
from distmnist.logdir import checkpoint_reader, checkpoints, restart, saving
from distmnist.storage import retries
from tests.logdir.checkpoints_test import save, truncate
from tests.support import partial, programs
from tests.support.runner import import_benchmark


@pytest.fixture
def waits(monkeypatch):
  """The pauses (list of float) that were made between tries."""
  found = []
  monkeypatch.setattr(checkpoint_reader.time, 'sleep', found.append)
  return found


class Sick:
  """A reader whose values cannot be read for a while."""

  def __init__(self, reader, errors):
    self._reader = reader
    self._errors = errors

  def __getattr__(self, name):
    return getattr(self._reader, name)

  def get_tensor(self, name):
    if self._errors:
      raise self._errors.pop()
    return self._reader.get_tensor(name)


@pytest.fixture
def make_sick(monkeypatch):
  """Returns make_sick(path, errors): the reads of that one raise these."""
  real = checkpoint_reader.open_reader

  def make(path, errors):
    monkeypatch.setattr(
      checkpoint_reader,
      'open_reader',
      lambda p: Sick(real(p), errors if p == path else []),
    )

  return make


def make_error(kind, text):
  return getattr(tf.errors, kind)(None, None, text)


PASSING = (
  make_error('UnknownError', 'Input/output error'),
  make_error('ResourceExhaustedError', 'x'),
  make_error('PermissionDeniedError', 'x'),
  make_error('InternalError', 'x'),
  tf.errors.OpError(None, None, '/d/model.ckpt-3.index; Stale file handle', 2),
  tf.errors.OpError(None, None, '/my runs/model.ckpt-3; Permission denied', 2),
  OSError(errno.EIO, os.strerror(errno.EIO)),
)


@pytest.mark.parametrize('error', PASSING)
def test_what_fails_once_is_read_again(
  tmp_path, make_sick, waits, logged, error
):
  save(str(tmp_path), step=3, w=[2])
  path = save(str(tmp_path), step=9, w=[2])
  make_sick(path, [error])
  found = checkpoints.find_usable(str(tmp_path), checkpoints.find_fault)
  assert found == path
  assert waits == [0.5]
  assert logged[0].startswith(f'checkpoint {path} cannot be read: ')
  assert logged[0].endswith('; trying again in 0.5 s')


def test_after_a_failed_read_the_files_are_opened_anew(
  tmp_path, waits, monkeypatch
):
  path = save(str(tmp_path), step=9, w=[2])
  opened, real = [], checkpoint_reader.open_reader

  def open_stale_one_first(path):
    opened.append(path)
    return Sick(real(path), [PASSING[0]] * 9 if not opened[1:] else [])

  monkeypatch.setattr(checkpoint_reader, 'open_reader', open_stale_one_first)
  with checkpoint_reader.Reader(path) as reader:
    assert reader.read('w').shape == (2,)
  assert opened == [path] * 2
  assert waits == [0.5]


@pytest.mark.parametrize('error', PASSING)
def test_what_cannot_be_read_is_not_passed_over(
  tmp_path, make_sick, waits, monkeypatch, error
):
  save(str(tmp_path), step=3, w=[2])
  path = save(str(tmp_path), step=9, w=[2])
  before = sorted(os.listdir(tmp_path))
  make_sick(path, [error] * 100)
  run = restart.Restart(str(tmp_path), 'auto', 10)
  with pytest.raises(cli.PassingError, match='it may be whole') as caught:
    run.find()
  assert tuple(waits) == retries.WAITS_SECS
  assert sorted(os.listdir(tmp_path)) == before
  monkeypatch.setenv('DISTMNIST_ATTEMPT', '2')
  assert caught.value.exit_code == 3


def test_what_was_tried_again_in_a_store_is_not_tried_again_here(
  waits, monkeypatch
):
  def ask(*_):
    raise OSError(errno.EIO, 'Reduce your request rate', 's3://bucket/run')

  monkeypatch.setattr(checkpoints.paths, 'list_names', ask)
  with pytest.raises(cli.PassingError, match='Reduce your request rate'):
    checkpoints.list_checkpoints('s3://bucket/run')
  assert waits == []


DAMAGE = (
  make_error('DataLossError', 'x'),
  make_error('OutOfRangeError', 'x'),
  make_error('NotFoundError', 'x'),
  tf.errors.OpError(None, None, 'block checksum mismatch', 2),
  IndexError('Read less bytes than requested'),
)


@pytest.mark.parametrize('error', DAMAGE)
def test_damage_is_known_at_once(tmp_path, make_sick, waits, error):
  first = save(str(tmp_path), step=3, w=[2])
  path = save(str(tmp_path), step=9, w=[2])
  make_sick(path, [error])
  found = checkpoints.find_usable(str(tmp_path), checkpoints.find_fault)
  assert found == first
  assert waits == []


def test_a_folder_that_cannot_be_listed_has_not_lost_its_checkpoints(
  tmp_path, monkeypatch, waits
):
  path = save(str(tmp_path), step=9, w=[2])
  stale, real = [True] * 3, os.stat

  def stat(name, **kwargs):
    if name == str(tmp_path) and stale:
      stale.pop()
      raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), name)
    return real(name, **kwargs)

  monkeypatch.setattr(os, 'stat', stat)
  assert checkpoints.list_checkpoints(str(tmp_path)) == [path]
  assert waits == [0.5, 1, 2]


_TRAIN = '--dataset=synthetic', '--model=softmax', '--save_steps=10'


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """The --logdir of a training of 20 steps."""
  logdir = tmp_path_factory.mktemp('trained') / 'run'
  programs.run_forked(
    'train', *_TRAIN, f'--logdir={logdir}', '--train_steps=20'
  )
  return logdir


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('name', ['model.ckpt-20.index', 'model.ckpt-20.data'])
def test_a_training_resumes_from_the_newest_though_a_read_has_failed(
  tmp_path, trained, name
):
  logdir = shutil.copytree(trained, tmp_path / 'run')
  faults = import_benchmark('lib.fault_files')
  with faults.Files(tmp_path, logdir) as files:
    files.fail(faults.READS, errno.EIO, times=1, name=name)
    done = subprocess.run(
      [
        *(sys.executable, '-m', 'distmnist.train', *_TRAIN),
        *(f'--logdir={logdir}', '--train_steps=30'),
      ],
      env=os.environ | files.env,
      check=True,
      capture_output=True,
      text=True,
      timeout=300,
    )
  said = done.stdout + done.stderr
  assert 'Input/output error; trying again in 0.5 s' in said
  assert f'restored {logdir}/model.ckpt-20' in said
  assert not list(logdir.glob('passed_over_*'))


OPEN = """
import sys, threading
from distmnist.logdir import checkpoint_reader
def echo():
  for line in sys.stdin:
    print(line, end='', flush=True)
threading.Thread(target=echo, daemon=True).start()
reader = checkpoint_reader.open_reader(sys.argv[1])
print(sorted(reader.get_variable_to_shape_map()), flush=True)
"""


@pytest.mark.slow
def test_a_task_goes_on_while_a_disk_does_not_give_it_a_checkpoint(tmp_path):
  fault_files = import_benchmark('lib.fault_files')
  folder = tmp_path / 'run'
  folder.mkdir()
  path = save(folder, 7)
  with fault_files.Files(tmp_path, folder) as files:
    files.fail(fault_files.READS, fault_files.HANGS)
    with subprocess.Popen(
      [sys.executable, '-c', OPEN, path],
      env={**os.environ, **files.env},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    ) as process:
      # If TensorFlow hung in the reader, no other thread would run.
      for number in range(20):
        process.stdin.write(f'{number}\n')
        process.stdin.flush()
        assert process.stdout.readline() == f'{number}\n'
        with pytest.raises(subprocess.TimeoutExpired):
          process.wait(0.05)
      files.mend()
      assert 'global_step' in process.stdout.readline()
      process.stdin.close()


@pytest.mark.slow
def test_each_slice_is_read_as_it_was_saved(tmp_path):
  rng = np.random.default_rng(0)
  table = rng.normal(size=[700, 3]).astype('f')
  many = {f'some/long/name_{i}': np.float32(i) for i in range(40)}
  with tf.Graph().as_default(), tf.Session() as session:
    cut = tf.fixed_size_partitioner(5)
    for name in 'a/table', 'table':
      tf.get_variable(name, table.shape, partitioner=cut)
    tf.get_variable('whole', initializer=table)
    for name, value in many.items():
      tf.get_variable(name, initializer=value)
    session.run(tf.global_variables_initializer())
    for variable in tf.global_variables():
      if place := variable._get_save_slice_info():
        [first, _], [rows, _] = place.var_offset, place.var_shape
        variable.load(table[first : first + rows], session)
    path = tf.train.Saver().save(session, str(tmp_path / 'model.ckpt'))
  with checkpoint_reader.Reader(path) as reader:
    assert reader.shapes.keys() == {*many, 'a/table', 'table', 'whole'}
    for name in 'a/table', 'table':
      slices = reader.find_slices(name)
      assert [(x.first, x.size) for x in slices] == [
        (140 * i, 140) for i in range(5)
      ]
      read = [reader.read(name, x) for x in slices]
      np.testing.assert_array_equal(np.concatenate(read), table)
    [whole] = reader.find_slices('whole')
    assert (whole.first, whole.size) == (0, 700)
    np.testing.assert_array_equal(reader.read('whole', whole), table)
    for name in 'table', 'whole':
      found = reader.read_rows(name, 130, 20)
      np.testing.assert_array_equal(found, table[130:150])
    for name, value in many.items():
      [part] = reader.find_slices(name)
      assert reader.read(name, part) == value


@pytest.mark.parametrize('dtype', [np.float16, tf.bfloat16.as_numpy_dtype])
def test_rows_of_a_large_variable_in_one_piece_are_read_alone(
  tmp_path, tf_session, monkeypatch, dtype
):
  monkeypatch.setattr(partial_names, 'SLICE_BYTES', 100)
  table = np.random.default_rng(0).normal(size=[70, 3]).astype(dtype)
  for name in 'a', 'z':
    tf.get_variable(name, initializer=table if name == 'z' else -table)
  tf_session.run(tf.global_variables_initializer())
  path = tf.train.Saver().save(tf_session, str(tmp_path / 'model.ckpt'))
  for first, size in (0, 70), (0, 1), (33, 20), (69, 1):
    with checkpoint_reader.Reader(path) as reader:
      found = reader.read_rows('z', first, size)
    assert found.dtype == table.dtype
    assert found.tobytes() == table[first : first + size].tobytes()
  with checkpoint_reader.Reader(path) as reader:
    truncate(f'{path}.data-00000-of-00001')
    with pytest.raises(checkpoint_reader.DamageError, match='is too short'):
      reader.read_rows('z', 33, 20)
    os.remove(f'{path}.data-00000-of-00001')
    with pytest.raises(checkpoint_reader.DamageError):
      reader.read_rows('z', 33, 20)


@pytest.mark.parametrize('sizes', [[10], [1] * 10, [4, 5, 1]])
def test_rows_that_were_touched_replace_those_of_the_base(tmp_path, sizes):
  path, whole = partial.make_both(str(tmp_path))
  with checkpoint_reader.Reader(path) as reader:
    assert reader.shapes == {n: list(np.shape(v)) for n, v in whole.items()}
    for name, value in whole.items():
      np.testing.assert_array_equal(reader.read(name), value)
      parts = [reader.read(name, x) for x in reader.find_slices(name)]
      np.testing.assert_array_equal(parts, [value])
    first = 0
    for size in sizes:
      np.testing.assert_array_equal(
        reader.read_rows('a/rows', first, size),
        whole['a/rows'][first : first + size],
      )
      first += size


def find_error(path):
  with (
    pytest.raises(checkpoint_reader.DamageError) as caught,
    checkpoint_reader.Reader(path) as reader,
  ):
    for name in reader.shapes:
      reader.read(name)
  return str(caught.value)


def test_a_base_that_is_gone_or_damaged_or_another_is_named(tmp_path):
  path, _ = partial.make_both(str(tmp_path))
  base = f'{tmp_path}/model.ckpt-2'
  truncate(f'{base}.data-00000-of-00001')
  assert f'{base} is not whole, and model.ckpt-7 has' in find_error(path)
  values = partial.make_values(2) | {'a/rows': partial.TABLE + 1}
  saving.CheckpointWriter(str(tmp_path), 5).save_values(values, 2)
  assert f'{base} was written anew, and model.ckpt-7 has' in find_error(path)
  truncate(f'{base}.index')
  assert f'{base} is not whole, and model.ckpt-7 has' in find_error(path)
  checkpoints.remove(base)
  assert f'{base} is not there, and model.ckpt-7 has' in find_error(path)


def test_a_damaged_partial_one_is_no_fault_of_its_base(tmp_path):
  path, _ = partial.make_both(str(tmp_path))
  truncate(tmp_path / 'model.ckpt-7.data-00000-of-00001')
  assert 'model.ckpt-2' not in find_error(path)


def test_rows_that_are_missing_are_found(tmp_path, monkeypatch):
  monkeypatch.delitem(partial.ROWS, (0, 6))
  path, _ = partial.make_both(str(tmp_path))
  assert find_error(path).endswith('it lacks rows of a/rows')


def test_a_slice_that_cannot_be_read_once_is_read_again(
  tmp_path, waits, monkeypatch
):
  path, whole = partial.make_both(str(tmp_path))
  failures = []
  with checkpoint_reader.Reader(path) as reader:
    part = checkpoint_reader.Slice(2, 4, '10 3 2,4:-')
    run = tf.Session.run

    def run_once_failed(*args):
      if not failures:
        failures.append(args)
        raise make_error('UnknownError', 'Input/output error')
      return run(*args)

    monkeypatch.setattr(tf.Session, 'run', run_once_failed)
    found = reader.read('a/rows', part)
  np.testing.assert_array_equal(found, whole['a/rows'][2:6])
  assert waits == [0.5]


@pytest.mark.slow
def test_two_in_a_store_and_their_bases_are_read_at_once(tmp_path):
  folder = f'memory://{tmp_path.name}'
  writer, found = saving.CheckpointWriter(folder, 5), {}
  for base, step in (2, 7), (12, 17):
    partial.write_base(writer, base)
    path = checkpoints.path_of_step(folder, step)
    found[path] = partial.write(writer, folder, base, step)
  one, other = found
  with (
    checkpoint_reader.Reader(one) as first,
    checkpoint_reader.Reader(other) as second,
  ):
    for name in found[one]:
      np.testing.assert_array_equal(first.read(name), found[one][name])
      np.testing.assert_array_equal(second.read(name), found[other][name])
