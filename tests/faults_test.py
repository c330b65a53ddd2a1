"""Any task may die at any time: real tasks, killed, suspended, cut off."""

import os
import re
import signal
import threading

import pytest

from distmnist import checkpoints
from tests.runner import SMALL, wait_for_line
from tests.session_test import SYNC, read_report, steps_of

KILL = signal.SIGKILL
RULES = pytest.mark.parametrize('rule', [(), (SYNC,)], ids=['async', 'sync'])
# Few lines between two checkpoints, and a look at each step.
OFTEN = '--log_secs=0', '--save_steps=50'


def wait_for_step(task, step):
  """Waits until a task has printed a progress line at `step` or later."""
  for _ in range(1200):
    if steps_of(task)[-1:] >= [step]:
      return
    threading.Event().wait(0.05)  # A look at a log, again and again.
  raise TimeoutError(task.output)


def kill(tasks, task):
  tasks.signal(task, KILL)
  assert tasks.wait(task) == [-KILL]


def recoveries(task):
  """Returns [(step, steps lost)] of each recovery that a task speaks of."""
  lines = re.findall(
    r'^recovered at step (\d+): (\d+) steps lost', task.output, re.M
  )
  return [(int(step), int(lost)) for step, lost in lines]


@RULES
@pytest.mark.parametrize('index', [0, 1])
def test_a_ps_that_was_killed_is_back_and_all_go_on_from_the_checkpoint(
  tasks, make_real_cluster, tmp_path, rule, index
):
  logdir = tmp_path / 'run'
  flags = *SMALL, *OFTEN, *rule, f'--logdir={logdir}', '--train_steps=400'
  cluster = make_real_cluster(2, 2)
  ps, workers = cluster.start_all(*flags)
  wait_for_step(workers[0], 110)
  kill(tasks, ps[index])
  ps[index] = cluster.start('ps', index, *flags)
  assert tasks.wait(*workers, *ps) == [0] * 4
  restored = re.findall(r'^restored .*-(\d+)$', workers[0].output, re.M)
  for worker in workers:
    [(step, lost)] = recoveries(worker)
    assert step >= int(restored[0]) >= 100
    assert lost <= 50 + 20  # The other worker goes on for a moment.
  report = read_report(logdir)
  assert report['recoveries'] == 1
  assert report['steps_lost'] == recoveries(workers[0])[0][1]
  assert report['workers_not_heard_of'] == []
  if rule:
    assert report['global_step'] == 400


@RULES
def test_a_chief_that_was_killed_takes_over_what_lives_on_the_ps(
  tasks, make_real_cluster, tmp_path, rule
):
  logdir = tmp_path / 'run'
  flags = *SMALL, *rule, '--log_secs=0', '--save_secs=1000'
  flags = *flags, f'--logdir={logdir}', '--train_steps=1500'
  cluster = make_real_cluster(1, 2)
  ps, workers = cluster.start_all(*flags)
  wait_for_step(workers[0], 60)
  kill(tasks, workers[0])
  before = steps_of(workers[1])[-1]
  if not rule:
    wait_for_step(workers[1], before + 20)  # It goes on meanwhile.
  chief = cluster.start('worker', 0, *flags)
  assert tasks.wait(chief, workers[1], *ps) == [0] * 3
  assert 'taking over the live variables' in chief.output
  assert 'restored' not in chief.output
  assert steps_of(chief)[0] >= before
  assert recoveries(workers[1]) == []
  report = read_report(logdir)
  if rule:
    # In lock-step as before: one gradient of each to each update.
    first = steps_of(chief)[0] - 1
    assert report['global_step'] == 1500
    assert report['workers'][0]['local_steps'] == 1500 - first
    assert report['workers'][0]['gradients_dropped'] == 0
  else:
    assert report['global_step'] >= 1500


@pytest.mark.slow
@pytest.mark.parametrize('num_kills', [5])
def test_sync_stays_in_lock_step_when_a_worker_is_killed_again_and_again(
  tasks, make_real_cluster, tmp_path, num_kills
):
  logdir = tmp_path / 'run'
  flags = *SMALL, SYNC, '--log_secs=0', f'--logdir={logdir}'
  flags = *flags, '--train_steps=600'
  cluster = make_real_cluster(1, 3)
  ps, workers = cluster.start_all(*flags)
  for i in range(1, num_kills + 1):
    wait_for_step(workers[0], 60 * i)
    kill(tasks, workers[2])
    workers[2] = cluster.start('worker', 2, *flags)
  assert tasks.wait(*workers, *ps) == [0] * 4
  rows = read_report(logdir)['workers']
  assert [row['local_steps'] for row in rows[:2]] == [600, 600]
  assert [row['gradients_dropped'] for row in rows] == [0, 0, 0]


