"""The launcher over a real sshd; and over a stand-in where there is none.

The tasks are support/fake_train.py; one test runs the real one.
"""

import functools
import os
import re
import shlex
import shutil
import signal
import sys
import time

import psutil
import pytest

import distmnist
from distmnist.common import ports, signals
from distmnist.launchers import ssh
from tests.support import background
from tests.support import sshd as sshd_lib
from tests.support.background import (
  DEADLINE_SECS,
  PIDS,
  assert_gone,
  assert_ps_left_last,
  last_line,
)
from tests.support.paths import PYTHONPATH, REPO

pytestmark = pytest.mark.usefixtures('heed_signals')
HOSTS = '127.0.0.1,127.0.0.2'
LAUNCH = '-m', 'distmnist.launch'
SOON = '--stop_grace_secs=2'
# Waits longer for a worker to leave than any test does.
PATIENT_LAUNCH = (
  '-c',
  'from distmnist import launch;'
  ' from distmnist.common import stop_grace;'
  ' stop_grace.for_worker = lambda _: 600; launch.run()',
)

# Runs the command on this machine, and passes its stdin on.
FAKE_SSH = """#!/bin/bash
while [[ $1 == -?* && $1 != -- ]]; do
  [[ $1 != -[oF] ]] || shift
  shift
done
bash -c "$3" <&0 &
wait $!
"""
PYTHON = f"""#!/bin/sh
PYTHONPATH={PYTHONPATH} exec {sys.executable} "$@"
"""


@pytest.fixture(scope='module')
def sshd(tmp_path_factory):
  if reason := sshd_lib.why_not():
    pytest.skip(reason)
  with sshd_lib.start(tmp_path_factory.mktemp('sshd')) as folder:
    yield folder


@pytest.fixture
def stand_in(tmp_path):
  return Here(tmp_path)


@pytest.fixture
def here(request, tmp_path):
  """A Here over a real sshd, or over the stand-in where there is none."""
  has_none = sshd_lib.why_not()
  return Here(tmp_path, None if has_none else request.getfixturevalue('sshd'))


@pytest.fixture
def real(tmp_path, sshd):
  return Here(tmp_path, sshd)


class Here(background.Here):
  """A folder with what a launch needs, and launches from it."""

  def __init__(self, folder, sshd=None):
    self.folder = folder
    self.sshd = sshd
    (folder / 'a dir').mkdir()
    programs = {'my python': PYTHON}
    if not sshd:
      (folder / 'bin').mkdir()
      programs['bin/ssh'] = FAKE_SSH
    for name, text in programs.items():
      (folder / name).write_text(text)
      (folder / name).chmod(0o755)

  def command(
    self, *words, program=LAUNCH, hosts=HOSTS, python='../my python', **flags
  ):
    settings = {**self.settings, 'ssh_python': python, 'module': 'fake_train'}
    flags = {**settings, 'hosts': hosts, **flags}
    return [
      *(sys.executable, *program, f'--logs_dir={self.folder}/logs'),
      *(f'--{name}={value}' for name, value in flags.items()),
      *words,
    ]

  @property
  def settings(self):
    """The flags, {name: value}, that say how to get there."""
    return {
      'launcher': 'ssh',
      'ssh_dir': f'{self.folder}/a dir',
      'ssh_python': '../my python',
      'ssh_options': f'-F {self.sshd}/config' if self.sshd else '-F none',
    }

  @property
  def env(self):
    path = f'{self.folder}/bin:{os.environ["PATH"]}'
    return {**os.environ, 'PYTHONPATH': str(REPO), 'PATH': path}

  def run(self, *words, **flags):
    done = super().run(*words, **flags)
    done.stderr = PIDS.sub('', done.stderr)
    return done


@pytest.mark.slow
def test_a_clean_run_shows_the_chief_alone_and_flags_arrive_as_given(here):
  flags = ["--a=it's", '--b="$HOME" `id`', '--c=two\nlines', '--d=*', '--e=\\']
  done = here.run(
    *('--', '--do=worker0:facts;all:count=2', *flags),
    hosts='127.0.0.1,127.0.0.2:2300',
  )
  assert done.returncode == 0, done.stderr
  assert repr(flags)[1:-1] in done.stdout
  assert done.stdout.startswith('sid True\nstdin /dev/null\n')
  assert done.stdout.endswith('\nworker0 line 0\nworker0 line 1\n')
  assert done.stderr == (
    'distmnist.launch: anyone who reaches the ports of 127.0.0.1 (2222, 2223)'
    ' and 127.0.0.2 (2300) can run programs there as you: see'
    ' docs/cluster.md for how to shut them\n'
    'distmnist.launch: 1 ps and 2 workers on 2 hosts, logs in'
    f' {here.folder}/logs\n'
  )
  assert sorted(os.listdir(here.folder / 'logs')) == [
    *('ps_0.log', 'worker_0.log', 'worker_1.log')
  ]
  assert here.log('worker_1') == 'worker1 line 0\nworker1 line 1\n'


