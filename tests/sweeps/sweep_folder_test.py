"""The folder of a sweep: found again, and held by one sweep."""

import signal
import subprocess
import sys

import pytest

from distmnist import sweep
from distmnist.sweeps import sweep_folder
from tests.support import background, sweeps

pytestmark = pytest.mark.usefixtures('heed_signals')


def run_without_folder(folder, temporary):
  """Runs a sweep of one trial whose folder is the default one."""
  command = sweeps.make_command(folder, 'do=all:report=0.5')
  return subprocess.run(
    [word for word in command if not word.startswith('--sweep_dir')],
    env={**sweeps.make_env(), 'TMPDIR': str(temporary)},
    capture_output=True,
    text=True,
    timeout=250,
  )


@pytest.mark.slow
def test_the_same_command_finds_its_folder_again(tmp_path):
  def find(*words):
    done = subprocess.run(
      [sys.executable, '-m', 'distmnist.sweep', '--dry_run', *words],
      env={**sweeps.make_env(), 'TMPDIR': str(tmp_path)},
      capture_output=True,
      text=True,
    )
    return done.stdout.split('--logdir=')[1].split('/trials')[0]

  first = find('batch_size=1,2')
  assert (
    first == find('batch_size=1,2', '--parallel=2') != find('batch_size=1,3')
  )
  assert first.startswith(f'{tmp_path}/distmnist_sweep_')


def open_folder(set_flags, path):
  set_flags('--num_ps=0', '--num_workers=1')
  spec = sweep.make_spec(['a=1,2'], [f'--problem={path}'])
  return sweep_folder.SweepFolder(None, spec)


def test_another_problem_under_the_same_name_has_another_default_folder(
  set_flags, tmp_path, monkeypatch
):
  path = tmp_path / 'mine.py'
  path.write_text('x = 1')
  first = open_folder(set_flags, path).path
  assert open_folder(set_flags, path).path == first
  path.write_text('x = 2')
  assert open_folder(set_flags, path).path != first
  path.write_text('x = 1')
  monkeypatch.chdir(tmp_path)  # Where its data may be others.
  assert open_folder(set_flags, path).path != first


@pytest.mark.slow
def test_a_folder_is_for_one_sweep(tmp_path):
  assert (
    sweeps.run(tmp_path, 'do=all:report=0.1;all:report=0.2').returncode == 0
  )
  done = sweeps.run(tmp_path, 'do=all:report=0.1;all:report=0.3')
  assert done.returncode == 2
  assert done.stderr.startswith(
    f'distmnist.sweep: error: --sweep_dir={tmp_path}/sweep holds another '
    "sweep: its words were ['do=all:report=0.1;all:report=0.2'] and not "
  )
  assert done.stderr.count('\n') == 1
  done = sweeps.run(tmp_path, 'do=all:report=0.1;all:report=0.2', '--', '--y=1')
  assert done.returncode == 2
  assert 'its flags were' in done.stderr


@pytest.mark.slow
def test_two_sweeps_on_one_folder_are_refused(tmp_path):
  words = ['do=all:leave=on;all:report=0.5']
  with sweeps.Running(tmp_path, *words) as running:
    running.wait_for_files('worker0.on')
    done = sweeps.run(tmp_path, *words)
    assert done.returncode == 2
    assert 'is in use by another sweep' in done.stderr
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(sweeps.DEADLINE_SECS) == 143


@pytest.mark.slow
def test_the_default_folder_is_the_users_own(tmp_path):
  temporary = tmp_path / 'temporary'
  temporary.mkdir()
  assert run_without_folder(tmp_path, temporary).returncode == 0
  (folder,) = temporary.glob('distmnist_sweep_*')
  assert folder.stat().st_mode & 0o777 == 0o700
  folder.chmod(0o777)
  done = run_without_folder(tmp_path, temporary)
  assert done.returncode == 2
  assert background.last_line(done.stderr).startswith(
    f'distmnist.sweep: error: {folder} lets others write to it (mode 777), and'
    ' a sweep without --sweep_dir needs a folder of its own: give --sweep_dir'
  )
  folder.rename(temporary / 'elsewhere')
  folder.symlink_to(temporary / 'elsewhere')
  done = run_without_folder(tmp_path, temporary)
  assert done.returncode == 2
  assert f'{folder} is a link, and' in background.last_line(done.stderr)
