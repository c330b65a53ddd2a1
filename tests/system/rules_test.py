"""Every update rule as users run it: real tasks, many workers, kill -9."""

import re
import signal

import pytest

from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from tests.lifecycle.session_test import steps_of, wait_for_step
from tests.support.runner import SMALL, read_report
from tests.system.launches_test import find_tasks, launch

SGD = '--optimizer=sgd', '--learning_rate=0.1'
# A copy is pulled before its worker's first step, which takes a while where
# eight start on two cores: the first push is up to hundreds of updates stale,
# and Adam takes it at full size. So these get time to recover.
EPOCHS = {'downpour': 80, 'agn': 80, 'dc_asgd': 80}
RULES = {
  'async_sgd': [],
  'sync_sgd': [],
  'sync_sgd with backup': [],
  'sync_sgd with rates': [*SGD],
  'downpour': ['--n_fetch=2', '--n_push=2'],
  'agn': ['--communication_period=3', '--learning_rate=0.03'],
  'sagn': ['--communication_period=3'],
  'easgd': ['--communication_period=3'],
  'easgd sync': ['--easgd_sync'],
  'easgd with momentum': [*SGD, '--easgd_momentum=0.9'],
  'dynsgd': ['--communication_period=3'],
  'staleness_aware': [],
  'drop_stale': ['--max_staleness=20'],
  'ssp': ['--ssp_bound=2'],
  'dc_asgd': [],
  'bmuf': ['--communication_period=3', '--learning_rate=0.03'],
  'ring_allreduce': [],
}
RULES |= {name: [] for name in registry.names(STRATEGIES) if name not in RULES}
# A rule of each kind has eight workers, which take their time to start on two
# cores; the others have half as many.
EIGHT = {'async_sgd', 'sync_sgd', 'easgd', 'ssp', 'ring_allreduce'}
# Those that stand still when a worker dies, until it is back.
WAITING = {
  'sync_sgd',
  'sync_sgd with rates',
  'sagn',
  'easgd sync',
  'ssp',
  'bmuf',
}


# One push of each worker to each update, all from the same center.
IN_LOCK_STEP = WAITING - {'ssp'} | {'ring_allreduce'}


def get_flags(rule, num_workers):
  name = rule.split()[0]
  flags = [f'--strategy={name}', *RULES[rule]]
  if rule == 'sync_sgd with rates':
    rates = ','.join(['0.02'] * num_workers)
    flags.append(f'--worker_learning_rates={rates}')
  if rule == 'sync_sgd with backup':
    flags.append(f'--replicas_to_aggregate={num_workers - 1}')
  return flags


@pytest.mark.slow
@pytest.mark.parametrize('rule', RULES)
def test_many_workers_end_cleanly_and_learn(tmp_path, rule):
  num_workers = 8 if rule in EIGHT else 4
  code, out, err, end_secs = launch(
    tmp_path,
    f'--epochs={EPOCHS.get(rule, 20)}',
    '--batch_size=20',
    f'--logdir={tmp_path}/run',
    *get_flags(rule, num_workers),
    num_ps=0 if rule == 'ring_allreduce' else 1,
    num_workers=num_workers,
  )
  assert code == 0, out + err
  accuracy = re.search(r'^test accuracy +(0\.\d{4})$', out, re.M)[1]
  assert float(accuracy) > 0.5  # One in ten by chance.
  assert 'sent no final' not in out
  assert end_secs < 25  # The chief would wait for 30 s.
  assert not find_tasks(tmp_path)
  report = read_report(tmp_path / 'run')
  assert len(report['workers']) == num_workers
  assert report['images'] == report['local_steps'] * 20
  check_who_waited(rule, report, num_workers)


def check_who_waited(rule, report, num_workers):
  """Checks by the pushes of the workers that it is this rule that has run."""
  rows = report['workers']
  pushes = [row['pushes'] for row in rows]
  staleness = [int(n) for row in rows for n in row['staleness']]
  if rule in IN_LOCK_STEP:
    assert pushes == [report['global_step']] * num_workers
    assert set(staleness) == {0}
  elif rule == 'sync_sgd with backup':
    # What comes last is of a center that is not there any more.
    accepted = [row['staleness'].get('0', 0) for row in rows]
    assert sum(accepted) == (num_workers - 1) * report['global_step']
    assert sum(pushes) == sum(accepted) + sum(
      row['gradients_dropped'] for row in rows
    )
  else:
    dropped = sum(row.get('gradients_dropped', 0) for row in rows)
    assert sum(pushes) - dropped == report['global_step']
    assert max(staleness) > 0


def start(make_real_cluster, tmp_path, rule, steps, *more):
  """Starts two workers, and a ps if there is one to a rule.

  Returns:
    (cluster, list of ps, list of workers, flags).
  """
  cluster = make_real_cluster(0 if rule == 'ring_allreduce' else 1, 2)
  flags = [
    *SMALL,
    f'--train_steps={steps}',
    f'--logdir={tmp_path}/run',
    *more,
    *get_flags(rule, num_workers=2),
  ]
  return cluster, *cluster.start_all(*flags), flags


@pytest.mark.slow
@pytest.mark.parametrize('rule', RULES)
def test_what_is_counted_is_what_the_sockets_have_moved(
  tasks, make_real_cluster, tmp_path, rule
):
  _, ps, workers, _ = start(
    make_real_cluster, tmp_path, rule, 400, '--model=mlp'
  )
  codes = tasks.wait(*ps, *workers)
  assert not any(codes), workers[0].output
  # The chief also fetched the checkpoints and the center of the evaluation.
  row = read_report(tmp_path / 'run')['workers'][1]
  assert row['bytes_pushed'] > 50 * 318_040 / 3
  # Beside the tensors there is what calls for them.
  assert row['bytes_sent'] == pytest.approx(row['bytes_pushed'], rel=0.1)
  assert row['bytes_received'] == pytest.approx(row['bytes_pulled'], rel=0.1)


WITH_PS = [rule for rule in RULES if rule != 'ring_allreduce']


@pytest.mark.slow
@pytest.mark.parametrize('rule', WITH_PS)
def test_kill_9_of_a_worker_does_to_the_others_what_the_docstring_says(
  tasks, make_real_cluster, tmp_path, rule
):
  cluster, [ps], workers, flags = start(
    make_real_cluster, tmp_path, rule, 100_000, '--log_secs=0'
  )
  wait_for_step(workers[0], 5)
  wait_for_step(workers[1], 5)
  tasks.signal(workers[1], signal.SIGKILL)
  assert tasks.wait(workers[1]) == [-signal.SIGKILL]
  before = steps_of(workers[0])[-1]
  if rule in WAITING:
    with pytest.raises(TimeoutError):
      tasks.wait(workers[0], timeout_secs=1.5)
    # What was on its way is still counted, and a few steps by the bound.
    assert steps_of(workers[0])[-1] <= before + 10
    before = steps_of(workers[0])[-1]
  else:
    wait_for_step(workers[0], before + 20)
  # It is back: from the center, and both go on.
  back = cluster.start('worker', 1, *flags)
  wait_for_step(back, before + 1)
  again = steps_of(workers[0])[-1]
  wait_for_step(workers[0], again + 5)
  wait_for_step(back, again + 5)
  for task in (workers[0], back):
    tasks.signal(task, signal.SIGTERM)
  assert tasks.wait(workers[0], back) == [128 + signal.SIGTERM] * 2
  tasks.signal(ps, signal.SIGTERM)
  assert tasks.wait(ps) == [128 + signal.SIGTERM]