@pytest.mark.slow
def test_the_gpus_of_a_host_are_shared_out_among_its_workers(here):
  done = here.do(
    'all:env=CUDA_VISIBLE_DEVICES', ssh_gpus=2, num_workers=4, show_logs='all'
  )
  assert sorted(done.stdout.splitlines()) == [
    "[ps 0] CUDA_VISIBLE_DEVICES=''",
    "[worker 0] CUDA_VISIBLE_DEVICES='0'",
    "[worker 1] CUDA_VISIBLE_DEVICES='0'",
    "[worker 2] CUDA_VISIBLE_DEVICES='1'",
    "[worker 3] CUDA_VISIBLE_DEVICES='1'",
  ]


@pytest.mark.slow
def test_the_first_failure_gives_the_code_and_ends_the_others(here):
  with here.start(
    'worker0:leave;ps0:leave;'
    'worker1:touch=on,wait=worker0.ready,wait=ps0.ready,wait=go,exit=3'
  ) as running:
    tasks = running.wait_for('worker0.ready', 'ps0.ready', 'worker1.on')
    everything = running.all_processes(tasks)
    (here.folder / 'go').touch()
    assert running.process.wait(DEADLINE_SECS) == 3
    assert_gone(everything)
  assert last_line(running.stderr.read_text()) == (
    'distmnist.launch: error: worker 1 (127.0.0.1:2224) failed first: exit'
    f' code 3; log: {here.folder}/logs/worker_1.log'
  )
  for name in ('worker_0', 'ps_0'):
    assert here.log(name) == f'leaving on {signal.SIGTERM.value}\n'


@pytest.mark.slow
def test_a_signal_is_passed_on_to_the_workers_then_to_the_ps(here):
  with here.start('all:leave') as running:
    tasks = running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    everything = running.all_processes(tasks)
    os.kill(running.process.pid, signal.SIGHUP)
    assert running.process.wait(DEADLINE_SECS) == 128 + signal.SIGHUP
    assert_gone(everything)
  assert_ps_left_last(here.folder)
  assert here.log('worker_1') == f'leaving on {signal.SIGTERM.value}\n'


@pytest.mark.slow
def test_a_second_signal_leaves_at_once_and_the_hosts_kill(here):
  do = (
    'worker0:leave;worker1:deaf,touch=deaf,forever;ps:deaf,touch=deaf,forever'
  )
  with here.start(do, SOON, program=PATIENT_LAUNCH) as running:
    tasks = running.wait_for('worker0.ready', 'worker1.deaf', 'ps0.deaf')
    everything = running.all_processes(tasks)
    os.kill(running.process.pid, signal.SIGINT)
    # Only then does the launcher know that the chief has saved.
    assert_gone(find_ssh(everything, '127.0.0.2'))
    time.sleep(signals.ONE_KEY_SECS)  # Sooner, it would be the same Ctrl-C.
    os.kill(running.process.pid, signal.SIGINT)
    assert running.process.wait(DEADLINE_SECS) == 130
    assert_gone(everything)


@pytest.mark.slow
def test_a_launcher_killed_by_9_leaves_nothing_and_the_tasks_save(here):
  with here.start('all:leave') as running:
    tasks = running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    everything = running.all_processes(tasks)
    running.process.kill()
    assert_gone(everything)
  for name in ('worker0', 'worker1', 'ps0'):
    assert (here.folder / f'{name}.left').exists()


@pytest.mark.slow
def test_all_that_is_here_killed_by_9_leaves_nothing_there(here):
  with here.start('all:leave') as running:
    tasks = running.wait_for('worker0.ready', 'worker1.ready', 'ps0.ready')
    everything = running.all_processes(tasks)
    ours = [p for p in everything if is_ours(p)]
    assert len(ours) == 3  # an ssh a task
    for process in (psutil.Process(running.process.pid), *ours):
      process.kill()
    assert_gone(everything)
  for name in ('worker0', 'worker1', 'ps0'):
    assert (here.folder / f'{name}.left').exists()


def find_ssh(processes, host):
  """Those of ssh that follow a task on this host."""
  return [p for p in processes if is_ours(p) and p.cmdline()[-2] == host]


def is_ours(process):
  """Whether it runs on this side, even where both are one machine."""
  return process.name() == 'ssh'


