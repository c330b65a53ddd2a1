import re
import types

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli, refusals, registry
from distmnist.training import flag_checks

CLUSTER = cluster_lib.make_cluster(('p:1',), ('v:1', 'w:1'), 'worker', 1)


def test_what_the_flags_ask_for(set_flags, tmp_path):
  set_flags(
    '--strategy=easgd',
    '--model=softmax',
    '--batch_size=20',
    '--train_steps=50',
    '--trace_steps=3,7',
    f'--logdir={tmp_path}',
  )
  choice = flag_checks.check(CLUSTER, 1000, 100)
  assert choice.rule == 'easgd'
  assert type(choice.strategy).__module__ == 'distmnist.strategies.easgd'
  assert choice.problem.describe() == 'softmax on mnist'
  assert choice.traced_steps == [3, 7]
  assert choice.plan.batch_size == 20
  assert choice.plan.last_step == 50


def test_without_data_there_is_no_plan(set_flags):
  set_flags('--model=softmax')
  draft = flag_checks.check_without_data(CLUSTER)
  assert (draft.rule, draft.traced_steps) == ('async_sgd', [])


@pytest.mark.parametrize('words', [[], ['--strategy=sync_sgd']])
def test_sync_replicas_is_short_for_sync_sgd(set_flags, words):
  set_flags('--sync_replicas', *words)
  name, strategy = flag_checks.make_strategy(CLUSTER)
  assert name == 'sync_sgd'
  assert type(strategy).__name__ == 'SyncSgd'


@pytest.mark.parametrize(
  ('module', 'message'),
  [
    ({}, 'their_rule has no make(cluster), which returns the strategy.Stra'),
    (
      {'make': lambda cluster: None},
      'expected that make(cluster) of their_rule returns a '
      'strategy.Strategy, not NoneType',
    ),
  ],
)
def test_a_module_that_makes_no_strategy_is_named(
  set_flags, monkeypatch, module, message
):
  set_flags()
  made = types.ModuleType('their_rule')
  vars(made).update(module)
  monkeypatch.setattr(registry, 'load', lambda room, name: made)
  with pytest.raises(cli.UsageError, match=re.escape(message)):
    flag_checks.make_strategy(CLUSTER)


def find(num_workers=2, logdir='run', num_validation_images=None, **settings):
  """Returns what is refused of a rule with `settings`, a str, or ''."""
  waits = {'is_lock_step': False, 'waits_for_all': False}
  periods = {'batches_per_update': 1, 'push_period': 1}
  uses = {'has_local_steps': False, 'has_center_optimizer': True}
  uses |= {'needs_sgd': ''}
  return refusals.find(
    (*flag_checks.OF_RULE, *flag_checks._OF_LOOP),
    rule='rule',
    strategy=types.SimpleNamespace(**waits | periods | uses | settings),
    cluster=types.SimpleNamespace(num_workers=num_workers, is_chief=True),
    groups=(),
    logdir=logdir,
    min_workers=None,
    num_validation_images=num_validation_images,
  )


def test_workers_that_wait_for_each_other_start_together(set_flags):
  set_flags()
  assert not find(is_lock_step=True)
  set_flags('--startup_delay_steps=40')
  assert not find(num_workers=1, is_lock_step=True)
  # A worker pushes what four batches gave.
  assert not find(batches_per_update=4, push_period=4)
  for settings in (
    {'is_lock_step': True},
    {'waits_for_all': True},
    {'batches_per_update': 2},
  ):
    assert find(**settings).startswith('--startup_delay_steps=40, but under')


@pytest.mark.parametrize(
  ('words', 'facts', 'said'),
  [
    (['--epochs=0'], {}, '--epochs=0: expected more than 0'),
    (['--history'], {'logdir': None}, '--history needs a --logdir'),
    (['--lr_schedule=plateau'], {}, '--lr_schedule=plateau goes by evalu'),
    (
      ['--validation_steps=5'],
      {'num_validation_images': 0},
      '--validation_steps=5 needs a validation split: --validation_images > 0',
    ),
    (
      ['--early_stopping_patience=2'],
      {'num_validation_images': 0},
      '--early_stopping_patience=2 needs a validation split',
    ),
    (
      ['--early_stopping_patience=2', '--validation_steps=5'],
      {'logdir': None},
      '--early_stopping_patience=2 needs --logdir',
    ),
  ],
)
def test_flags_of_the_loop_that_do_not_fit_are_refused(
  set_flags, words, facts, said
):
  set_flags(*words)
  assert find(**facts).startswith(said)


def test_flags_of_the_loop_that_fit(set_flags):
  set_flags('--history', '--validation_steps=5', '--early_stopping_patience=2')
  assert find(num_validation_images=100) == ''
  # How many there are is not yet known.
  assert find() == ''
