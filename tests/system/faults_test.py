"""Any task may die at any time: real tasks, killed, suspended, cut off."""

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from distmnist.logdir import checkpoints
from tests.lifecycle.session_test import SYNC
from tests.support.runner import (
  REPO,
  SMALL,
  Task,
  read_report,
  steps_of,
  wait_for_line,
  wait_for_step,
)

KILL = signal.SIGKILL
RULES = pytest.mark.parametrize('rule', [(), (SYNC,)], ids=['async', 'sync'])
# Few steps between two checkpoints, and a line for each step.
OFTEN = '--log_secs=0', '--save_steps=50'


def kill(tasks, task):
  tasks.signal(task, KILL)
  assert tasks.wait(task) == [-KILL]


def recoveries(task):
  """Returns [(step, steps lost)] of each recovery that a task reports.

  What it has lost is what it had printed, so it must print each step, and
  perhaps the step that it had just made, with what others had made meanwhile:
  a loss that is noticed right then comes before its line.
  """
  found, printed, few = [], 0, 10
  for line in task.output.splitlines():
    if match := re.match(r'step (\d+)/', line):
      # One that waited as the center was set back prints an old step.
      printed = max(printed, int(match[1]))
    elif match := re.match(r'recovered at step (\d+): (\d+) steps lost', line):
      step, lost = map(int, match.groups())
      assert max(0, printed - step) <= lost <= max(0, printed - step) + few
      found.append((step, lost))
      printed = step
  return found


def wait_for_steps(tasks, step):
  for task in tasks:
    wait_for_step(task, step)


def wait_for_save(chief, step):
  """Waits until a chief is at `step`, and has saved what was due there."""
  wait_for_step(chief, step)
  wait_for_step(chief, steps_of(chief)[-1] + 1)


@pytest.mark.daily(but=['rule1-1'])
@pytest.mark.slow
@pytest.mark.parametrize('rule, index', [((), 0), ((SYNC,), 1)])
def test_a_ps_that_was_killed_is_back_and_all_go_on_from_the_checkpoint(
  tasks, make_real_cluster, tmp_path, rule, index
):
  logdir = tmp_path / 'run'
  last_step = 300 if rule else 600
  flags = *SMALL, *OFTEN, *rule, f'--logdir={logdir}'
  flags = *flags, f'--train_steps={last_step}'
  cluster = make_real_cluster(2, 2)
  ps, workers = cluster.start_all(*flags)
  wait_for_steps(workers, 110)
  wait_for_save(workers[0], 110)
  kill(tasks, ps[index])
  # By its name: what an asynchronous one holds may be a step or two later.
  saved = int(checkpoints.find_latest(str(logdir)).rpartition('-')[2])
  ps[index] = cluster.start('ps', index, *flags)
  assert tasks.wait(*workers, *ps) == [0] * 4
  [restored] = re.findall(r'^restored .*-(\d+)$', workers[0].output, re.M)
  assert int(restored) >= saved > 110 - 50
  for worker in workers:
    [(step, lost)] = recoveries(worker)
    assert step >= int(restored)
    # In lock-step the other worker waits while the chief saves.
    assert not rule or lost <= 50 + 2
  report = read_report(logdir)
  assert report['recoveries'] == 1
  lost = [lost for worker in workers for _, lost in recoveries(worker)]
  assert report['steps_lost'] == max(lost)
  assert report['workers_not_heard_of'] == []
  if rule:
    assert report['global_step'] == last_step


