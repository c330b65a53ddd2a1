"""scratch: a folder that goes with its process, even if that is killed."""

import os
import shutil
import subprocess
import sys

import pytest

from distmnist.storage import scratch


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
  scratch.remove()
  monkeypatch.setattr(scratch.tempfile, 'tempdir', str(tmp_path))
  yield
  scratch.remove()


def test_a_process_has_one_that_goes_at_its_end(tmp_path):
  folder = scratch.folder()
  assert scratch.folder() == folder
  assert os.path.dirname(scratch.make('draft')) == folder
  scratch.remove()
  assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_that_of_a_killed_process_is_removed_and_of_a_living_one_not(tmp_path):
  code = (
    'import sys; from distmnist.storage import scratch;'
    'print(scratch.folder(), flush=True); sys.stdin.read()'
  )
  started = [
    subprocess.Popen(
      [sys.executable, '-c', code],
      env={**os.environ, 'TMPDIR': str(tmp_path)},
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
    )
    for _ in range(2)
  ]
  killed, living = (process.stdout.readline().strip() for process in started)
  started[0].kill()
  started[0].communicate()
  (tmp_path / os.path.basename(killed) / 'draft').touch()
  mine = scratch.folder()
  assert sorted(os.listdir(tmp_path)) == sorted(
    map(os.path.basename, [mine, living])
  )
  started[1].communicate()
  assert os.listdir(tmp_path) == [os.path.basename(mine)]


def test_one_that_another_process_took_for_left_is_made_again(monkeypatch):
  """As that one looks between the making of the lock's file and the lock."""
  lock, taken = scratch.fcntl.flock, []

  def flock(descriptor, operation):
    if not taken:
      path = os.readlink(f'/proc/self/fd/{descriptor}')
      taken.append(os.path.dirname(path))
      shutil.rmtree(taken[0])
    lock(descriptor, operation)

  monkeypatch.setattr(scratch.fcntl, 'flock', flock)
  folder = scratch.folder()
  assert os.path.isdir(folder) and folder != taken[0]
