"""Whether optimizers, by flags or groups, fit each other and the rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.common.refusals import Refusal
from distmnist.nn import groups as groups_lib
from distmnist.nn import optimizers, sparse_updates, weight_decay
from distmnist.tables import sparse_table, tables_apart
from distmnist.transport.strategy import Strategy

FLAGS = flags.FLAGS
# What only one optimizer can heed.
_HEEDED_BY = {'ftrl_l1': 'ftrl', 'ftrl_l2': 'ftrl', 'trust_coefficient': 'lars'}
# They compute in the dtype of the weights, and divide by numbers that become 0:
# epsilon (1e-8) in float16, 1 - beta2 (0.001) in bfloat16.
_NEED_32_BITS = 'adam', 'adamw'


def _make_refusal(flag: str, optimizer: str) -> Refusal:
  """Returns the row of a flag that only one optimizer heeds."""
  return Refusal(
    flag,
    lambda f: (
      FLAGS[flag].value != FLAGS[flag].default
      and optimizer not in optimizers.find_used(f.strategy, f.groups)
    ),
    lambda f: (
      f' needs --optimizer={optimizer}, not '
      f'{" or ".join(sorted(optimizers.find_used(f.strategy, f.groups)))}'
    ),
  )


def _is_local_ftrl(strategy: Strategy) -> bool:
  local = optimizers.choose(is_local=True).optimizer
  return strategy.has_local_steps and local == 'ftrl'


_UNDOES = (
  ' computes weights from its own sums, and would undo each pull of a '
  "worker's copy: give a --local_optimizer such as adagrad"
)
# Facts: strategy, strategy.Strategy; it says which optimizers move something.
REFUSALS = (
  Refusal(
    'local_optimizer',
    lambda f: FLAGS.local_optimizer and _is_local_ftrl(f.strategy),
    _UNDOES,
  ),
  Refusal('optimizer', lambda f: _is_local_ftrl(f.strategy), _UNDOES),
  Refusal(
    'weight_decay',
    lambda f: (
      FLAGS.weight_decay
      and any(  # Tables do not decay.
        optimizers.choose(None, **move).optimizer == 'ftrl'
        for move in optimizers.find_moves(f.strategy, is_table=False)
      )
    ),
    ' does not go with --optimizer=ftrl, which computes weights anew from its '
    'sums: take --ftrl_l2',
  ),
  Refusal(
    'table_optimizer',
    lambda f: FLAGS.table_optimizer in sparse_updates.WITHOUT,
    ' needs all rows of a table in each step: expected one of '
    + ', '.join(sparse_updates.NUM_SLOTS),
  ),
)
# Facts: also groups, tuple of groups.Group, of the model.
OF_ONE = tuple(_make_refusal(*pair) for pair in _HEEDED_BY.items())


def check_variables(
  strategy: Strategy, groups: Sequence[groups_lib.Group] = ()
) -> None:
  """Checks what moves each variable that the default graph trains.

  Args:
    strategy: the rule.
    groups: of the model.

  Raises:
    cli.UsageError: an optimizer cannot train a variable; or a group does not
      go with the rule or a flag, has no variable, or says something that
      changes none of its own.
  """
  tables, members = tf.get_collection(sparse_table.TABLES), {}
  for v in tf.trainable_variables():
    name, is_table = groups_lib.find_name(v), any(v is t for t in tables)
    group = groups_lib.find(groups, name)
    members.setdefault(group, {})[name] = v, is_table
    for move in optimizers.find_moves(strategy, is_table):
      chosen = optimizers.choose(group, **move)
      if chosen.optimizer in _NEED_32_BITS and v.dtype.size < 4:
        _refuse_small(v, chosen.optimizer, group, move)
      if group and (why := _find_conflict(strategy, chosen, is_table, move)):
        raise cli.UsageError(f'{group.shown} ({chosen.optimizer}){why}')
  names = [name for found in members.values() for name in found]
  groups_lib.check_used(groups, names)
  for group in groups:
    _check_effect(strategy, group, [*members[group].values()])


def _find_conflict(
  strategy: Strategy,
  chosen: optimizers.Choice,
  is_table: bool,
  move: Mapping[str, bool],
) -> str:
  """Returns why a variable of a group cannot be so moved, a str, or ''.

  Args:
    is_table: whether it is a sparse table.
    move: the arguments of optimizers.choose that gave `chosen`.
  """
  decays = chosen.weight_decay and not is_table
  if chosen.optimizer == 'ftrl' and 'is_local' in move:
    return _UNDOES
  if chosen.optimizer == 'ftrl' and decays:
    return (
      ' computes weights anew from its sums, and does not go with a weight '
      "decay: say 'weight_decay': 0 there, and take --ftrl_l2"
    )
  needs_sgd = strategy.needs_sgd
  if is_table and tables_apart.is_wanted():
    needs_sgd = ''
  if needs_sgd and (chosen.optimizer != 'sgd' or decays):
    return (
      f' does not go with {needs_sgd}, under which all is moved by plain sgd: '
      "leave 'optimizer' and 'weight_decay' out, or the flag"
    )
  return ''


def _refuse_small(
  v: tf.Variable,
  optimizer: str,
  group: groups_lib.Group | None,
  move: Mapping[str, bool],
) -> NoReturn:
  name = v.dtype.base_dtype.name
  given = f'--optimizer={optimizer}'
  if group and group.optimizer == optimizer:
    given = f'{group.shown}: {optimizer}'
  elif move.get('is_table'):
    given = optimizers.show_table_optimizer(group)
  elif 'is_local' in move and FLAGS.local_optimizer:
    given = f'--local_optimizer={optimizer}'
  raise cli.UsageError(
    f'{given} cannot train the variable '
    f'{v.op.name!r} of {name}: the small numbers that it divides by '
    'become 0 there. Make it of float32 and have the model compute with '
    f'tf.cast(..., tf.{name}), or take another optimizer, such as momentum '
    'or lamb'
  )


def _check_effect(
  strategy: Strategy,
  group: groups_lib.Group,
  members: Sequence[tuple[tf.Variable, bool]],
) -> None:
  """Raises cli.UsageError if a group says what changes none of its variables.

  Args:
    members: (tf.Variable, whether it is a sparse table), its own.
  """
  least = 0 if FLAGS.decay_biases else 2
  if group.weight_decay and not any(
    weight_decay.decays(v, least) and not is_table for v, is_table in members
  ):
    raise cli.UsageError(
      f'{group.shown}: a weight decay moves none of its variables, which are '
      'sparse tables or of rank 0 or 1 (--decay_biases is for those): leave it '
      'out'
    )
  if group.optimizer and not any(
    optimizers.choose(group, **move).optimizer == group.optimizer
    for _, is_table in members
    for move in optimizers.find_moves(strategy, is_table)
  ):
    raise cli.UsageError(
      f'{group.shown}: {group.optimizer} moves nothing, as all are moved by '
      f'--local_optimizer={FLAGS.local_optimizer}: leave one of them out'
    )
