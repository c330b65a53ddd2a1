import re
import types

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli, registry
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
  choice = flag_checks.check_without_data(CLUSTER)
  assert (choice.rule, choice.plan, choice.traced_steps) == (
    'async_sgd',
    None,
    [],
  )


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
