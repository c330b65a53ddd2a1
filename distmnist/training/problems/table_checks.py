"""Whether the flags of a training work with its model's sparse tables."""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.common.names import STRATEGIES
from distmnist.exchange import strategy as strategy_lib
from distmnist.exchange.tables import sparse_table, tables_apart
from distmnist.nn import optimizers, sparse_updates
from distmnist.training.problems import keras_tables, table_memory


def check(strategy):
  """Checks the tables of the default graph, in which the model is built.

  Args:
    strategy: strategy.Strategy.

  Raises:
    cli.UsageError: names a table, the flag that conflicts with it, and what to
      do.
  """
  tables = tf.get_collection(sparse_table.TABLES)
  if not tables:
    return
  table = f'the sparse table {sparse_table.find_name(tables[0])!r}'
  conflict = find_conflict(strategy, table)
  is_all = all(
    any(v is shard for shard in tables) for v in tf.trainable_variables()
  )
  if tables_apart.is_wanted() and is_all and not conflict:
    conflict = (
      '--table_strategy=async_sgd leaves nothing to --strategy: the model '
      f'trains tables alone, such as {table}. Take --strategy=async_sgd'
    )
  if conflict:
    raise cli.UsageError(conflict)
  table_memory.check(strategy.cluster)


def settle(problem, strategy):
  """Makes --sparse_tables of a Keras model fit the other flags.

  Args:
    problem: problem.Problem.
    strategy: strategy.Strategy.
  """
  if problem.has_keras_model:
    keras_tables.settle(find_conflict(strategy) or find_change())


def describe(problem, strategy):
  """Returns lines (list of str) on the large embeddings that are no tables.

  Args:
    problem: problem.Problem, whose model is built.
    strategy: strategy.Strategy.
  """
  change = find_change()
  is_asked = flags.FLAGS['sparse_tables'].present  # none was the user's word.
  if not change or not problem.has_keras_model or is_asked:
    return []
  if find_conflict(strategy):
    return []  # Nothing to choose: no table is possible.
  return [
    f'each step moves all of {name}: in a sparse table only the rows of a '
    f'batch would move, which is faster but not what {change} computes; '
    '--sparse_tables=large takes that'
    for name in problem.module.large_variables
  ]


def find_change():
  """Returns the flag by which rows move that no batch has, a str, or ''.

  As rows of a sparse table they would stay, so that the result would differ
  from that of a variable. With a rule of their own tables are asked for, and
  differ anyway.
  """
  if tables_apart.is_wanted():
    return ''
  optimizer, _, decay = optimizers.base_rate_from_flags()[0].partition(' with ')
  if decay:
    return decay
  is_lazy = optimizer in sparse_updates.LAZY
  return f'--optimizer={optimizer}' if is_lazy else ''


def find_conflict(strategy, table='a sparse table'):
  """Returns which flag conflicts with tables and what to do, a str, or ''.

  Args:
    strategy: strategy.Strategy.
    table: str, what they are called.
  """
  rule = _name(type(strategy))
  flag, is_apart = strategy.refuses_tables_with, tables_apart.is_wanted()
  if is_apart and not strategy.needs_ps:
    return (
      f'--strategy={rule} has no ps, where {table} could be: expected one of '
      f'{", ".join(find_rules())}, or another rule with ps'
    )
  if not is_apart and (flag or not strategy.takes_tables):
    given = f'--strategy={rule} with {flag}' if flag else f'--strategy={rule}'
    return (
      f'{given} keeps or pulls more than the rows of a batch, and cannot train '
      f'{table}: expected one of {", ".join(find_rules())}, or '
      '--table_strategy=async_sgd'
    )
  optimizer = optimizers.base_rate_from_flags()[0].split()[0]
  if optimizer in sparse_updates.WITHOUT:
    rest = set(optimizers.OPTIMIZERS) - set(sparse_updates.WITHOUT)
    return (
      f'--optimizer={optimizer} needs all rows of a table in each step, and '
      f'cannot train {table}: expected one of {", ".join(sorted(rest))}'
    )
  for flag, alone, what in (
    ('ema_decay', 0, 'would touch all rows in each step'),
    ('gradient_accumulation', 1, 'looks up no rows slice by slice'),
  ):
    value = flags.FLAGS[flag].value
    if value != alone:
      return (
        f'--{flag}={value:g} {what}, and does not go with {table}: leave it out'
      )
  return ''


def find_rules():
  """Returns the names of the rules that train sparse tables."""
  return sorted(
    _name(rule)
    for rule in _find_classes(strategy_lib.Strategy)
    if rule.takes_tables and rule.__module__.startswith(f'{STRATEGIES}.')
  )


def _find_classes(base):
  for found in base.__subclasses__():
    yield found
    yield from _find_classes(found)


def _name(rule):
  return rule.__module__.rpartition('.')[2]
