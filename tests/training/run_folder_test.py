import contextlib
import dataclasses
import errno
import importlib
import os
import re
import shutil

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.common.names import LAUNCH_ID
from distmnist.logdir import begin_file, logdirs
from distmnist.storage import process_tag
from distmnist.training import run_folder
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import problem_data
from tests.logdir import checkpoints_test
from tests.support import in_process, problems

CHIEF = cluster_lib.Cluster()
OTHER = cluster_lib.make_cluster(('p:1',), ('v:1', 'w:1'), 'worker', 1)


@pytest.fixture
def make(set_flags):
  """Returns make(cluster, *flags) -> a RunFolder that is claimed."""
  with contextlib.ExitStack() as at_end:

    def make_folder(cluster, *words):
      set_flags(*problems.FEW_IMAGES, '--model=softmax', *words)
      task = in_process.make_task(cluster)
      task.watchdog.life = 'a life'
      problem = problem_lib.from_flags()
      splits = problem_data.load_training_splits(problem)
      folder = run_folder.RunFolder(task, 10, splits)
      with tf.Graph().as_default():
        folder.claim(problem, at_end)
      return folder

    yield make_folder


@pytest.mark.slow
def test_without_a_logdir_nobody_owns_anything(make):
  folder = make(CHIEF)
  folder.sign()
  assert (folder.path, folder.owner) == (None, None)
  assert 'checksum' in folder.images


def test_the_chief_removes_the_drafts_of_killed_processes(make, tmp_path):
  machine, pid, start = process_tag.make_tag().split('-')
  for folder in (
    tmp_path / 'run',
    tmp_path / 'run' / 'distmnist-files',
  ):
    folder.mkdir(parents=True)
    for ticks in int(start) - 1, start:
      name = f'a.json.{machine}-{pid}-{ticks}-01234567.new'
      (folder / name).write_text('')
  make(CHIEF, f'--logdir={tmp_path}/run')
  left = sorted((tmp_path / 'run').rglob('*.new'))
  assert [path.parent.name for path in left] == ['run', 'distmnist-files']
  assert {path.name for path in left} == {name}


def refuse(number, real, times=2):
  """Returns a function that fails so many times before it does as `real`."""
  left = iter([None] * times)

  def do(*words, **settings):
    for _ in left:
      raise OSError(number, os.strerror(number))
    return real(*words, **settings)

  return do


@pytest.mark.parametrize(
  'name',
  ['tempfile.TemporaryFile', 'distmnist.storage.disk.create']
  + ['distmnist.logdir.begin_file.write', 'distmnist.logdir.logdirs.sign'],
)
def test_a_disk_that_is_full_for_a_while_is_waited_for(
  make, tmp_path, monkeypatch, name
):
  place, name = name.rsplit('.', 1)
  module = importlib.import_module(place)
  full = refuse(errno.ENOSPC, getattr(module, name))
  monkeypatch.setattr(module, name, full)
  path = tmp_path / 'run'
  folder = make(CHIEF, f'--logdir={path}', '--resume=never')
  folder.sign()
  folder.owner.check()
  assert logdirs.is_signed(str(path), 'a life')


@pytest.mark.parametrize(
  ('number', 'limit', 'kind'),
  [(errno.ENOSPC, 0.0, cli.PassingError), (errno.EACCES, 60.0, cli.RunError)],
)
def test_what_does_not_pass_or_not_in_time_ends_the_start(
  make, tmp_path, monkeypatch, number, limit, kind
):
  full = refuse(number, None, 1000)
  monkeypatch.setattr('tempfile.TemporaryFile', full)
  chief = dataclasses.replace(CHIEF, start_timeout_secs=limit)
  with pytest.raises(cli.RunError, match='--logdir=.* cannot be wri') as caught:
    make(chief, f'--logdir={tmp_path}/run')
  assert type(caught.value) is kind


def test_the_chief_has_the_folder_to_itself(make, tmp_path):
  path = tmp_path / 'run'
  folder = make(CHIEF, f'--logdir={path}')
  assert folder.path == str(path)
  folder.owner.check()
  with pytest.raises(cli.RunError, match='--logdir'):
    make(CHIEF, f'--logdir={path}', '--start_timeout_secs=0')


@pytest.mark.parametrize('number', [0.5, 0.25])
def test_a_run_from_another_tells_which_flags_differ(
  set_flags, tmp_path, caplog, number
):
  caplog.set_level('INFO', run_folder.__name__)

  def claim(name, *words):
    caplog.clear()
    set_flags(f'--logdir={tmp_path}/{name}', *words)
    folder = run_folder.RunFolder(in_process.make_task(CHIEF), 10)
    with contextlib.ExitStack() as at_end:
      folder.claim(None, at_end)
    changes = re.findall(r'--(\w+) (\S+) -> ([^\s,]+)', caplog.text)
    return {name: (then, now) for name, then, now in changes}

  assert claim('a', '--learning_rate=0.5') == {}
  checkpoints_test.save(tmp_path / 'a', step=3, w=[2])
  words = f'--learning_rate={number}', f'--resume={tmp_path}/a'
  expected = {'learning_rate': ('0.5', '0.25')} if number == 0.25 else {}
  assert claim('b', *words) == expected
  # The flags of b are its own from then on.
  checkpoints_test.save(tmp_path / 'b', step=4, w=[2])
  assert 'learning_rate' not in claim('b', '--resume=auto')


def test_a_folder_that_was_removed_is_signed_again(make, tmp_path, monkeypatch):
  monkeypatch.setenv(LAUNCH_ID, 'a launch')
  path = tmp_path / 'run'
  folder = make(CHIEF, f'--logdir={path}', '--resume=never')
  folder.sign()
  assert logdirs.is_signed(str(path), 'a life')
  shutil.rmtree(path)
  folder.owner.check()
  assert logdirs.is_signed(str(path), 'a life')
  assert (path / 'train.flags').exists()
  assert (path / 'distmnist-files' / 'train.data').exists()
  # Else a chief that starts again would begin anew, as --resume says.
  assert begin_file.has_begun(str(path))


def test_other_workers_only_make_the_folder(make, tmp_path):
  path = tmp_path / 'run'
  folder = make(OTHER, f'--logdir={path}')
  folder.sign()
  assert path.is_dir()
  assert (folder.owner, folder.images) == (None, '')
  assert os.listdir(path) == ['distmnist-files'] and not os.listdir(
    path / 'distmnist-files'
  )


def test_a_run_has_begun_once_its_first_step_is_done(set_flags, tmp_path):
  set_flags('--synthetic_train_images=20')
  report = tmp_path / 'report.json'
  report.write_text('{}')
  step = run_folder.FirstStep(
    str(tmp_path), 'some images', problem_lib.from_flags()
  )
  assert os.listdir(tmp_path) == ['report.json']
  step.before_run(None)
  assert (
    tmp_path / 'distmnist-files' / 'train.data'
  ).read_text() == 'some images\n'
  assert '--synthetic_train_images=20' in (
    (tmp_path / 'train.flags').read_text().splitlines()
  )
  assert report.exists()  # The step may still fail.
  step.after_run(None, None)
  assert not report.exists()
  # Later steps neither write nor remove.
  report.write_text('{}')
  (tmp_path / 'distmnist-files' / 'train.data').unlink()
  step.before_run(None)
  step.after_run(None, None)
  left = [path.name for path in tmp_path.rglob('*') if path.is_file()]
  assert sorted(left) == ['report.json', 'train.flags']
