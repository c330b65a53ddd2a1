"""What every host of tasks keeps, on each: launching/host.py is the contract.

The tasks are support/fake_train.py, two workers of one launch.
"""

import contextlib
import json
import os
import signal
import sys
import time

import psutil
import pytest

from distmnist.cluster.identity import NUM_EVALUATORS, NUM_PS
from distmnist.common.names import AGENT, ATTEMPT
from distmnist.launching import host as host_lib
from distmnist.launching import jobs
from distmnist.launching.forking import fork_client
from distmnist.launching.ray import ray_cluster, ray_host
from distmnist.launching.scheduler import job_host
from distmnist.launching.slurm import srun_host
from distmnist.launching.ssh import ssh_host
from tests.support import background, fake_srun, ray_nodes
from tests.support import sshd as sshd_lib
from tests.support.paths import PYTHONPATH

NAMES = 'worker 0', 'worker 1'
GRACE_SECS = 5.0
DEADLINE_SECS = 90


class Room:
  """A host of one kind, and the two tasks that it runs.

  Attributes:
    host: the Host, open.
    ended: dict, name -> code of those that have ended.
    begun: dict, name -> pid on this machine.
  """

  def __init__(self, folder, host):
    self.folder = folder
    self.host = host
    self.ended, self.begun = {}, {}

  def flags(self, index, do):
    return [
      f'--do={do}',
      f'--folder={self.folder}',
      '--job_name=worker',
      f'--task_index={index}',
    ]

  def start(self, do, attempt=1, names=NAMES):
    env = {'COLOUR': 'red'} | ({ATTEMPT: str(attempt)} if attempt > 1 else {})
    for name in names:
      argv = ['python', '-m', 'fake_train', *self.flags(int(name[-1]), do)]
      self.ended.pop(name, None)
      self.log(name).touch()
      log = str(self.log(name))
      self.host.start(host_lib.Request(name, argv, env, log))

  def log(self, name):
    return self.folder / (name.replace(' ', '_') + '.log')

  def lines(self, name):
    """What a task has written; a job may have said whom it waits for."""
    lines = self.log(name).read_text().splitlines()
    return [x for x in lines if not x.startswith('waiting for the jobs of ')]

  def poll(self, is_so):
    deadline = time.monotonic() + DEADLINE_SECS
    while not is_so():
      assert time.monotonic() < deadline, self.log(NAMES[0]).read_text()
      for name, code in self.host.poll(0.1):
        assert name not in self.ended
        self.ended[name] = code
      self.begun |= self.host.begun
      self.host.begun.clear()

  def wait_for_ends(self, *names):
    self.poll(lambda: all(name in self.ended for name in names or NAMES))

  def wait_for(self, *files):
    """Returns the processes that have touched these, once they have."""
    paths = [self.folder / name for name in files]
    self.poll(lambda: all(path.exists() for path in paths))
    return [psutil.Process(int(path.read_text())) for path in paths]


def make_forks(folder, do, request):
  return fork_client.make_host(
    'fake_train', str(folder), {**os.environ, 'PYTHONPATH': PYTHONPATH}
  )


def make_ssh(folder, do, request):
  if reason := sshd_lib.why_not():
    pytest.skip(reason)
  return ssh_host.SshHost(
    {name: (f'127.0.0.{1 + i}', None) for i, name in enumerate(NAMES)},
    f'PYTHONPATH={PYTHONPATH} exec {sys.executable} -m {AGENT}',
    ['-F', f'{request.getfixturevalue("sshd")}/config'],
    sys.executable,
    GRACE_SECS,
  )


def make_jobs(folder, do, request):
  request.getfixturevalue('monkeypatch').setenv('PYTHONPATH', PYTHONPATH)
  (folder / 'jobs').mkdir()
  flags = [f'--do={do}', f'--folder={folder}']
  (folder / 'jobs' / 'request.json').write_text(
    json.dumps(
      {
        **{'cwd': str(folder), 'module': 'fake_train', 'num_ps': 0},
        **{'num_worker': len(NAMES), 'train_flags': flags},
        **{'grace_secs': GRACE_SECS, 'env': {'COLOUR': 'red'}},
      }
    )
  )
  return job_host.JobHost(
    str(folder / 'jobs'),
    dict.fromkeys(NAMES, 'setsid sh {script} </dev/null >{log} 2>&1 &'),
    sys.executable,
    GRACE_SECS + 3,
  )


def make_srun(folder, do, request):
  """Of scripts in place of Slurm; on a real one: slurm/srun_host_test.py."""
  (folder / 'bin').mkdir()
  env = {
    **os.environ,
    'PATH': fake_srun.make(folder / 'bin'),
    'PYTHONPATH': PYTHONPATH,
    'SLURM_JOB_ID': '7',
    NUM_PS: '0',
    NUM_EVALUATORS: '0',
  }
  request.getfixturevalue('monkeypatch').setenv('PATH', env['PATH'])
  return srun_host.SrunHost(str(folder), len(NAMES), env, GRACE_SECS)


