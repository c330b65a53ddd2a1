"""The host, on scripts in place of Slurm and on a real one."""

import os
import re
import signal
import subprocess
import time

import psutil
import pytest

from distmnist.common import cli
from distmnist.common.names import ATTEMPT
from distmnist.launching import host as host_lib
from distmnist.launching.slurm import srun_host
from tests.support import background, fake_srun, programs, slurm_cluster

pytestmark = pytest.mark.usefixtures('heed_signals')
DEADLINE_SECS = 60
# Says that it runs, and leaves when it is told to.
LEAVES = (
  'import os, signal, sys, threading\n'
  'told = threading.Event()\n'
  'for n in (signal.SIGTERM, signal.SIGUSR1):\n'
  '  signal.signal(n, lambda n, _: sys.exit(128 + n))\n'
  'open(sys.argv[1], "w").write(str(os.getpid()))\n'
  'told.wait(60)\n'
)


@pytest.fixture(scope='module')
def allocation(tmp_path_factory):
  """The variables of a job of three tasks of a real Slurm."""
  if reason := slurm_cluster.why_not():
    pytest.skip(reason)
  with slurm_cluster.start(tmp_path_factory.mktemp('slurm')) as config:
    env = {**os.environ, 'SLURM_CONF': str(config)}
    done = subprocess.run(
      ['salloc', '--no-shell', '--ntasks=3'],
      env=env,
      capture_output=True,
      text=True,
      timeout=DEADLINE_SECS,
    )
    number = re.search(r'job allocation (\d+)', done.stderr)[1]
    yield {**env, 'SLURM_JOB_ID': number, 'SLURM_JOBID': number}
    subprocess.run(['scancel', number], env=env, timeout=DEADLINE_SECS)


@pytest.fixture
def env(tmp_path):
  """The variables of a job of what stands in for Slurm."""
  (tmp_path / 'bin').mkdir()
  path = fake_srun.make(tmp_path / 'bin')
  return {**os.environ, 'PATH': path, 'SLURM_JOB_ID': '7'}


@pytest.fixture(
  params=['env', pytest.param('allocation', marks=pytest.mark.slow)]
)
def room(request, tmp_path):
  """A Room with the host that Slurm, or what stands in for it, makes."""
  with Room(tmp_path, request.getfixturevalue(request.param)) as room:
    yield room


class Room:
  """A folder, and a host that runs tasks there.

  Attributes:
    ended: dict, name -> code of each task whose end was reported.
    told: int, how many signals there were when the first end was reported.
  """

  def __init__(self, folder, env, num_tasks=3, **how):
    self.folder, self.env = folder, env
    self.host = srun_host.SrunHost(str(folder), num_tasks, env, **how)
    self.ended = {}
    self.told = None

  def __enter__(self):
    self.host.__enter__()
    return self

  def __exit__(self, *error):
    self.host.__exit__(*error)

  def start(self, **codes):
    """Requests tasks, name -> what Python runs."""
    for name, code in codes.items():
      argv = ['python', '-c', code, str(self.folder / f'{name}.ready')]
      env, log = {'COLOUR': f"it's {name}"}, str(self.folder / f'{name}.log')
      self.host.start(host_lib.Request(name, argv, env, log))

  def turn_until(self, is_so):
    deadline = time.monotonic() + DEADLINE_SECS
    while not is_so():
      assert time.monotonic() < deadline, self.ended
      for name, code in self.host.poll(0.1):
        self.told = len(self.host.signals) if not self.ended else self.told
        assert name not in self.ended
        self.ended[name] = code

  def wait_for(self, *names):
    """Returns the tasks that run once they have said so."""
    paths = [self.folder / f'{name}.ready' for name in names]
    self.turn_until(lambda: all(p.exists() and p.read_text() for p in paths))
    return [psutil.Process(int(path.read_text())) for path in paths]

  def end(self, *names):
    """Returns the codes of tasks, a list, once all have ended."""
    self.turn_until(lambda: all(name in self.ended for name in names))
    return [self.ended[name] for name in names]

  def log(self, name):
    return (self.folder / f'{name}.log').read_text()


@pytest.mark.slow
def test_each_task_ends_as_it_does(room):
  room.start(
    a='import os; print(os.environ["COLOUR"], os.readlink("/proc/self/fd/0"))',
    b='import sys; sys.exit(3)',
    c='import os; os.kill(os.getpid(), 11)',
  )
  assert room.end('a', 'b', 'c') == [0, 3, -11]
  assert room.log('a') == "it's a /dev/null\n"
  assert room.log('c') == ''
  assert [name for name, _ in room.host.begun] == list(room.host.nodes)
  assert sorted(room.host.nodes) == ['a', 'b', 'c']
  assert room.host.reasons == {}