@pytest.mark.slow
def test_what_a_task_has_started_ends_with_it(here):
  do = 'worker0:child,touch=on,wait=go;worker1:leave'
  with here.start(do) as running:
    running.wait_for('worker0.on', 'worker1.ready')
    (child,) = running.wait_for('worker0.child')
    (here.folder / 'go').touch()
    assert_gone([child])
    os.kill(running.process.pid, signal.SIGTERM)
    assert running.process.wait(DEADLINE_SECS) == 143


@pytest.mark.slow
def test_a_remote_task_that_is_killed_is_started_again(here):
  done = here.do(
    'worker1:env=DISTMNIST_ATTEMPT;worker1@1:kill=9;worker1@2:touch=again;'
    'worker0:wait=worker1.again;ps0:wait=worker1.again',
    max_restarts=3,
  )
  assert done.returncode == 0, done.stderr
  assert done.stderr.splitlines()[2:] == [
    'distmnist.launch: worker 1 (127.0.0.1:2224) killed by SIGKILL: restart 1'
    ' of 3 in 0.1 s'
  ]
  assert here.log('worker_1') == (
    "DISTMNIST_ATTEMPT=None\n--- restart 1 of 3 ---\nDISTMNIST_ATTEMPT='2'\n"
  )


@pytest.mark.slow
def test_a_connection_that_is_lost_is_made_again(here):
  port = pick_port()
  with here.start(
    'worker1@1:serve,leave;worker1@2:serve,touch=two;'
    'worker0:wait=worker1.two;ps0:wait=worker1.two',
    hosts=f'127.0.0.1,127.0.0.1:2300,127.0.0.2:{port}',
    max_restarts=1,
  ) as running:
    tasks = running.wait_for('worker1.ready')
    [ssh] = find_ssh(running.all_processes(tasks), '127.0.0.2')
    ssh.kill()
    assert running.process.wait(DEADLINE_SECS) == 0, running.stderr.read_text()
    assert_gone(tasks)
  said = last_line(PIDS.sub('', running.stderr.read_text()))
  assert 'worker 1 (' in said
  assert 'killed by SIGKILL: restart 1 of 1 in 0.1 s' in said
  log = here.log('worker_1')
  assert 'killed by SIGKILL\n--- restart 1 of 1 ---\n' in log
  assert log.endswith(f'serving on {port}\n')


def pick_hosts(number):
  """Returns --hosts of two machines in turn, each with a free port."""
  return ','.join(f'127.0.0.{1 + i % 2}:{pick_port()}' for i in range(number))


def pick_port():
  with ports.hold_ports(1)[0] as held:
    return held.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('python', 'words'),
  [
    ('../no python', 'no python'),
    ('/bin/false', 'ended with exit code 1 before the task'),
  ],
)
def test_a_host_without_our_python_is_named(stand_in, python, words):
  done = stand_in.do('all:leave', python=python, max_restarts=5)
  assert done.returncode == 1
  said = last_line(done.stderr)
  assert re.search(
    r'error: .* failed first: ssh to 127.0.0.[12]: .*; log', said
  )
  assert words in said


@pytest.mark.slow
def test_a_host_without_our_folder_is_named(here):
  done = here.do('all:leave', ssh_dir='/no/where')
  assert done.returncode == 1
  assert re.search(
    r'failed first: ssh to 127.0.0.[12]: .*/no/where.*; log',
    last_line(done.stderr),
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('flags', 'words'),
  [
    (
      {'hosts': f'127.0.0.1,{sshd_lib.SILENT_HOST}'},
      r'error: worker 0 \(127.0.0.3:2223\) failed first: ssh to 127.0.0.3:'
      r' connect to host 127.0.0.3 port \d+: Connection refused; log: ',
    ),
    (
      {'hosts': 'me@no-such-host.invalid'},
      'ssh to me@no-such-host.invalid: Could not resolve hostname',
    ),
    (
      {'hosts': 'me@no-a.invalid,no-b.invalid'},
      'Could not resolve hostname.* no-[ab].invalid; log: ',
    ),
    (
      {'ssh_options': '-i {sshd}/stranger -F {sshd}/bare'},
      r'failed first: ssh to 127.0.0.[12]: Permission denied \(publickey\);',
    ),
    (
      {'ssh_options': '-F {sshd}/config -o UserKnownHostsFile=/dev/null'},
      'failed first: ssh to 127.0.0.[12]: Host key verification failed; '
      r'.* 127.0.0.[12]; log',
    ),
  ],
)
def test_a_host_that_lets_nobody_in_is_named_in_the_words_of_ssh(
  real, flags, words
):
  config = (real.sshd / 'config').read_text()
  (real.sshd / 'bare').write_text(re.sub('IdentityFile .*', '', config))
  flags = {n: value.format(sshd=real.sshd) for n, value in flags.items()}
  done = real.do('all:leave', max_restarts=5, **flags)
  assert done.returncode == 1
  assert re.search(words, last_line(done.stderr))