@pytest.mark.daily(but=['sync'])
@pytest.mark.slow
@RULES
def test_a_chief_that_was_killed_takes_over_what_lives_on_the_ps(
  tasks, make_real_cluster, tmp_path, rule
):
  logdir = tmp_path / 'run'
  flags = *SMALL, *rule, '--log_secs=0', '--save_secs=1000'
  last_step = 500 if rule else 2000
  flags = *flags, f'--logdir={logdir}', f'--train_steps={last_step}'
  cluster = make_real_cluster(1, 2)
  ps, workers = cluster.start_all(*flags)
  wait_for_steps(workers, 60)
  kill(tasks, workers[0])
  before = steps_of(workers[1])[-1]
  if not rule:
    wait_for_step(workers[1], before + 20)  # It goes on meanwhile.
    tasks.suspend(workers[1])  # But leaves something to do.
  chief = cluster.start('worker', 0, *flags)
  if not rule:
    wait_for_line(chief, 'step ')
    tasks.signal(workers[1], signal.SIGCONT)
  assert tasks.wait(chief, workers[1], *ps) == [0] * 3
  assert 'taking over the live variables' in chief.output
  assert 'restored' not in chief.output
  assert steps_of(chief)[0] >= before
  assert recoveries(workers[1]) == []
  report = read_report(logdir)
  if rule:
    # In lock-step as before: one gradient of each to each update.
    first = steps_of(chief)[0] - 1
    assert report['global_step'] == last_step
    killed, last = report['workers'][0]['lives']
    assert (last['first_step'], last['local_steps']) == (
      first,
      last_step - first,
    )
    # What it did after it last wrote is not known.
    assert (killed['first_step'], killed['has_ended']) == (0, False)
    assert 1 <= killed['local_steps'] <= first
    assert report['workers'][0]['gradients_dropped'] == 0
  else:
    assert report['global_step'] >= last_step


@pytest.mark.slow
def test_sync_stays_in_lock_step_when_a_worker_is_killed_again_and_again(
  tasks, make_real_cluster, tmp_path
):
  logdir = tmp_path / 'run'
  flags = *SMALL, SYNC, '--log_secs=0', f'--logdir={logdir}'
  flags = *flags, '--train_steps=200', '--stall_warn_secs=0.5'
  cluster = make_real_cluster(1, 3)
  ps, workers = cluster.start_all(*flags)
  for i in (1, 2):
    wait_for_step(workers[0], 40 * i)
    kill(tasks, workers[2])
    if i == 2:  # Who waits for it is told of it.
      wait_for_line(
        workers[0],
        f'waiting for worker 2 at {cluster.hosts["worker"][2]}, which does not '
        'answer',
      )
    workers[2] = cluster.start('worker', 2, *flags)
  assert tasks.wait(*workers, *ps) == [0] * 4
  rows = read_report(logdir)['workers']
  assert [row['local_steps'] for row in rows[:2]] == [200, 200]
  assert [row['gradients_dropped'] for row in rows] == [0, 0, 0]


@pytest.mark.slow
def test_all_are_killed_and_the_next_start_uses_the_last_whole_checkpoint(
  tasks, make_real_cluster, tmp_path
):
  logdir = tmp_path / 'run'
  flags = *SMALL, *OFTEN, f'--logdir={logdir}'
  ps, workers = make_real_cluster(1, 2).start_all(
    *flags, '--train_steps=1000000'
  )
  wait_for_save(workers[0], 160)
  for task in [*workers, *ps]:
    tasks.signal(task, KILL)
  assert tasks.wait(*workers, *ps) == [-KILL] * 3
  latest, before = checkpoints.list_checkpoints(str(logdir))[:2]
  data = logdir / f'{os.path.basename(latest)}.data-00000-of-00001'
  data.write_bytes(data.read_bytes()[:1000])
  end = checkpoints.read_step(latest) + 200
  ps, workers = make_real_cluster(1, 2).start_all(
    *flags, f'--train_steps={end}'
  )
  assert tasks.wait(*workers, *ps) == [0] * 3
  told = f'checkpoint {latest} is not whole, and not used'
  assert workers[0].output.count(told) == 1
  assert f'restored {before}\n' in workers[0].output
  assert read_report(logdir)['global_step'] >= end
  # The new chief goes on dropping the checkpoints of the old one.
  assert len(list(logdir.glob('*.index'))) == 5


@pytest.mark.slow
def test_a_ps_that_shall_stop_has_its_shards_saved_first(
  tasks, make_real_cluster, tmp_path
):
  logdir = tmp_path / 'run'
  flags = *SMALL, '--log_secs=0', '--save_secs=1000', f'--logdir={logdir}'
  flags = *flags, '--train_steps=1200'
  cluster = make_real_cluster(2, 2)
  ps, workers = cluster.start_all(*flags)
  saved = []
  step = 60
  for index in (1, 0):
    wait_for_steps(workers, step)
    tasks.signal(ps[index], signal.SIGTERM)
    assert tasks.wait(ps[index]) == [128 + signal.SIGTERM]
    line = wait_for_line(ps[index], 'worker 0 has saved step ')
    saved.append(int(line.rpartition(' ')[2]))
    assert saved[-1] >= step
    ps[index] = cluster.start('ps', index, *flags)
    for worker in workers:
      wait_for_line(worker, 'recovered at step ', count=len(saved))
    step = 60 + max(steps_of(worker)[-1] for worker in workers)
  assert tasks.wait(*workers, *ps) == [0] * 4
  for worker in workers:
    # Lost is what came between the checkpoint and the end of the ps.
    steps = [step for step, _ in recoveries(worker)]
    assert len(steps) == 2
    assert steps[0] >= saved[0] and steps[1] >= saved[1]


