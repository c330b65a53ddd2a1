"""Every update rule as users run it: real tasks, from the start to the end.

What a kill -9 holds up is in every_image_with_kills_test.py.
"""

import pytest

from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from tests.support.runner import SMALL, read_report

pytestmark = pytest.mark.slow

BATCH = 20
SGD = '--optimizer=sgd', '--learning_rate=0.1'
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
  'easgd with momentum': [
    *SGD,
    '--easgd_momentum=0.9',
    '--communication_period=3',
  ],
  'dynsgd': ['--communication_period=3'],
  'drop_stale': ['--max_staleness=20'],
  'ssp': ['--ssp_bound=2'],
  'bmuf': ['--communication_period=3', *SGD],
  'bmuf with delayed Nesterov': [
    *SGD,
    '--delayed_nesterov=3',
    '--communication_period=3',
  ],
}
RULES |= {name: [] for name in registry.names(STRATEGIES) if name not in RULES}
# One that waits for all and one that does not.
EIGHT = {'sync_sgd', 'async_sgd'}
# One push of each worker to each update, all from the same center.
IN_LOCK_STEP = {
  'sync_sgd',
  'sync_sgd with rates',
  'sagn',
  'easgd sync',
  'bmuf',
  'ring_allreduce',
}


def get_flags(rule, num_workers):
  name = rule.split()[0]
  flags = [f'--strategy={name}', *RULES[rule]]
  if rule == 'sync_sgd with rates':
    rates = ','.join(['0.1'] * num_workers)
    flags.append(f'--worker_learning_rates={rates}')
  if rule == 'sync_sgd with backup':
    flags.append(f'--replicas_to_aggregate={num_workers - 1}')
  return flags


@pytest.mark.daily
@pytest.mark.parametrize('rule', RULES)
def test_workers_learn_end_cleanly_and_tell_what_they_did(
  tasks, make_real_cluster, tmp_path, rule
):
  num_workers = 8 if rule in EIGHT else 3
  cluster = make_real_cluster(0 if rule == 'ring_allreduce' else 1, num_workers)
  ps, workers = cluster.start_all(
    *SMALL,
    '--model=mlp',
    '--initializer=glorot',
    f'--batch_size={BATCH}',
    '--epochs=5',
    f'--logdir={tmp_path}/run',
    *get_flags(rule, num_workers),
  )
  assert not any(tasks.wait(*workers, *ps)), workers[0].output
  assert 'sent no final' not in workers[0].output
  report = read_report(tmp_path / 'run')
  assert report['test_accuracy'] > 0.5  # One in ten by chance.
  rows = report['workers']
  assert len(rows) == num_workers
  assert report['examples'] == report['local_steps'] * BATCH
  check_who_waited(rule, report)
  # The chief also fetched the checkpoints and the center for the evaluation.
  check_bytes(max(rows[1:], key=lambda row: row['bytes_pushed']))


def check_who_waited(rule, report):
  """Checks by the pushes of the workers that it is this rule that has run."""
  rows = report['workers']
  pushes = [row['pushes'] for row in rows]
  staleness = [int(n) for row in rows for n in row['staleness']]
  if rule in IN_LOCK_STEP:
    assert pushes == [report['global_step']] * len(rows)
    assert set(staleness) == {0}
  elif rule == 'sync_sgd with backup':
    # What comes last is of a center that is gone.
    accepted = [row['staleness'].get('0', 0) for row in rows]
    assert sum(accepted) == (len(rows) - 1) * report['global_step']
    assert sum(pushes) == sum(accepted) + sum(
      row['gradients_dropped'] for row in rows
    )
  else:
    dropped = sum(row.get('gradients_dropped', 0) for row in rows)
    assert sum(pushes) - dropped == report['global_step']
    assert max(staleness) > 0


def check_bytes(row):
  """Checks what a worker counted against what its sockets have moved."""
  assert row['bytes_pushed'] > 50 * 318_040 / 3
  # Besides the tensors there is what calls for them.
  assert row['bytes_sent'] == pytest.approx(row['bytes_pushed'], rel=0.1)
  assert row['bytes_received'] == pytest.approx(row['bytes_pulled'], rel=0.1)
