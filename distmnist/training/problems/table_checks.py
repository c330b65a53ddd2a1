"""Whether the flags of a training work with its model's sparse tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli, refusals
from distmnist.common.names import STRATEGIES
from distmnist.common.refusals import Refusal
from distmnist.nn import groups as groups_lib
from distmnist.nn import optimizers, sparse_updates
from distmnist.tables import sparse_table, tables_apart
from distmnist.training.problems import keras_tables, table_memory
from distmnist.transport import strategy as strategy_lib

if TYPE_CHECKING:
  import types

  from distmnist.training.problems import problem as problem_lib

FLAGS = flags.FLAGS


def check(
  strategy: strategy_lib.Strategy, groups: Sequence[groups_lib.Group] = ()
) -> None:
  """Checks the tables of the default graph, in which the model is built.

  Raises:
    cli.UsageError: names a table, the flag that conflicts with it, and what to
      do.
  """
  tables = tf.get_collection(sparse_table.TABLES)
  if not tables:
    return
  refusals.refuse(
    (*_REFUSALS, _LEAVES_NOTHING),
    strategy=strategy,
    table=f'the sparse table {sparse_table.find_name(tables[0])!r}',
    has_others=any(
      all(v is not shard for shard in tables) for v in tf.trainable_variables()
    ),
  )
  for shard in tables:
    group = groups_lib.find(groups, groups_lib.find_name(shard))
    if _cannot_train(optimizers.choose(group, is_table=True)):
      name = sparse_table.find_name(shard)
      raise cli.UsageError(
        optimizers.show_table_optimizer(group)
        + _explain_optimizer(f'the sparse table {name!r}')
      )
  table_memory.check(strategy.cluster, groups)


def settle(
  problem: problem_lib.Problem, strategy: strategy_lib.Strategy
) -> None:
  """Makes --sparse_tables of a Keras model fit the other flags."""
  if problem.has_keras_model:
    keras_tables.settle(find_conflict(strategy) or find_change(problem.groups))


def describe(
  problem: problem_lib.Problem, strategy: strategy_lib.Strategy
) -> list[str]:
  """Returns lines on the large embeddings that are no tables.

  Args:
    problem: its model is built.
  """
  change = find_change(problem.groups)
  is_asked = FLAGS['sparse_tables'].present  # none was the user's word.
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


def find_change(groups: Sequence[groups_lib.Group] = ()) -> str:
  """Returns the flag by which rows move that no batch has, or ''.

  As rows of a sparse table they would stay, so that the result would differ
  from that of a variable. With a rule of their own tables are asked for, and
  differ anyway.
  """
  if tables_apart.is_wanted():
    return ''
  chosen = optimizers.choose(is_table=True)
  if chosen.weight_decay:
    return '--weight_decay'
  if chosen.optimizer in sparse_updates.LAZY:
    return optimizers.show_table_optimizer()
  for group in groups:  # Which of them the layers are in is not known yet.
    chosen = optimizers.choose(group, is_table=True)
    if chosen.weight_decay or chosen.optimizer in sparse_updates.LAZY:
      return group.shown
  return ''


def _show_rule(facts: types.SimpleNamespace) -> str:
  flag = facts.strategy.refuses_tables_with
  with_flag = f' with {flag}' if flag and not tables_apart.is_wanted() else ''
  return f'--strategy={_name(type(facts.strategy))}{with_flag}'


def _cannot_train(choice: optimizers.Choice) -> bool:
  return choice.optimizer in sparse_updates.WITHOUT


def _explain_optimizer(table: str) -> str:
  return (
    f' needs all rows of a table in each step, and cannot train {table}: '
    f'expected one of {", ".join(sorted(sparse_updates.NUM_SLOTS))}'
  )


# What does not go with a sparse table. Facts: strategy, strategy.Strategy;
# table, str, what it is called.
_REFUSALS = (
  Refusal(
    _show_rule,
    lambda f: tables_apart.is_wanted() and not f.strategy.needs_ps,
    lambda f: (
      f' has no ps, where {f.table} could be: expected one of '
      f'{", ".join(find_rules())}, or another rule with ps'
    ),
  ),
  Refusal(
    _show_rule,
    lambda f: (
      not tables_apart.is_wanted()
      and (f.strategy.refuses_tables_with or not f.strategy.takes_tables)
    ),
    lambda f: (
      ' keeps or pulls more than the rows of a batch, and cannot train '
      f'{f.table}: expected one of {", ".join(find_rules())}, or '
      '--table_strategy=async_sgd'
    ),
  ),
  Refusal(
    'ema_decay',
    lambda f: FLAGS.ema_decay,
    lambda f: (
      ' would touch all rows in each step, and does not go with '
      f'{f.table}: leave it out'
    ),
  ),
  Refusal(
    'gradient_accumulation',
    lambda f: FLAGS.gradient_accumulation != 1,
    lambda f: (
      ' looks up no rows slice by slice, and does not go with '
      f'{f.table}: leave it out'
    ),
  ),
)
# Of a model that is not built, whose tables may be in any group.
_OF_OPTIMIZER = Refusal(
  lambda f: optimizers.show_table_optimizer(),
  lambda f: _cannot_train(optimizers.choose(is_table=True)),
  lambda f: _explain_optimizer(f.table),
)
# Of a model that is built. Facts: also has_others, bool, whether it trains more
# than tables.
_LEAVES_NOTHING = Refusal(
  'table_strategy',
  lambda f: tables_apart.is_wanted() and not f.has_others,
  lambda f: (
    f' leaves nothing to --strategy: the model trains tables alone, such as '
    f'{f.table}. Take --strategy=async_sgd'
  ),
)


def find_conflict(strategy: strategy_lib.Strategy) -> str:
  """Returns which flag conflicts with tables and what to do, or ''."""
  rows = *_REFUSALS, _OF_OPTIMIZER
  return refusals.find(rows, strategy=strategy, table='a sparse table')


def find_rules() -> list[str]:
  """Returns the names of the rules that train sparse tables."""
  return sorted(
    _name(rule)
    for rule in _find_classes(strategy_lib.Strategy)
    if rule.takes_tables and rule.__module__.startswith(f'{STRATEGIES}.')
  )


def _find_classes(
  base: type[strategy_lib.Strategy],
) -> Iterator[type[strategy_lib.Strategy]]:
  for found in base.__subclasses__():
    yield found
    yield from _find_classes(found)


def _name(rule: type[strategy_lib.Strategy]) -> str:
  return rule.__module__.rpartition('.')[2]