@pytest.mark.slow
def test_a_ps_whose_chief_has_no_logdir_leaves_at_once(
  tasks, make_real_cluster
):
  ps, workers = make_real_cluster(1, 1).start_all(
    *SMALL, '--log_secs=0', '--train_steps=1000000', '--steps_per_run=1'
  )
  wait_for_step(workers[0], 10)
  tasks.signal(ps[0], signal.SIGTERM)
  assert tasks.wait(ps[0]) == [128 + signal.SIGTERM]
  # It was told so, and did not wait for a checkpoint.
  assert 'worker 0 has no --logdir to save to' in ps[0].output
  tasks.signal(workers[0], signal.SIGTERM)
  assert tasks.wait(workers[0]) == [128 + signal.SIGTERM]


@pytest.mark.slow
def test_a_suspended_task_is_named_and_then_given_up(
  tasks, make_real_cluster, tmp_path
):
  # Two clusters at once: all that they do is wait.
  chiefs = {}
  for role, name in ('ps', 'ps 0'), ('worker', 'worker 1'):
    ps, workers = make_real_cluster(1, 2).start_all(
      *SMALL,
      SYNC,
      '--log_secs=0',
      '--train_steps=1000000',
      '--stall_warn_secs=1',
      '--stall_fail_secs=9',
      # The one whose ps is suspended can save nothing.
      *(['--stop_grace_secs=2'] if role == 'ps' else []),
      f'--logdir={tmp_path}/{role}',
    )
    wait_for_step(workers[0], 10)
    frozen = ps[0] if role == 'ps' else workers[1]
    tasks.signal(frozen, signal.SIGSTOP)
    chiefs[name] = workers[0]
  for name, chief in chiefs.items():
    # Not the line from its start, if that took long.
    line = wait_for_line(chief, f': waiting for {name} at ')
    # In a step, or in what follows one.
    assert re.search(r'no step for \d+ s|has taken \d+ s', line)
    assert '(suspended?)' in line
  for chief in chiefs.values():
    assert tasks.wait(chief) == [3]
    assert 'given up (--stall_fail_secs=9)' in chief.output
    assert 'Traceback' not in chief.output
  # The ps still holds the center: nothing is lost.
  output = chiefs['worker 1'].output
  stopped = re.search(r'stopped at step (\d+)', output)[1]
  saved = checkpoints.find_latest(str(tmp_path / 'worker'))
  assert checkpoints.read_step(saved) >= int(stopped)


@pytest.mark.slow
def test_a_worker_with_other_flags_is_named_and_the_others_go_on(
  tasks, make_real_cluster
):
  cluster = make_real_cluster(1, 3)
  flags = *SMALL, '--train_steps=800', '--log_secs=0'
  ps = cluster.start('ps', 0, *flags)
  workers = [cluster.start('worker', i, *flags) for i in (0, 1)]
  odd = cluster.start('worker', 2, *flags, '--batch_size=50')
  assert tasks.wait(odd) == [1]
  assert re.search(
    '^distmnist.train: error: worker 0 at .* was started differently: '
    '--batch_size=100 there but --batch_size=50 here; give all tasks the same$',
    odd.output,
    re.M,
  )
  assert 'Traceback' not in odd.output
  right = cluster.start('worker', 2, *flags)
  assert tasks.wait(*workers, right, ps) == [0] * 4


@pytest.mark.daily
@pytest.mark.slow
def test_workers_with_folders_of_their_own_train_and_are_told_so(
  tasks, make_real_cluster, tmp_path
):
  cluster = make_real_cluster(1, 2)
  flags = *SMALL, *OFTEN, '--train_steps=500'

  def own(i):
    return f'--logdir={tmp_path}/host_{i}'

  ps = cluster.start('ps', 0, *flags)
  workers = [cluster.start('worker', i, *flags, own(i)) for i in (0, 1)]
  wait_for_step(workers[0], 110)
  # Only the chief needs the checkpoints: also for a ps that comes back.
  kill(tasks, ps)
  ps = cluster.start('ps', 0, *flags)
  assert tasks.wait(*workers, ps) == [0] * 3
  told = f'--logdir={tmp_path}/host_1 is not the folder that worker 0 has'
  assert workers[1].output.count(told) == 1
  assert 'is not the folder' not in workers[0].output
  assert checkpoints.list_checkpoints(f'{tmp_path}/host_0')
  assert not checkpoints.list_checkpoints(f'{tmp_path}/host_1')