@pytest.mark.daily
@pytest.mark.slow
def test_a_host_that_turns_many_away_gets_them_one_after_the_other(
  tmp_path, tmp_path_factory
):
  if reason := sshd_lib.why_not():
    pytest.skip(reason)
  folder = tmp_path_factory.mktemp('sshd')
  with sshd_lib.start(folder, max_startups=3) as strict:
    real = Here(tmp_path, strict)
    done = real.do('all:count=1', hosts='127.0.0.1', num_workers=12)
  assert done.returncode == 0, done.stderr
  logs = [real.log(f'worker_{i}') for i in range(12)]
  assert [log.splitlines()[-1] for log in logs] == [
    f'worker{i} line 0' for i in range(12)
  ]
  assert any('ssh to 127.0.0.1: ' in log for log in logs)


@pytest.mark.daily
@pytest.mark.slow
def test_a_call_from_python_sends_its_problem_along_and_has_the_report(
  real, monkeypatch
):
  monkeypatch.setenv('PYTHONPATH', real.env['PYTHONPATH'])
  monkeypatch.chdir(real.folder)
  shutil.copy(REPO / 'examples' / 'regression.py', 'mine.py')
  # Another file of this name is there.
  (real.folder / 'a dir' / 'mine.py').write_text('nothing')
  logdir, lines = real.folder / 'run', []
  flags = {
    'hosts': pick_hosts(2),
    'on_line': lines.append,
    'problem': 'mine.py',
  }
  report = distmnist.run(
    num_ps=1,
    num_workers=1,
    units=4,
    train_steps=30,
    logdir=str(logdir),
    **(real.settings | flags),
  )
  assert report.global_step == 30
  assert report.logdir == str(logdir)
  said = '\n'.join(lines)
  assert re.search(r'^test rmse +0\.\d{4}$', said, re.M)
  assert len(re.findall(r'^distmnist\.launch: ', PIDS.sub('', said), re.M)) == 2
  assert (logdir / 'problem.py').read_text() == (
    (real.folder / 'mine.py').read_text()
  )
  with pytest.raises(distmnist.Error, match='--learning_rate=-1'):
    distmnist.run(
      launcher='ssh',
      logdir=f'{real.folder}/other',
      learning_rate=-1,
      **flags,
    )


@pytest.fixture
def launch(launch_here, tmp_path):
  """Returns launch(words) over ssh, with files in `tmp_path` alone."""
  return functools.partial(
    launch_here,
    *('--launcher=ssh', '--module=fake_train', f'--logs_dir={tmp_path}/logs'),
    *(f'--ssh_dir={tmp_path}/a dir', '--ssh_python=../my python'),
  )


def test_a_machine_without_ssh_is_told_so(launch, tmp_path, monkeypatch):
  monkeypatch.setenv('PATH', str(tmp_path))
  code, out, err = launch(f'--hosts={HOSTS}', '--')
  assert (code, out) == (1, '')
  (line,) = err.splitlines()
  assert 'ssh' in line
  assert os.listdir(tmp_path) == []


def test_dry_run_prints_a_command_a_task(launch, tmp_path):
  code, out, err = launch(
    *('--hosts=127.0.0.1,me@127.0.0.2:2300', '--ssh_options=-p 22'),
    *('--dry_run', '--', '--resume=it\'s $a "b"'),
  )
  assert code == 0, err
  lines = [shlex.split(line) for line in out.splitlines()]
  assert [line[:4] for line in lines] == [
    ['ssh', '-p', '22', '127.0.0.1'],
    ['ssh', '-p', '22', 'me@127.0.0.2'],
    ['ssh', '-p', '22', '127.0.0.1'],
  ]
  assert [shlex.split(line[4]) for line in lines] == [
    [
      *('cd', f'{tmp_path}/a dir', '&&', '../my python'),
      *('-m', 'fake_train', f'--job_name={job}', f'--task_index={index}'),
      '--ps_hosts=127.0.0.1:2222',
      '--worker_hosts=127.0.0.2:2300,127.0.0.1:2223',
      '--resume=it\'s $a "b"',
    ]
    for job, index in (('ps', 0), ('worker', 0), ('worker', 1))
  ]
  assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
  ('path', 'quoted'),
  [
    ('/a/b', '/a/b'),
    ('/a dir', "'/a dir'"),
    ('~/a dir', "~/'a dir'"),
    ('~me/a', '~me/a'),
    ('~', '~'),
    ('~$x/a', "'~$x/a'"),
  ],
)
def test_a_home_folder_stays_one(path, quoted):
  assert ssh.quote(path) == quoted
