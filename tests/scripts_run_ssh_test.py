"""The script with an ssh in its place that runs the command on this machine."""

import os
import pathlib
import shlex
import signal
import subprocess
import sys
import time

import psutil
import pytest

TESTS = pathlib.Path(__file__).resolve().parent
SCRIPT = str(TESTS.parent / 'scripts' / 'run_ssh.sh')
HOSTS = """
# two machines
ps     127.0.0.1
worker 127.0.0.1:2300   # the chief
worker me@127.0.0.1:2301"""

FAKE_SSH = """#!/bin/bash
while [[ $1 == -o ]]; do shift 2; done
echo "$1" >>"$FOLDER/logins"
shift
exec bash -c "$*"
"""
FAKE_PYTHON = f"""#!/bin/sh
shift 2
PYTHONPATH={TESTS} exec {sys.executable} -m fake_train "$@"
"""


@pytest.fixture
def here(tmp_path):
  (tmp_path / 'bin').mkdir()
  (tmp_path / 'a dir').mkdir()
  for path, text in (
    (tmp_path / 'bin' / 'ssh', FAKE_SSH),
    (tmp_path / 'my python', FAKE_PYTHON),
  ):
    path.write_text(text)
    path.chmod(0o755)
  (tmp_path / 'hosts').write_text(HOSTS)
  return tmp_path


def make_env(here):
  return {
    **os.environ,
    'PATH': f'{here}/bin:{os.environ["PATH"]}',
    'FOLDER': str(here),
    'DISTMNIST_DIR': f'{here}/a dir',
    'DISTMNIST_PYTHON': f'{here}/my python',
    'DISTMNIST_LOGS': f'{here}/logs',
  }


def run(here, *words):
  return subprocess.run(
    [SCRIPT, *words],
    cwd=here,
    env=make_env(here),
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=60,
  )


@pytest.fixture(autouse=True)
def heed_signals():
  # Under nohup, or in the background of a script, SIGHUP or SIGINT is ignored
  # by pytest, and would be by all that it starts.
  signums = (signal.SIGINT, signal.SIGHUP)
  before = [signal.signal(n, signal.default_int_handler) for n in signums]
  yield
  for signum, handler in zip(signums, before, strict=True):
    signal.signal(signum, handler)


class Running:
  def __init__(self, here, do):
    self.here = here
    with open(here / 'stderr', 'w') as stderr:
      self.process = subprocess.Popen(
        [SCRIPT, 'hosts', '--', f'--do={do}', f'--folder={here}'],
        cwd=here,
        env=make_env(here),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
      )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self.process.poll() is None:
      self.process.kill()
    self.process.wait()

  def wait_for_files(self, *names):
    deadline = time.monotonic() + 30
    paths = [self.here / name for name in names]
    while not all(path.exists() for path in paths):
      assert self.process.poll() is None, (self.here / 'stderr').read_text()
      assert time.monotonic() < deadline, f'no {names}'
      time.sleep(0.01)
    return paths

  def wait_for(self, *names):
    """Waits for touched files; returns the tasks that have touched them."""
    paths = self.wait_for_files(*names)
    return [psutil.Process(int(path.read_text())) for path in paths]


def assert_gone(processes, timeout_secs):
  def has_ended(process):
    try:
      return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
      return True

  deadline = time.monotonic() + timeout_secs
  while alive := [p for p in processes if not has_ended(p)]:
    assert time.monotonic() < deadline, alive
    time.sleep(0.01)


def test_dry_run_prints_a_command_a_task(here):
  done = run(here, '--dry_run', 'hosts', '--', '--name=it\'s $a "b"')
  assert done.returncode == 0, done.stderr
  lines = [shlex.split(line) for line in done.stdout.splitlines()]
  assert [line[:2] for line in lines] == [
    ['ssh', '127.0.0.1'],
    ['ssh', '127.0.0.1'],
    ['ssh', 'me@127.0.0.1'],
  ]
  assert [shlex.split(line[2]) for line in lines] == [
    [
      *('cd', f'{here}/a dir', '&&', f'{here}/my python'),
      *('-m', 'distmnist.train', f'--job_name={job}', f'--task_index={index}'),
      '--ps_hosts=127.0.0.1:2222',
      '--worker_hosts=127.0.0.1:2300,127.0.0.1:2301',
      '--name=it\'s $a "b"',
    ]
    for job, index in (('ps', 0), ('worker', 0), ('worker', 1))
  ]
  assert not (here / 'logins').exists()


def test_a_clean_run_ends_with_0_and_shows_the_chief_alone(here):
  done = run(here, 'hosts', '--', '--do=all:count=2')
  assert done.returncode == 0, done.stderr
  assert done.stdout == 'worker0 line 0\nworker0 line 1\n'
  assert done.stderr.count('\n') == 1
  assert sorted((here / 'logins').read_text().split()) == [
    '127.0.0.1',
    '127.0.0.1',
    'me@127.0.0.1',
  ]
  log = (here / 'logs' / 'worker_1.log').read_text()
  assert log == 'worker1 line 0\nworker1 line 1\n'