def can_make_namespaces():
  return os.geteuid() == 0 and all(
    shutil.which(program) for program in ('ip', 'nsenter', 'unshare', 'mount')
  )


needs_namespaces = pytest.mark.skipif(
  not can_make_namespaces(),
  reason='needs root, ip, nsenter, unshare and mount for a network of its own',
)


class Host:
  """A namespace of `unshare`, of network or mounts; ends with the test."""

  def __init__(self, *unshare_flags):
    self._holder = subprocess.Popen(
      ['unshare', *unshare_flags, 'sh', '-c', 'echo ready; exec sleep 600'],
      stdout=subprocess.PIPE,
    )
    assert self._holder.stdout.readline() == b'ready\n'
    self.pid = self._holder.pid
    self._started = []

  def call(self, *command):
    subprocess.run(self._inside(command), check=True)

  def _inside(self, command):
    return ['nsenter', '-t', str(self.pid), '-n', '-m', *command]

  def train(self, log, *flags, first=''):
    """Starts a task here, after the statements `first`; returns the Popen."""
    program = f'{first}\nfrom distmnist import train\ntrain.run()'
    command = [sys.executable, '-c', program, *flags]
    with open(log, 'wb') as file:
      self._started.append(
        subprocess.Popen(
          self._inside(command),
          stdout=file,
          stderr=file,
          env={**os.environ, 'PYTHONPATH': str(REPO)},
        )
      )
    return self._started[-1]

  def close(self):
    for process in [*self._started, self._holder]:
      process.kill()
      process.wait()
    self._holder.stdout.close()


@pytest.fixture
def make_host():
  """Returns make(*flags of unshare) -> a Host."""
  hosts = []

  def make(*unshare_flags):
    hosts.append(Host(*unshare_flags))
    return hosts[-1]

  yield make
  for host in hosts:
    host.close()


def connect(hosts):
  """Gives two Hosts a link, and the addresses 10.77.0.1 and 10.77.0.2."""
  link = 'ip', 'link', 'add', 'net0', 'type', 'veth', 'peer', 'name', 'net0'
  hosts[0].call(*link, 'netns', str(hosts[1].pid))
  for i, host in enumerate(hosts):
    host.call('ip', 'link', 'set', 'lo', 'up')
    host.call('ip', 'addr', 'add', f'10.77.0.{i + 1}/24', 'dev', 'net0')
    host.call('ip', 'link', 'set', 'net0', 'up')


# As shipped, the kernel takes 20 s to find out.
_SOON = """
from distmnist.cluster import keepalive
keepalive._IDLE_SECS = keepalive._ASK_SECS = 1
keepalive._SENT_SECS = 3
"""


@pytest.mark.daily
@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize('first', [_SOON, ''], ids=['soon', 'shipped'])
@pytest.mark.parametrize('rule', ['async_sgd', 'sync_sgd'])
def test_a_worker_notices_that_the_host_of_its_ps_has_vanished(
  make_host, tmp_path, rule, first
):
  hosts = [make_host('-n', '-m'), make_host('-n', '-m')]
  connect(hosts)
  flags = [
    *(*SMALL, f'--strategy={rule}', '--train_steps=1200', '--log_secs=0'),
    *('--ps_hosts=10.77.0.1:2222', '--worker_hosts=10.77.0.2:2223'),
    *('--save_steps=50', f'--logdir={tmp_path / "run"}'),
  ]
  ps_flags = [*flags, '--job_name=ps', '--task_index=0']
  ps = hosts[0].train(tmp_path / 'ps', *ps_flags)
  log = tmp_path / 'worker'
  own = '--job_name=worker', '--task_index=0'
  process = hosts[1].train(log, *flags, *own, first=first)
  worker = Task('worker', log)
  wait_for_step(worker, 100)
  # Nothing comes back from a host that is off, not even a refusal.
  hosts[0].call('ip', 'link', 'set', 'net0', 'down')
  ps.kill()
  ps.wait()
  again = hosts[0].train(tmp_path / 'ps_again', *ps_flags)
  # Its step is given up, and it looks for the ps; the kernel alone would send
  # the same request again for a quarter of an hour.
  wait_for_line(worker, 'waiting for ps 0 at 10.77.0.1:2222 (')
  hosts[0].call('ip', 'link', 'set', 'net0', 'up')
  assert [process.wait(90), again.wait(90)] == [0, 0]
  assert 'recovered at step ' in worker.output


