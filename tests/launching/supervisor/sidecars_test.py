"""What runs beside the tasks: starts with them, ends with them."""

import os
import queue
import signal
import subprocess
import sys
import types
import urllib.request

import psutil
import pytest

from distmnist.common import cli, refusals
from distmnist.launching.supervisor import sidecars
from tests.support.background import assert_gone
from tests.support.paths import REPO


def check(launcher, logdir, no_wait=None):
  refusals.refuse(
    sidecars.REFUSALS, launcher=launcher, logdir=logdir, no_wait=no_wait
  )


@pytest.mark.parametrize(
  ('words', 'launcher', 'logdir', 'match'),
  [
    (['--tensorboard'], 'local', None, '--tensorboard shows what the tasks'),
    (['--metrics_port=0'], 'ssh', None, '--metrics_port=0 shows what the'),
    (['--tensorboard'], 'kubernetes', '/logs/x', 'on a volume: leave it out'),
    (['--tensorboard'], 'local', 'gs://a/b', 'this machine, not gs://a/b: lea'),
  ],
)
def test_what_cannot_work_is_refused(set_flags, words, launcher, logdir, match):
  set_flags(*words)
  with pytest.raises(cli.UsageError, match=match):
    check(launcher, logdir)


def test_none_runs_beside_a_launcher_that_does_not_wait(set_flags):
  set_flags('--tensorboard')
  check('slurm', 'run')
  with pytest.raises(cli.UsageError, match='for the run with --noslurm_wait:'):
    check('slurm', 'run', '--noslurm_wait')


def test_without_a_flag_there_is_none(set_flags):
  set_flags()
  check('kubernetes', None)
  assert sidecars.from_flags() == []


def test_each_flag_is_a_companion(set_flags):
  set_flags('--tensorboard', '--metrics_port=0')
  assert len(sidecars.from_flags()) == 2


@pytest.mark.slow
def test_one_ends_with_the_context_and_has_a_log(tmp_path):
  argv = ['-c', 'import time; print("here", flush=True); time.sleep(600)']
  with sidecars.running('x', argv, str(tmp_path)) as process:
    log = tmp_path / 'x.log'
    while 'here' not in log.read_text():
      with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.02)
  assert process.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_one_that_does_not_end_is_killed_and_told(
  tmp_path, monkeypatch, logged
):
  monkeypatch.setattr(sidecars, '_END_SECS', 0.01)
  code = (
    'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);'
    'print("here", flush=True); time.sleep(600)'
  )
  with sidecars.running('x', ['-c', code], str(tmp_path)) as process:
    while 'here' not in (tmp_path / 'x.log').read_text():
      with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.02)
  assert process.returncode == -signal.SIGKILL
  assert logged == [f'x has not ended and is killed; log: {tmp_path}/x.log']


@pytest.mark.slow
@pytest.mark.parametrize(
  'end, cause',
  [
    ('raise SystemExit(3)', 'exit code 3'),
    ('import os; os.kill(os.getpid(), 9)', 'killed by SIGKILL'),
    ('raise SystemExit("distmnist.train: error: no key")', 'no key'),
  ],
)
def test_one_that_fails_is_named_at_once_and_ends_no_run(
  tmp_path, monkeypatch, end, cause
):
  told = queue.Queue()
  monkeypatch.setattr(sidecars, '_log', types.SimpleNamespace(info=told.put))
  with sidecars.running('x', ['-c', end], str(tmp_path)):
    line = told.get(timeout=200)
  assert line == f'x has failed: {cause}; log: {tmp_path}/x.log'


@pytest.mark.slow
def test_one_ends_with_a_launcher_that_is_killed(tmp_path):
  code = (
    'import sys, time\n'
    'from distmnist.launching.supervisor import sidecars\n'
    'argv = ["-c", "import time; print(1, flush=True); time.sleep(600)"]\n'
    'with sidecars.running("x", argv, sys.argv[1]) as process:\n'
    '  print(process.pid, flush=True)\n'
    '  time.sleep(600)\n'
  )
  launcher = subprocess.Popen(
    [sys.executable, '-c', code, tmp_path], stdout=subprocess.PIPE, cwd=REPO
  )
  with launcher:
    child = psutil.Process(int(launcher.stdout.readline()))
    while not (tmp_path / 'x.log').read_text():
      assert launcher.poll() is None
    os.kill(launcher.pid, signal.SIGKILL)
  assert_gone([child])


@pytest.mark.slow
def test_prometheus_finds_its_port(set_flags, tmp_path, logged):
  set_flags('--metrics_port=0')
  (make,) = sidecars.from_flags()
  before = os.listdir('/proc/self/fd')
  with make(str(tmp_path), str(tmp_path)) as process:
    # What connects to it uses up none of the launcher's descriptors.
    assert len(os.listdir('/proc/self/fd')) <= len(before)
    address = logged[-1].partition(': ')[2]
    with urllib.request.urlopen(address, timeout=200) as page:
      assert page.status == 200
  assert process.returncode == -signal.SIGTERM


@pytest.mark.slow
def test_a_port_that_is_taken_is_told(set_flags, tmp_path, logged):
  set_flags('--metrics_port=0')
  (make,) = sidecars.from_flags()
  with make(str(tmp_path), str(tmp_path)):
    port = logged[-1].rpartition(':')[2].partition('/')[0]
    set_flags(f'--metrics_port={port}')
    (again,) = sidecars.from_flags()
    with (
      pytest.raises(cli.RunError, match='in use; give a free one, or 0'),
      again(str(tmp_path), str(tmp_path)),
    ):
      pass