def make_ray(folder, do, request):
  request.getfixturevalue('ray')
  return ray_host.RayHost(
    [[jobs.Task('worker', i, 'node', None, ()) for i in range(len(NAMES))]],
    dict.fromkeys(NAMES, {'CPU': 1}),
    str(folder),
    {'PYTHONPATH': PYTHONPATH},
    GRACE_SECS,
    DEADLINE_SECS,
  )


@pytest.fixture(scope='module')
def ray(tmp_path_factory):
  """Connects this process to a Ray of two nodes."""
  pytest.importorskip('ray', reason='no ray: pip install .[ray]')
  folder = tmp_path_factory.mktemp('ray')
  with (
    ray_nodes.Nodes(os.environ, folder / 'nodes.log') as nodes,
    ray_cluster.opened(nodes.address, str(folder / 'ray.log')),
  ):
    yield


@pytest.fixture(scope='module')
def sshd(tmp_path_factory):
  with sshd_lib.start(tmp_path_factory.mktemp('sshd')) as folder:
    yield folder


@pytest.fixture(
  params=[
    make_forks,
    pytest.param(make_ssh, marks=pytest.mark.slow),
    pytest.param(make_jobs, marks=pytest.mark.slow),
    make_srun,
    pytest.param(make_ray, marks=pytest.mark.slow),
  ],
  ids=['forks', 'ssh', 'jobs', 'srun', 'ray'],
)
def enter(request, tmp_path, heed_signals):
  """Returns enter(do), which opens a host whose tasks will do this."""
  with contextlib.ExitStack() as stack:

    def open_host(do):
      host = request.param(tmp_path, do, request)
      return Room(tmp_path, stack.enter_context(host))

    yield open_host


@pytest.mark.slow
def test_tasks_end_with_their_codes_and_their_lines_are_in_order(enter):
  do = 'all:env=COLOUR,count=300;worker1:exit=3'
  room = enter(do)
  room.start(do)
  room.wait_for_ends()
  assert room.ended == {'worker 0': 0, 'worker 1': 3}
  assert set(room.begun) == set(NAMES)
  for i, name in enumerate(NAMES):
    assert room.lines(name) == [
      "COLOUR='red'",
      *(f'worker{i} line {number}' for number in range(300)),
    ]


@pytest.mark.slow
def test_a_task_that_a_signal_kills_is_started_again(enter):
  do = 'all@1:kill=9;all@2:env=DISTMNIST_ATTEMPT'
  room = enter(do)
  room.start(do)
  room.wait_for_ends()
  assert room.ended == dict.fromkeys(NAMES, -signal.SIGKILL)
  room.start(do, attempt=2)
  room.wait_for_ends()
  assert room.ended == dict.fromkeys(NAMES, 0)
  for name in NAMES:
    assert room.lines(name) == ["DISTMNIST_ATTEMPT='2'"]


@pytest.mark.slow
def test_a_signal_reaches_the_tasks_it_is_for(enter):
  do = 'worker0:leave;worker1:leave'
  room = enter(do)
  room.start(do)
  room.wait_for('worker0.ready', 'worker1.ready')
  room.host.signal(['worker 1'], signal.SIGTERM)
  room.wait_for_ends('worker 1')
  if not room.host.ends_as_one:
    assert room.ended == {'worker 1': 128 + signal.SIGTERM}
    room.host.signal(NAMES, signal.SIGTERM)
  room.wait_for_ends()
  assert room.ended['worker 0'] == 128 + signal.SIGTERM
  assert room.lines('worker 1') == ['leaving on 15']


@pytest.mark.slow
def test_a_task_that_is_suspended_or_deaf_is_killed(enter):
  do = 'worker0:deaf,touch=on,forever;worker1:deaf,child,touch=on,forever'
  room = enter(do)
  room.start(do)
  tasks = room.wait_for('worker0.on', 'worker1.on', 'worker1.child')
  tasks[0].suspend()
  room.host.signal(NAMES, signal.SIGTERM)
  room.host.signal(NAMES, signal.SIGKILL)
  room.wait_for_ends()
  assert room.ended == dict.fromkeys(NAMES, -signal.SIGKILL)
  background.assert_gone(tasks)


@pytest.mark.slow
def test_who_leaves_a_host_leaves_nothing(enter):
  do = 'worker0:leave;worker1:child,leave'
  room = enter(do)
  room.start(do)
  tasks = room.wait_for('worker0.ready', 'worker1.ready', 'worker1.child')
  room.host.__exit__(None, None, None)
  background.assert_gone(tasks)
  for i in range(2):
    # Slurm kills a step whose srun ends.
    is_told = not room.host.ends_as_one
    assert (room.folder / f'worker{i}.left').exists() == is_told