@pytest.mark.slow
def test_what_has_ended_may_start_again(room):
  room.start(a='print(1)', b='print(1)')
  room.end('a', 'b')
  room.ended.clear()
  room.start(a='print(2)', b='print(2)')
  assert room.end('a', 'b') == [0, 0]
  assert room.log('a') == room.log('b') == '1\n2\n'


@pytest.mark.slow
@pytest.mark.parametrize(
  ('signum', 'code'), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_signal_to_one_reaches_all(room, signum, code):
  room.start(a=LEAVES, b=LEAVES)
  tasks = room.wait_for('a', 'b')
  room.host.signal(['b'], signum)
  assert room.end('a', 'b') == [code, code]
  assert room.host.signals == []
  background.assert_gone(tasks)


@pytest.mark.slow
def test_what_slurm_tells_the_tasks_is_heard_before_they_end(room):
  room.start(a=LEAVES, b=LEAVES)
  room.wait_for('a', 'b')
  tell = ['scancel', '--signal=USR1', room.env['SLURM_JOB_ID']]
  subprocess.run(tell, env=room.env, check=True, timeout=DEADLINE_SECS)
  assert room.end('a', 'b') == [138, 138]
  assert room.host.signals == [signal.SIGUSR1]
  assert room.told == 1


def test_leaving_the_context_ends_all(room):
  room.start(a=LEAVES, b=LEAVES)
  tasks = room.wait_for('a', 'b')
  room.host.__exit__()
  background.assert_gone(tasks)
  assert not list(room.folder.glob('*.tasks'))
  room.host.__enter__()  # For the fixture.


# ---- What a script in place of Slurm shows best ----


@pytest.fixture
def fake(tmp_path, env):
  with Room(tmp_path, env) as room:
    yield room


@pytest.mark.slow
def test_tasks_that_find_a_port_taken_start_again_on_others(fake, caplog):
  """All of them, and nobody hears of it."""
  caplog.set_level('INFO', 'distmnist')
  begin = (
    'import os, sys, threading\n'
    'port = os.environ["DISTMNIST_FIRST_PORT"]\n'
    'print(port, flush=True)\n'
    'if port == "10224": '
  )
  fake.start(a=f'{begin}sys.exit(98)', b=f'{begin}threading.Event().wait(60)')
  assert fake.end('a', 'b') == [0, 0]
  again = srun_host.choose_first_port(7, 3, num_moves=1)
  assert fake.log('a') == f'10224\n{again}\n'
  assert fake.log('b').endswith(f'{again}\n')
  assert caplog.messages == [
    'a found its port taken: all tasks move to other ports'
  ]


@pytest.mark.slow
def test_tasks_that_are_told_to_leave_do_not_move(fake):
  fake.start(a='print(1)')
  fake.host.signal(['a'], signal.SIGTERM)
  assert fake.end('a') == [-15]  # It has not begun.
  fake.ended.clear()
  fake.start(a=LEAVES, b=LEAVES.replace('128 + n', '98'))
  fake.wait_for('a', 'b')
  fake.host.signal(['a', 'b'], signal.SIGTERM)
  assert fake.end('a', 'b') == [143, 98]


@pytest.mark.slow
def test_an_evaluator_that_fails_is_done_until_all_start_again(fake, caplog):
  caplog.set_level('INFO', 'distmnist')
  fake.start(**{'evaluator 0': 'import sys; sys.exit(9)', 'a': 'print(1)'})
  assert fake.end('evaluator 0', 'a') == [0, 0]
  assert caplog.messages == [
    'evaluator 0 failed: exit code 9: the run goes on without it'
  ]


@pytest.mark.slow
def test_a_second_signal_changes_nothing(fake):
  fake.start(a=LEAVES)
  fake.wait_for('a')
  for _ in range(2):
    os.kill(os.getpid(), signal.SIGTERM)
    fake.host.poll(0)
    time.sleep(1.1)  # Sooner, it would be the same stop.
  assert fake.host.signals == [signal.SIGTERM]


@pytest.mark.slow
def test_an_attempt_is_counted_from_before_the_job_came_again(tmp_path, env):
  show = f'import os; print(os.environ.get({ATTEMPT!r}))'
  argv, log = ['python', '-c', show], str(tmp_path / 'a.log')
  for num_earlier, told, said in (
    (0, {}, None),
    (2, {}, 3),
    (2, {ATTEMPT: '2'}, 4),
  ):
    with Room(tmp_path, env, num_earlier=num_earlier) as room:
      room.host.start(host_lib.Request('a', argv, told, log))
      room.end('a')
    assert room.log('a').split()[-1] == str(said)


@pytest.mark.parametrize(
  ('srun', 'code', 'reason'),
  [
    ('exit 5', 5, 'lost, as srun ended with exit code 5'),
    ('exit 137', -9, 'lost, as srun ended with exit code 137'),
    ('kill -KILL $$', 3, 'lost, as srun was killed by SIGKILL'),
  ],
)
def test_tasks_that_end_with_srun_are_lost(tmp_path, env, srun, code, reason):
  programs.make(tmp_path / 'bin', srun=srun)
  with Room(tmp_path, env) as room:
    room.start(a='print(1)', b='print(1)')
    assert room.end('a', 'b') == [code, code]
    assert room.host.reasons == {'a': reason, 'b': reason}


@pytest.mark.parametrize(
  ('srun', 'said'),
  [
    ('exit 1', 'srun ended with exit code 1 and has started no task'),
    (None, 'srun cannot be started on this node: No such file or directory'),
  ],
)
def test_an_srun_that_cannot_start_tasks_is_an_error(tmp_path, env, srun, said):
  folder = tmp_path / 'bin'
  (folder / 'srun').unlink()
  if srun:
    programs.make(folder, srun=srun)
  env = {**env, 'PATH': str(folder)}
  with Room(tmp_path, env) as room:
    room.start(a='print(1)')
    with pytest.raises(cli.RunError, match=said):
      room.end('a')


@pytest.mark.slow
def test_gpus_of_a_node_are_shared_out(tmp_path, env):
  env = {**env, 'CUDA_VISIBLE_DEVICES': '4,5'}
  show = 'import os; print(os.environ["CUDA_VISIBLE_DEVICES"])'
  with Room(tmp_path, env, has_shared_gpus=True) as room:
    room.start(a=show, b=show, c=show)
    room.end('a', 'b', 'c')
    assert [room.log(name) for name in 'abc'] == ['4\n', '5\n', '4\n']


def test_a_heterogeneous_job_has_one_step_with_the_cpus_of_each_part():
  command = srun_host.make_command(3, {'SLURM_CPUS_PER_TASK': '4'}, ['x'])
  assert command[0] == 'srun' and command[-1] == 'x'
  assert {'--ntasks=3', '--cpus-per-task=4'} <= set(command)
  env = {'SLURM_HET_SIZE': '2', 'SLURM_CPUS_PER_TASK_HET_GROUP_1': '4'}
  words = srun_host.make_command(3, env, ['x'])
  cut = words.index(':')
  assert words[cut - 2 : cut] == ['--het-group=0', 'x']
  assert words[-3:] == ['--het-group=1', '--cpus-per-task=4', 'x']
  # With sbatch --export=NONE, a site's default, srun passes nothing on.
  assert command.count('--export=ALL') == 1
  assert words.count('--export=ALL') == 2


@pytest.mark.parametrize('num_tasks', [3, 32, 33, 100, 1000])
def test_jobs_in_a_row_have_ports_of_their_own_also_with_many_tasks(num_tasks):
  first = [
    srun_host.choose_first_port(job, num_tasks)
    for job in (699, 700, 701, 123456)
  ]
  assert len(set(first)) == 4
  assert all(p >= 10000 and p + num_tasks <= 32768 for p in first)
  gaps = [abs(a - b) for a in first for b in first if a != b]
  assert min(gaps) >= num_tasks


def test_a_job_that_finds_a_port_taken_moves():
  assert srun_host.choose_first_port(1, 3) == srun_host.choose_first_port(
    701, 3
  )
  moved = {srun_host.choose_first_port(701, 3, moves) for moves in range(20)}
  assert len(moved) == 20


@pytest.mark.slow
def test_a_file_that_cannot_be_written_may_be_written_later(tmp_path, env):
  with Room(tmp_path / 'later', env) as room:
    room.start(a='print(1)', b='print(1)')
    assert room.end('a', 'b') == [cli.NOT_STARTED] * 2
    assert room.host.reasons['a'].endswith('No such file or directory')
    room.folder.mkdir()
    room.ended.clear()
    room.start(a='print(1)')
    assert room.end('a') == [0]
