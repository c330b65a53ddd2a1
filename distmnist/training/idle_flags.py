"""Given flags that are for another rule, net, ... than chosen.

The help text of a flag begins with what it is for, such as `bmuf:` or `mlp,
dnn:`, the values of --strategy, --model, --lr_schedule or --optimizer, perhaps
with a switch (`dc_asgd with --dc_adaptive:`). Under another value, or without
the switch, a flag has no effect, nor has one of the images if --problem is
another. That is no mistake where flags are shared by several trainings (a sweep
over rules, a --flagfile), but it may be one elsewhere: a rate for each worker,
and the rule forgotten that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common.names import PACKAGE
from distmnist.nn import optimizers
from distmnist.tables import sparse_table, tables_apart

if TYPE_CHECKING:
  from distmnist.nn import groups as groups_lib
  from distmnist.training.problems import problem as problem_lib
  from distmnist.transport import strategy as strategy_lib

FLAGS = flags.FLAGS
_CHOICES = 'strategy', 'model', 'lr_schedule', 'optimizer'
# absl puts the values of an enum flag before its help text.
_FOR = re.compile(r'(?:<.*?>: )?((?:\w+, )*\w+)(?: with --(\w+))?: ')
# The modules whose flags are for images.
_OF_IMAGES = tuple(
  f'{PACKAGE}.{name}'
  for name in ('problems.images', 'data.image_ops', 'datasets.', 'models.')
)
_LOCAL = 'local_optimizer', 'local_learning_rate'
_OF_TABLES = 'table_optimizer', 'table_learning_rate'


def describe(
  rule: str,
  strategy: strategy_lib.Strategy,
  has_model: bool = True,
  problem: problem_lib.Problem | None = None,
  groups: Sequence[groups_lib.Group] = (),
) -> list[str]:
  """Returns a line for each flag that is for something else.

  Args:
    rule: the name of the strategy.
    has_model: whether --model is trained.
    problem: problem.Problem that is trained in its place.
  """
  given, lines = _find_given(), []
  for choice in _CHOICES:
    parser = FLAGS[choice].parser
    is_enum = isinstance(parser, flags.EnumParser)
    values = set(parser.enum_values if is_enum else ())
    chosen = {str(FLAGS[choice].value)}
    if choice == 'strategy':
      chosen = {rule}
    elif choice == 'optimizer':
      chosen = optimizers.find_used(strategy, groups)
    for flag in given:
      found = _FOR.match(flag.help or '')
      if not found:
        continue
      names = found[1].split(', ')
      is_known = values.issuperset(names) and (has_model or choice != 'model')
      if is_known and chosen.isdisjoint(names):
        lines.append(
          f'{_show(flag)} is for --{choice}={", ".join(names)}, and this is '
          f'{" and ".join(sorted(chosen))}'
        )
      elif is_known and found[2] and not FLAGS[found[2]].value:
        lines.append(f'{_show(flag)} has no effect without --{found[2]}')
  if not strategy.has_local_steps:
    lines += [
      f'{_show(flag)} is for strategies with local steps, and {rule} has none'
      for flag in given
      if flag.name in _LOCAL
    ]
  if not tf.get_collection(sparse_table.TABLES):
    lines += [
      f'{_show(flag)} is for sparse tables, and the model has none'
      for flag in given
      if flag.name in _OF_TABLES
    ]
  lines += _describe_center(rule, strategy, given)
  if problem and not has_model:
    # Its own code may read them.
    source = problem.read_source()
    lines += [
      f'{_show(flag)} is for images, and this is --problem={problem.describe()}'
      for flag in given
      if _find_module(flag.name).startswith(_OF_IMAGES)
      and not re.search(rf'[.\'"]{flag.name}\b'.encode(), source)
    ]
  return lines


def _describe_center(
  rule: str, strategy: strategy_lib.Strategy, given: Sequence[flags.Flag]
) -> list[str]:
  """Returns the lines on what only an optimizer of the center could heed."""
  if strategy.has_center_optimizer or tables_apart.is_wanted():
    return []
  return [
    f'{_show(flag)} is for the center, which {rule} alone moves, and '
    f'--local_{flag.name} is given'
    for flag in given
    if f'local_{flag.name}' in _LOCAL
    and FLAGS[f'local_{flag.name}'].value is not None
  ]


def _find_given() -> list[flags.Flag]:
  """Returns our flags that are not as by default, sorted by name."""
  return [
    FLAGS[name]
    for name in sorted(FLAGS)
    if FLAGS[name].value != FLAGS[name].default
    and _find_module(name).startswith(f'{PACKAGE}.')
  ]


def _find_module(name: str) -> str:
  return FLAGS.find_module_defining_flag(name) or ''


def _show(flag: flags.Flag) -> str:
  return flag.serialize().splitlines()[0]
