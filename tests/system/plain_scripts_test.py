"""scripts/run_*.sh: clusters by plain bash, on this machine, ssh and Slurm."""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys

import psutil
import pytest

from distmnist.common import ports
from distmnist.logdir import checkpoints
from tests.support import background, slurm_cluster
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


def wait_for_steps(script):
  """Waits until the chief trains; returns (a step of it, the tasks).

  Returns:
    (int, list of psutil.Process, what the script has started here).
  """
  for line in script.stdout:
    if found := re.match('step ([1-9][0-9,]*)/', line):
      tasks = psutil.Process(script.pid).children(recursive=True)
      assert len(tasks) >= 3
      return int(found[1].replace(',', '')), tasks
  raise AssertionError('no step')


def stop_amid(script, signum, logdir):
  """Stops a script as a terminal or a system does; returns its exit code.

  No task is left then, and the chief has saved.
  """
  step, tasks = wait_for_steps(script)
  if signum == signal.SIGINT:
    os.killpg(script.pid, signum)
  else:
    script.send_signal(signum)
  script.communicate(timeout=200)
  assert_gone(tasks)
  assert read_step(logdir) >= step
  return script.returncode


def read_step(logdir):
  return checkpoints.read_step(checkpoints.find_latest(str(logdir)))


@pytest.mark.daily
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


@pytest.mark.daily
@pytest.mark.parametrize(
  ('signum', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_a_cluster_here_ends_with_its_script(
  start, tmp_path, settings, signum, code
):
  logdir = tmp_path / 'run'
  words = train_words(logdir, 10**6)
  script = start('run_local.sh', *words, env=settings)
  assert stop_amid(script, signum, logdir) == code


def test_a_task_that_fails_ends_the_cluster(start, tmp_path, settings):
  words = train_words(tmp_path / 'run', 10**6)
  script = start('run_local.sh', *words, env=settings)
  _, tasks = wait_for_steps(script)
  worker = next(task for task in tasks if '--task_index=1' in task.cmdline())
  worker.kill()
  script.communicate(timeout=200)
  assert script.returncode == 128 + signal.SIGKILL
  assert_gone(tasks)


@pytest.mark.daily(
  but=['run_local.sh-words0', 'run_ssh.sh-words3', 'run_slurm.sh-words4']
)
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
  output, _ = script.communicate(timeout=60)
  assert script.returncode == 2
  assert output.startswith('usage: ')


@pytest.mark.daily(but=['# nothing', 'worker w0:2222 me@w0 more'])
@pytest.mark.parametrize(
  'text',
  [
    *('', '# nothing', 'ps ps0:2222', 'chief w0:2222', 'worker', 'worker w0'),
    *('worker w0:2222 # a rack', 'worker w0:2222 me@w0 more'),
    'worker w0:2222\r',
  ],
)
def test_a_file_of_hosts_is_checked_before_a_task_starts(start, tmp_path, text):
  (tmp_path / 'hosts').write_text(text, newline='')
  script = start('run_ssh.sh', 'hosts', '--', env=dict(os.environ))
  output, _ = script.communicate(timeout=60)
  assert script.returncode == 2
  assert 'run_ssh.sh: hosts: expected' in output


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


@pytest.mark.daily
def test_hosts_of_a_file_by_ssh(start, tmp_path, ssh_settings):
  logdir = tmp_path / 'a run'
  words = 'hosts', *train_words(logdir, 300)
  script = start('run_ssh.sh', *words, env=ssh_settings)
  output, _ = script.communicate(timeout=120)
  assert script.returncode == 0, output
  assert 'test accuracy' in output
  assert len(read_report(logdir)['workers']) == 2


@pytest.mark.daily
def test_what_runs_by_ssh_ends_with_its_script(start, tmp_path, ssh_settings):
  logdir = tmp_path / 'run'
  words = 'hosts', *train_words(logdir, 10**6)
  script = start('run_ssh.sh', *words, env=ssh_settings)
  assert stop_amid(script, signal.SIGINT, logdir) == 130
  marks = f'--worker_hosts=127.0.0.1:{int(ssh_settings["PORT"]) + 1},'
  assert not [
    task
    for task in psutil.process_iter(['cmdline'])
    if any(word.startswith(marks) for word in task.info['cmdline'] or ())
  ]


def test_tasks_of_a_job_of_slurm(tmp_path, settings):
  if reason := slurm_cluster.why_not():
    pytest.skip(reason)
  (tmp_path / 'slurm').mkdir()

  def run(*words, check=True):
    return subprocess.run(
      words,
      env={**settings, 'SLURM_CONF': str(config)},
      cwd=tmp_path,
      check=check,
      capture_output=True,
      text=True,
      timeout=120,
    ).stdout

  def submit(name, *words, steps):
    return run(
      *('sbatch', *words, '--parsable', '--ntasks=3', f'--output={name}.out'),
      *(SCRIPTS / 'run_slurm.sh', '1', *train_words(tmp_path / name, steps)),
    ).strip()

  def read_output(name):
    path = tmp_path / f'{name}.out'
    return path.read_text() if path.exists() else ''

  with slurm_cluster.start(tmp_path / 'slurm') as config:
    submit('ends', '--wait', steps=300)
    assert 'test accuracy' in read_output('ends')
    assert len(read_report(tmp_path / 'ends')['workers']) == 2
    job = submit('is told', steps=10**6)
    pattern = re.compile(r'^1: step ([1-9][0-9,]*)/', re.MULTILINE)
    background.wait_until(
      lambda: pattern.search(read_output('is told')),
      lambda: read_output('is told'),
    )
    step = int(pattern.search(read_output('is told'))[1].replace(',', ''))
    run('scancel', job)
    background.wait_until(
      lambda: not run('squeue', '--noheader', check=False).strip(),
      lambda: read_output('is told'),
    )
    assert read_step(tmp_path / 'is told') >= step, read_output('is told')