@pytest.mark.slow
@needs_namespaces
def test_a_cut_network_is_named_on_both_sides_and_a_mended_one_goes_on(
  make_host, tmp_path
):
  hosts = [make_host('-n', '-m'), make_host('-n', '-m')]
  connect(hosts)
  flags = [
    *SMALL,
    SYNC,
    '--ps_hosts=10.77.0.1:2222',
    '--worker_hosts=10.77.0.1:2223,10.77.0.2:2224',
    '--train_steps=200',
    '--log_secs=0',
    '--stall_warn_secs=1',
  ]
  logs = [tmp_path / name for name in ('ps', 'chief', 'worker')]
  started = [
    host.train(log, *flags, f'--job_name={job}', f'--task_index={i}')
    for host, log, job, i in (
      (hosts[0], logs[0], 'ps', 0),
      (hosts[0], logs[1], 'worker', 0),
      (hosts[1], logs[2], 'worker', 1),
    )
  ]
  _, chief, worker = (Task(log.name, log) for log in logs)
  wait_for_step(worker, 20)
  hosts[1].call('ip', 'link', 'set', 'net0', 'down')
  wait_for_line(chief, 'waiting for worker 1 at 10.77.0.2:2224, which does not')
  wait_for_line(worker, 'waiting for ps 0 at 10.77.0.1:2222, which does not')
  hosts[1].call('ip', 'link', 'set', 'net0', 'up')
  assert [process.wait(90) for process in started] == [0, 0, 0]
  assert steps_of(chief)[-1] == 200


@pytest.mark.daily(but=['while it trains'])
@pytest.mark.slow
@needs_namespaces
@pytest.mark.parametrize(
  'size, words, code',
  [
    ('40k', 'MB are free, and one checkpoint takes 0.1 MB; make room', 1),
    (
      '400k',
      'cannot write checkpoint .*ckpt-.*: .*[Nn]o space left',
      75,
    ),
  ],
  ids=['at the start', 'while it trains'],
)
def test_a_full_disk_is_named_and_what_was_saved_is_kept(
  make_host, tmp_path, size, words, code
):
  host = make_host('-m')
  logdir = tmp_path / 'disk'
  logdir.mkdir()
  options = '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', str(logdir)
  host.call('mount', *options)
  log = tmp_path / 'log'
  process = host.train(
    log,
    *SMALL,
    f'--logdir={logdir}',
    '--train_steps=100000',
    '--save_steps=20',
    '--keep_checkpoints=100',
    '--summary_steps=1000000',
  )
  if code == 75:  # The training goes on for a minute, and tries again.
    wait_for_line(Task('train', log), 'the training goes on, next try in 2 s')
    process.terminate()
  assert process.wait(90) == code
  output = log.read_text()
  assert re.search(f'^distmnist.train: error: .*{words}', output, re.M), output
  assert 'Traceback' not in output


@pytest.mark.daily
@pytest.mark.slow
def test_who_waits_on_one_ps_finds_out_that_another_is_lost_twice(
  tasks, make_real_cluster, tmp_path
):
  # ssp waits on ps 0 for a permit, and has then no call open to ps 1. All the
  # other rules that wait: benchmarks/stalls.py.
  flags = *SMALL, *OFTEN, f'--logdir={tmp_path}/run', '--strategy=ssp'
  flags = *flags, '--train_steps=800', '--stall_fail_secs=40'
  cluster = make_real_cluster(2, 2)
  ps, workers = cluster.start_all(*flags)
  for number in (1, 2):
    wait_for_save(workers[0], 110)
    kill(tasks, ps[1])
    ps[1] = cluster.start('ps', 1, *flags)
    for worker in workers:
      wait_for_line(worker, 'recovered at step ', count=number)
  assert tasks.wait(*workers, *ps) == [0] * 4
