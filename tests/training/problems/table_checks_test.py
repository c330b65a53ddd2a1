"""table_checks: what does not go with sparse tables is one line each."""

import types

import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli, registry
from distmnist.common.names import STRATEGIES
from distmnist.nn import layers
from distmnist.training.problems import table_checks

ONE_WORKER = cluster_lib.make_cluster(('p:1',), ('w:1',), 'worker', 0)
RULES = [
  *('async_sgd', 'dc_asgd', 'drop_stale', 'ringmaster'),
  *('ssp', 'staleness_aware', 'sync_sgd'),
]


def check(name, cluster=ONE_WORKER, rows=100):
  layers.embedding(tf.constant([1]), rows, 2, 'users')
  rule = registry.load(STRATEGIES, name).make(cluster)
  table_checks.check(rule)


@pytest.mark.parametrize('name', ['async_sgd', 'sync_sgd'])
def test_rules_that_train_tables(tf_session, set_flags, name):
  set_flags('--optimizer=adagrad')
  check(name)
  assert table_checks.find_rules() == RULES


@pytest.mark.parametrize(
  ('rule', 'words', 'message'),
  [
    (
      'easgd',
      [],
      '--strategy=easgd keeps or pulls more than the rows of a batch, and '
      f"cannot train the sparse table 'users': expected one of "
      f'{", ".join(RULES)}',
    ),
    (
      'async_sgd',
      ['--pull_ahead=1'],
      '--strategy=async_sgd with --pull_ahead=1 keep',
    ),
    (
      'sync_sgd',
      ['--sync_barrier=shard'],
      '--strategy=sync_sgd with --sync_barrier=shard keep',
    ),
    (
      'dc_asgd',
      ['--dc_adaptive'],
      '--strategy=dc_asgd with --dc_adaptive keep',
    ),
    (
      'async_sgd',
      ['--optimizer=lamb'],
      '--optimizer=lamb needs all rows of a table in each step, and cannot tra',
    ),
    (
      'async_sgd',
      ['--ema_decay=0.9'],
      '--ema_decay=0.9 would touch all rows in each step, and does not go with '
      "the sparse table 'users': leave it out",
    ),
    (
      'sync_sgd',
      ['--gradient_accumulation=2'],
      '--gradient_accumulation=2 looks up no rows slice by slice',
    ),
  ],
)
def test_what_does_not_go_with_a_table(
  tf_session, set_flags, rule, words, message
):
  set_flags(*words)
  with pytest.raises(cli.UsageError) as caught:
    check(rule)
  assert str(caught.value).startswith(message)


@pytest.mark.parametrize('rows', [100, layers.NewRows(100)])
def test_a_rule_of_their_own_lets_any_rule_with_ps_have_tables(
  tf_session, set_flags, rows
):
  set_flags('--table_strategy=async_sgd')
  tf.get_variable('w', [2])
  check('easgd', rows=rows)


_NOTHING_LEFT = 'leaves nothing to --strategy: the model trains tables alone'


@pytest.mark.parametrize(
  ('rule', 'rows', 'message'),
  [
    ('easgd', 100, _NOTHING_LEFT),
    ('easgd', layers.NewRows(100), _NOTHING_LEFT),
    ('ring_allreduce', 100, 'ring_allreduce has no ps, where the sparse table'),
  ],
)
def test_what_a_rule_of_their_own_does_not_go_with(
  tf_session, set_flags, rule, rows, message
):
  set_flags('--table_strategy=async_sgd')
  cluster = ONE_WORKER
  if rule == 'ring_allreduce':
    cluster = cluster_lib.make_cluster((), ('w:1', 'v:1'), 'worker', 0)
  with pytest.raises(cli.UsageError, match=message):
    check(rule, cluster, rows)


def test_without_a_table_nothing_is_asked(tf_session, set_flags):
  set_flags('--ema_decay=0.9')
  table_checks.check(registry.load(STRATEGIES, 'easgd').make(ONE_WORKER))


@pytest.mark.parametrize(
  ('rule', 'is_keras', 'asked', 'value'),
  [
    ('easgd', True, 'auto', 'none'),
    ('easgd', True, 'all', 'all'),
    ('easgd', False, 'auto', 'auto'),
    ('async_sgd', True, 'auto', 'auto'),
  ],
)
def test_layers_of_keras_are_tables_where_the_rule_takes_them(
  set_flags, rule, is_keras, asked, value
):
  set_flags('--optimizer=adagrad', f'--sparse_tables={asked}')
  table_checks.settle(
    types.SimpleNamespace(has_keras_model=is_keras, groups=()),
    registry.load(STRATEGIES, rule).make(ONE_WORKER),
  )
  assert flags.FLAGS.sparse_tables == value


def load_async_sgd():
  return registry.load(STRATEGIES, 'async_sgd').make(ONE_WORKER)


# Which of them move a weight whose gradient is 0.
@pytest.mark.parametrize(
  ('words', 'change'),
  [
    (['--optimizer=sgd'], ''),
    (['--optimizer=adagrad'], ''),
    (['--optimizer=ftrl'], ''),
    (['--optimizer=sgd', '--weight_decay=0.1'], '--weight_decay'),
    (['--optimizer=momentum'], '--optimizer=momentum'),
    (['--optimizer=nesterov'], '--optimizer=nesterov'),
    (['--optimizer=rmsprop'], '--optimizer=rmsprop'),
    (['--optimizer=adam'], '--optimizer=adam'),
    (['--optimizer=adamw', '--weight_decay=0'], '--optimizer=adamw'),
    (['--optimizer=adam', '--table_strategy=async_sgd'], ''),
    (['--optimizer=adamw', '--table_optimizer=adagrad'], ''),
    (['--table_optimizer=adam'], '--table_optimizer=adam'),
  ],
)
def test_where_a_table_would_change_the_weights_layers_of_keras_are_none(
  set_flags, words, change
):
  set_flags(*words)
  model = types.SimpleNamespace(large_variables=['users', 'ads'])
  problem = types.SimpleNamespace(has_keras_model=True, module=model, groups=())
  strategy = load_async_sgd()
  table_checks.settle(problem, strategy)
  assert flags.FLAGS.sparse_tables == ('none' if change else 'auto')
  lines = table_checks.describe(problem, strategy)
  assert len(lines) == (2 if change else 0)
  for name, line in zip(model.large_variables, lines, strict=False):
    assert f'all of {name}: ' in line
    assert f' what {change} computes; ' in line


@pytest.mark.parametrize('asked', ['large', 'none'])
def test_what_is_asked_for_is_not_settled_and_has_no_line(set_flags, asked):
  set_flags('--optimizer=adam', f'--sparse_tables={asked}')
  model = types.SimpleNamespace(large_variables=['users'])
  problem = types.SimpleNamespace(has_keras_model=True, module=model, groups=())
  strategy = load_async_sgd()
  table_checks.settle(problem, strategy)
  assert flags.FLAGS.sparse_tables == asked
  assert not table_checks.describe(problem, strategy)
