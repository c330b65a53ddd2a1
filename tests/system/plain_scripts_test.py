"""scripts/run_*.sh: clusters by plain bash, on this machine, ssh and Slurm."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from distmnist.common import ports
from tests.support import slurm_cluster
from tests.support import sshd as sshd_lib
from tests.support.background import assert_gone
from tests.support.paths import REPO
from tests.support.runner import SMALL, read_report

pytestmark = pytest.mark.slow
SCRIPTS = REPO / 'scripts'


def find_ports(number):
  """Returns the first of so many free ports in a row."""
  while True:
    first = random.randrange(20_000, 30_000)
    if all(ports.is_free(first + i) for i in range(number)):
      return first


@pytest.fixture
def settings(tmp_path):
  """The environment of a script, a dict; its tasks are in tmp_path."""
  return {
    **os.environ,
    'PYTHON': sys.executable,
    'PYTHONPATH': str(REPO),
    'PORT': str(find_ports(3)),
    'LOGS': str(tmp_path / 'logs'),
  }


@pytest.fixture
def start(tmp_path):
  """A callable that starts a script in tmp_path; none outlives the test."""
  with contextlib.ExitStack() as stack:

    def begin(name, *words, env):
      script = subprocess.Popen(
        [SCRIPTS / name, *words],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
      )
      stack.enter_context(script)
      stack.callback(script.terminate)
      return script

    yield begin


def train_words(logdir, steps):
  return '--', *SMALL, f'--train_steps={steps}', f'--logdir={logdir}'


def stop_amid(script, signum):
  """Sends a signal to a script once its chief trains; returns the exit code.

  No task is left then.
  """
  for line in script.stdout:
    if line.startswith('step '):
      break
  tasks = psutil.Process(script.pid).children(recursive=True)
  assert len(tasks) >= 3
  script.send_signal(signum)
  output, _ = script.communicate(timeout=60)
  assert 'saved' in output or 'stop' in output, output
  assert_gone(tasks)
  return script.returncode


def test_a_cluster_here_ends_by_itself(start, tmp_path, settings):
  logdir = tmp_path / 'run'
  words = '1', '2', *train_words(logdir, 300)
  script = start('run_local.sh', *words, env=settings)
  output, _ = script.communicate(timeout=120)
  assert script.returncode == 0, output
  assert 'test accuracy' in output
  assert len(read_report(logdir)['workers']) == 2
  names = {path.name for path in (tmp_path / 'logs').iterdir()}
  assert names == {'ps_0.log', 'worker_1.log'}


@pytest.mark.parametrize(
  ('signum', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_cluster_here_ends_with_its_script(
  start, tmp_path, settings, signum, code
):
  words = train_words(tmp_path / 'run', 10**6)
  script = start('run_local.sh', *words, env=settings)
  assert stop_amid(script, signum) == code
  assert (tmp_path / 'run' / 'checkpoint').exists()


def test_a_task_that_fails_ends_the_cluster(start, settings):
  words = '--', *SMALL, '--model=nothing'
  script = start('run_local.sh', *words, env=settings)
  output, _ = script.communicate(timeout=120)
  assert script.returncode == 2, output


@pytest.mark.parametrize(
  ('name', 'words'),
  [
    ('run_local.sh', []),
    ('run_local.sh', ['two', '--']),
    ('run_local.sh', ['--num_ps=1', '--']),
    ('run_ssh.sh', ['no such file', '--']),
    ('run_slurm.sh', ['1', '--']),
  ],
)
def test_a_mistake_is_told(start, name, words):
  script = start(name, *words, env=dict(os.environ))
  output, _ = script.communicate(timeout=20)
  assert script.returncode == 2
  assert output.startswith('usage: ')


@pytest.fixture
def ssh_settings(tmp_path, settings):
  """The same, where `ssh` goes to a real sshd; with a file of three tasks."""
  if reason := sshd_lib.why_not():
    pytest.skip(reason)
  with sshd_lib.start(tmp_path) as folder:
    (tmp_path / 'bin').mkdir()
    program = tmp_path / 'bin' / 'ssh'
    program.write_text(
      f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n'
    )
    program.chmod(0o755)
    first = int(settings['PORT'])
    (tmp_path / 'hosts').write_text(
      '# role address [host]\n'
      f'ps 127.0.0.1:{first}\n\n'
      f'worker 127.0.0.1:{first + 1} {sshd_lib.login("127.0.0.2")}\n'
      f'worker 127.0.0.2:{first + 2}'
    )
    path = f'{program.parent}:{settings["PATH"]}'
    yield {**settings, 'PATH': path, 'DIR': str(REPO)}


def test_hosts_of_a_file_by_ssh(start, tmp_path, ssh_settings):
  logdir = tmp_path / 'a run'
  words = 'hosts', *train_words(logdir, 300)
  script = start('run_ssh.sh', *words, env=ssh_settings)
  output, _ = script.communicate(timeout=120)
  assert script.returncode == 0, output
  assert 'test accuracy' in output
  assert len(read_report(logdir)['workers']) == 2


def test_what_runs_by_ssh_ends_with_its_script(start, tmp_path, ssh_settings):
  words = 'hosts', *train_words(tmp_path / 'run', 10**6)
  script = start('run_ssh.sh', *words, env=ssh_settings)
  assert stop_amid(script, signal.SIGINT) == 130
  assert (tmp_path / 'run' / 'checkpoint').exists()
  marks = f'--worker_hosts=127.0.0.1:{int(ssh_settings["PORT"]) + 1},'
  assert not [
    task
    for task in psutil.process_iter(['cmdline'])
    if any(word.startswith(marks) for word in task.info['cmdline'] or ())
  ]


def test_tasks_of_a_job_of_slurm(tmp_path, settings):
  if reason := slurm_cluster.why_not():
    pytest.skip(reason)
  logdir = tmp_path / 'run'
  (tmp_path / 'slurm').mkdir()
  with slurm_cluster.start(tmp_path / 'slurm') as config:
    done = subprocess.run(
      [
        *('sbatch', '--wait', '--ntasks=3', '--output=job.out'),
        *(SCRIPTS / 'run_slurm.sh', '1', *train_words(logdir, 300)),
      ],
      env={**settings, 'SLURM_CONF': str(config)},
      cwd=tmp_path,
      capture_output=True,
      text=True,
      timeout=240,
    )
  output = (tmp_path / 'job.out').read_text()
  assert done.returncode == 0, done.stderr + output
  assert 'test accuracy' in output
  assert len(read_report(logdir)['workers']) == 2