def test_all_are_killed_and_the_next_start_uses_the_last_whole_checkpoint(
  tasks, make_real_cluster, tmp_path
):
  logdir = tmp_path / 'run'
  flags = *SMALL, *OFTEN, f'--logdir={logdir}'
  ps, workers = make_real_cluster(1, 2).start_all(
    *flags, '--train_steps=1000000'
  )
  wait_for_step(workers[0], 160)
  for task in [*workers, *ps]:
    tasks.signal(task, KILL)
  assert tasks.wait(*workers, *ps) == [-KILL] * 3
  latest, before = checkpoints.list_checkpoints(str(logdir))[:2]
  data = logdir / f'{os.path.basename(latest)}.data-00000-of-00001'
  data.write_bytes(data.read_bytes()[:1000])
  end = checkpoints.read_step(latest) + 50
  ps, workers = make_real_cluster(1, 2).start_all(
    *flags, f'--train_steps={end}'
  )
  assert tasks.wait(*workers, *ps) == [0] * 3
  assert f'checkpoint {latest} is not whole, and not used' in workers[0].output
  assert f'restored {before}\n' in workers[0].output
  assert read_report(logdir)['global_step'] >= end


def test_a_ps_that_shall_stop_has_its_shards_saved_first(
  tasks, make_real_cluster, tmp_path
):
  logdir = tmp_path / 'run'
  flags = *SMALL, '--log_secs=0', '--save_secs=1000', f'--logdir={logdir}'
  flags = *flags, '--train_steps=1000'
  cluster = make_real_cluster(2, 2)
  ps, workers = cluster.start_all(*flags)
  wait_for_step(workers[0], 60)
  tasks.signal(ps[1], signal.SIGTERM)
  assert tasks.wait(ps[1], timeout_secs=10) == [128 + signal.SIGTERM]
  saved = int(
    wait_for_line(ps[1], 'worker 0 has saved step').rpartition(' ')[2]
  )
  ps[1] = cluster.start('ps', 1, *flags)
  assert tasks.wait(*workers, *ps) == [0] * 4
  assert saved >= 60
  for worker in workers:
    [(step, lost)] = recoveries(worker)
    assert step >= saved
    assert lost <= 20  # What came between the checkpoint and the end.


def test_a_ps_whose_chief_has_no_logdir_leaves_at_once(
  tasks, make_real_cluster
):
  ps, workers = make_real_cluster(1, 1).start_all(
    *SMALL, '--log_secs=0', '--train_steps=1000000'
  )
  wait_for_step(workers[0], 10)
  tasks.signal(ps[0], signal.SIGTERM)
  assert tasks.wait(ps[0], timeout_secs=4) == [128 + signal.SIGTERM]
  tasks.signal(workers[0], signal.SIGTERM)
  assert tasks.wait(workers[0], timeout_secs=10) == [128 + signal.SIGTERM]


@pytest.mark.parametrize('role', ['ps', 'worker'])
def test_a_suspended_task_is_named_and_then_given_up(
  tasks, make_real_cluster, tmp_path, role
):
  logdir = tmp_path / 'run'
  ps, workers = make_real_cluster(1, 2).start_all(
    *SMALL,
    SYNC,
    '--log_secs=0',
    '--train_steps=1000000',
    '--stall_warn_secs=1',
    '--stall_fail_secs=9',
    f'--logdir={logdir}',
  )
  wait_for_step(workers[0], 10)
  frozen = {'ps': ps[0], 'worker': workers[1]}[role]
  name = 'ps 0' if role == 'ps' else 'worker 1'
  tasks.signal(frozen, signal.SIGSTOP)
  line = wait_for_line(workers[0], f'waiting for {name} at ')
  assert 'no step for' in line and '(suspended?)' in line
  assert tasks.wait(workers[0], timeout_secs=30) == [3]
  assert 'given up (--stall_fail_secs=9)' in workers[0].output
  assert 'Traceback' not in workers[0].output
  if role == 'worker':
    # The ps still holds the center: nothing is lost.
    stopped = re.search(r'stopped at step (\d+)', workers[0].output)[1]
    latest = checkpoints.find_latest(str(logdir))
    assert checkpoints.read_step(latest) >= int(stopped)


def test_a_killed_worker_is_named_to_those_who_wait_for_it(
  tasks, make_real_cluster
):
  cluster = make_real_cluster(1, 2)
  flags = *SMALL, SYNC, '--log_secs=0', '--stall_warn_secs=0.5'
  flags = *flags, '--train_steps=300'
  ps, workers = cluster.start_all(*flags)
  wait_for_step(workers[0], 10)
  kill(tasks, workers[1])
  address = cluster.hosts['worker'][1]
  wait_for_line(
    workers[0], f'waiting for worker 1 at {address}, which does not answer'
  )
  workers[1] = cluster.start('worker', 1, *flags)
  assert tasks.wait(*workers, *ps) == [0] * 3


def test_a_worker_with_other_flags_is_named_and_the_others_go_on(
  tasks, make_real_cluster
):
  cluster = make_real_cluster(1, 3)
  flags = *SMALL, '--train_steps=3000'
  ps, workers = cluster.start_all(*flags)[0], []
  for i, own in enumerate([(), (), ('--batch_size=50',)]):
    if i == 2:
      break
    workers.append(cluster.start('worker', i, *flags, *own))
  odd = cluster.start('worker', 2, *flags, '--batch_size=50')
  assert tasks.wait(odd) == [1]
  assert (
    'worker 0 at ' in odd.output
    and '--batch_size=100 there but --batch_size=50 here' in odd.output
  )
  assert 'Traceback' not in odd.output
  tasks.kill_all()
  del ps