def test_flags_arrive_as_they_were_given(here):
  flags = ["--a=it's", '--b="$HOME" `id`', '--c=two\nlines', '--d=*', '--e=\\']
  done = run(here, 'hosts', '--', '--do=worker0:facts', *flags)
  assert done.returncode == 0, done.stderr
  assert repr(flags)[1:-1] in done.stdout


def test_one_worker_without_a_ps_gets_no_cluster_flags(here):
  (here / 'hosts').write_text('worker 127.0.0.1\n')
  done = run(here, '--dry_run', 'hosts', '--')
  assert done.stdout.count('\n') == 1
  assert '_hosts' not in done.stdout


def test_the_first_failure_gives_the_code_and_ends_the_others(here):
  with Running(
    here,
    'worker0:leave;ps0:leave;'
    'worker1:touch=on,wait=worker0.ready,wait=ps0.ready,exit=3',
  ) as running:
    tasks = running.wait_for('worker0.ready', 'ps0.ready', 'worker1.on')
    assert running.process.wait(20) == 3
    assert_gone(tasks, 1)
  last = (here / 'stderr').read_text().splitlines()[-1]
  assert last == (
    'run_ssh.sh: error: worker 1 (127.0.0.1:2301) failed first: exit code 3;'
    f' log: {here}/logs/worker_1.log'
  )


@pytest.mark.parametrize('signum', [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_passed_on_to_the_workers_then_to_the_ps(here, signum):
  with Running(here, 'all:leave') as running:
    tasks = running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    os.kill(running.process.pid, signum)
    assert running.process.wait(10) == 128 + signum
    assert_gone(tasks, 1)
  left = {
    name: (here / f'{name}.left').stat().st_mtime_ns
    for name in ('worker0', 'worker1', 'ps0')
  }
  assert left['ps0'] == max(left.values())
  log = (here / 'logs' / 'worker_1.log').read_text()
  assert log == f'leaving on {signal.SIGTERM.value}\n'


@pytest.mark.slow
def test_a_second_signal_leaves_at_once_and_the_hosts_kill(here):
  do = (
    'worker0:leave;worker1:deaf,touch=deaf,forever;ps:deaf,touch=deaf,forever'
  )
  with Running(here, do) as running:
    tasks = running.wait_for('worker0.ready', 'worker1.deaf', 'ps0.deaf')
    os.kill(running.process.pid, signal.SIGINT)
    running.wait_for_files('worker0.left')
    os.kill(running.process.pid, signal.SIGINT)
    assert running.process.wait(3) == 130
    assert_gone(tasks, 15)


def test_a_script_killed_by_9_leaves_no_task(here):
  with Running(here, 'all:leave') as running:
    tasks = running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    running.process.kill()
    assert_gone(tasks, 5)


@pytest.mark.slow
def test_who_ignores_the_signal_is_killed(here):
  with Running(here, 'all:deaf,touch=deaf,forever') as running:
    tasks = running.wait_for('worker0.deaf', 'worker1.deaf', 'ps0.deaf')
    os.kill(running.process.pid, signal.SIGTERM)
    assert running.process.wait(30) == 143
    assert_gone(tasks, 1)


@pytest.mark.parametrize(
  ('hosts', 'message'),
  [
    ('ps a\nworkers b', "hosts line 2: expected 'ps HOST[:PORT]' or"),
    ('worker', 'hosts line 1: expected'),
    ('worker a b', 'hosts line 1: expected'),
    ('worker a:0', "'0' is no port"),
    ('worker a:65536', "'65536' is no port"),
    ('worker a:x', "'x' is no port"),
    ('worker -oProxyCommand=id', 'is no host'),
    ('worker a\n\nps b@a:2222', 'line 3: a:2222 is taken by line 1'),
    ('ps a', 'hosts names no worker'),
    ('', 'hosts names no worker'),
  ],
)
def test_a_malformed_hosts_file_is_one_line_and_2(here, hosts, message):
  (here / 'hosts').write_text(hosts)
  done = run(here, 'hosts', '--')
  assert done.returncode == 2
  assert message in done.stderr
  assert done.stderr.count('\n') == 1


@pytest.mark.parametrize(
  'words',
  [
    (),
    ('hosts',),
    ('hosts', '--steps=1'),
    ('nowhere', '--'),
    ('hosts', '--', '--task_index=1'),
  ],
)
def test_a_wrong_command_line_is_one_line_and_2(here, words):
  done = run(here, *words)
  assert done.returncode == 2
  assert done.stderr.startswith('run_ssh.sh: error: ')
  assert done.stderr.count('\n') == 1
