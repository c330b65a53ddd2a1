"""Optimizers and gradient clipping, by flags and by groups of variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.nn import formulas, schedules
from distmnist.nn import groups as groups_lib
from distmnist.nn import optimizer as optimizer_lib
from distmnist.nn import plateau as plateau_lib
from distmnist.nn import weight_decay as weight_decay_lib
from distmnist.tables import shard_slices, sparse_table, tables_apart
from distmnist.transport.strategy import Strategy

OPTIMIZERS = tuple(formulas.KINDS)

# As in PyTorch's AdamW and the LAMB authors' program; 0 for the others.
_DECAYS = {'adamw': 0.01, 'lamb': 0.01}

_OPTIMIZER = flags.DEFINE_enum(
  'optimizer', 'sgd', OPTIMIZERS, 'The optimizer that applies the gradients.'
)
_LEARNING_RATE = flags.DEFINE_float(
  'learning_rate', 0.01, 'Learning rate at step 0.', lower_bound=0
)
_LOCAL_OPTIMIZER = flags.DEFINE_enum(
  'local_optimizer',
  None,
  OPTIMIZERS,
  "The optimizer of a worker's own copy, under a strategy that has local "
  'steps. By default --optimizer.',
)
_LOCAL_LEARNING_RATE = flags.DEFINE_float(
  'local_learning_rate',
  None,
  'Learning rate of --local_optimizer at step 0, under --lr_schedule. By '
  'default --learning_rate.',
  lower_bound=0,
)
_TABLE_OPTIMIZER = flags.DEFINE_enum(
  'table_optimizer',
  None,
  OPTIMIZERS,
  'The optimizer of the sparse tables on the ps, other than lars and lamb. By '
  'default --optimizer.',
)
_TABLE_LEARNING_RATE = flags.DEFINE_float(
  'table_learning_rate',
  None,
  'Learning rate of the sparse tables at step 0, under --lr_schedule. By '
  'default --learning_rate.',
  lower_bound=0,
)
_MOMENTUM = flags.DEFINE_float(
  'momentum',
  0.9,
  'momentum, nesterov, rmsprop, lars: the momentum; 0 for none.',
  lower_bound=0,
  upper_bound=1,
)
_WEIGHT_DECAY = flags.DEFINE_float(
  'weight_decay',
  None,
  'Decoupled weight decay: each update also shrinks a weight by this fraction '
  'times the learning rate, except for biases and whatever else has rank 0 or '
  '1. By default 0.01 with --optimizer=adamw and lamb, else 0. lars and lamb '
  'include it in what they scale.',
  lower_bound=0,
)
_DECAY_BIASES = flags.DEFINE_bool(
  'decay_biases',
  False,
  'sgd, momentum, nesterov, adam, adamw, adagrad, rmsprop: --weight_decay also '
  "shrinks what has rank 0 or 1, as in Keras's and PyTorch's optimizers.",
)
_CLIP_NORM = flags.DEFINE_float(
  'clip_norm',
  None,
  "Scale a worker's gradients down to this global L2 norm, above 0, where "
  'they exceed it. By default they are left as they are.',
  lower_bound=0,
)
flags.register_validator(
  'clip_norm',
  lambda norm: norm is None or norm > 0,
  'expected a norm above 0: 0 would make every gradient 0. Leave the flag out '
  'to clip nothing',
)
_EPSILON = flags.DEFINE_float(
  'epsilon',
  None,
  'adam, adamw, rmsprop: what keeps a step finite where gradients are 0. It is '
  'added to the root of their mean square, by default 1e-8, or with rmsprop to '
  'the mean square itself, by default 1e-10.',
  lower_bound=0,
)
_FIRST_MEAN_SQUARE = flags.DEFINE_float(
  'first_mean_square',
  1,
  'rmsprop: the mean square of the gradients before the first step. 1 is '
  "TensorFlow 1's; Keras and PyTorch begin with 0.",
  lower_bound=0,
)
_FTRL_L1 = flags.DEFINE_float(
  'ftrl_l1',
  0,
  'L1 penalty of --optimizer=ftrl, by which weights become exactly 0.',
  lower_bound=0,
)
_FTRL_L2 = flags.DEFINE_float(
  'ftrl_l2', 0, 'L2 penalty of --optimizer=ftrl.', lower_bound=0
)
_TRUST_COEFFICIENT = flags.DEFINE_float(
  'trust_coefficient',
  0.001,
  'eta of --optimizer=lars: the rate of a layer is --learning_rate times this '
  'times the norm of its weights over that of their gradient.',
  lower_bound=0,
)
_USE_LOCKING = flags.DEFINE_bool(
  'use_locking',
  False,
  'Lock a variable while it is updated. Without it two asynchronous updates '
  'of one shard may interleave, except those of rows of sparse tables.',
)


def make_optimizer(
  name: str,
  learning_rate: float | tf.Tensor,
  momentum: float = 0.9,
  weight_decay: float = 0.0,
  clip_norm: float | None = None,
  decay_biases: bool = False,
  use_locking: bool = False,
  is_rate_read_first: bool = False,
  has_scope: bool = True,
  **own: float,
) -> optimizer_lib.Optimizer:
  """Returns a new optimizer.Optimizer, a tf.train.Optimizer.

  Args:
    name: one of OPTIMIZERS.
    learning_rate: float or float32 scalar tensor.
    momentum: float in 0..1, for momentum, nesterov, rmsprop and lars.
    weight_decay: for all but ftrl.
    clip_norm, decay_biases, use_locking, is_rate_read_first, has_scope: see
      optimizer.Optimizer.
    **own: what only some have; see formulas.make.
  """
  formula = formulas.make(name, momentum, weight_decay, **own)
  if isinstance(formula, formulas.LayerFormula):
    weight_decay = 0  # It is part of the formula.
  return optimizer_lib.Optimizer(
    formula,
    learning_rate,
    clip_norm=clip_norm,
    weight_decay=weight_decay,
    decay_biases=decay_biases,
    use_locking=use_locking,
    is_rate_read_first=is_rate_read_first,
    has_scope=has_scope,
  )


def from_flags(
  global_step: tf.Variable,
  batches_per_gradient: int = 1,
  epochs_per_update: float = 1.0,
  last_step: int | None = None,
  build_rate: Callable[[tf.Tensor, tf.Tensor], tf.Tensor | None] | None = None,
  groups: Sequence[groups_lib.Group] = (),
) -> tuple[Callable[..., tf.train.Optimizer], tf.Tensor]:
  """Returns (make_optimizer, learning_rate).

  Args:
    global_step: int64 scalar variable.
    batches_per_gradient, epochs_per_update, last_step: see
      schedules.from_flags.
    build_rate: callable(step, epoch) -> float32 scalar tensor, a problem's own
      rate in place of the flags', or None if it has none; see
      problem.Problem.learning_rate. None for the flags'.

  Returns:
    make_optimizer: callable(is_local=False, rate_factor=None, is_apart=False)
      -> a new tf.train.Optimizer; see strategy.Strategy.minimize. is_apart:
      bool, whether it is for tables_apart.py.
    learning_rate: float32 scalar tensor, the center's.
  """
  schedule = schedules.from_flags(
    batches_per_gradient, epochs_per_update, last_step
  )
  plateau = None
  if schedule.name == 'plateau':
    plateau = plateau_lib.Plateau(global_step, schedule.decay_rate)

  def build(rate: float) -> tf.Tensor:
    if build_rate is not None:
      step = tf.convert_to_tensor(global_step)
      epoch = tf.cast(step, tf.float32) * epochs_per_update
      own = build_rate(step, epoch)
      if own is not None:
        return own
    return schedule.build(global_step, rate, plateau)

  # The center's rate is computed on its ps: an update that holds the center's
  # lock must not wait for a number from the worker.
  with tf.device(global_step.device):
    learning_rate = table_rate = build(_LEARNING_RATE.value)
    if _TABLE_LEARNING_RATE.value is not None:
      table_rate = build(_TABLE_LEARNING_RATE.value)

  def make(
    is_local: bool = False,
    rate_factor: tf.Tensor | None = None,
    is_apart: bool = False,
  ) -> tf.train.Optimizer:
    rate = rate_of_tables = learning_rate
    if is_local:  # No copy of a table is kept.
      local_rate = _LOCAL_LEARNING_RATE.value
      rate = build(_LEARNING_RATE.value if local_rate is None else local_rate)
    if rate_factor is not None:
      rate = rate_of_tables = rate * rate_factor
    if table_rate is not learning_rate:
      rate_of_tables = table_rate
      if rate_factor is not None:
        rate_of_tables *= rate_factor

    def make_one(
      group: groups_lib.Group | None = None, is_table: bool = False
    ) -> optimizer_lib.Optimizer:
      chosen = choose(group, is_table, is_local)
      return make_optimizer(
        chosen.optimizer,
        _scale(rate_of_tables if is_table else rate, chosen.factor),
        momentum=_MOMENTUM.value,
        weight_decay=chosen.weight_decay,
        clip_norm=_CLIP_NORM.value,
        decay_biases=_DECAY_BIASES.value,
        use_locking=_USE_LOCKING.value,
        is_rate_read_first=is_local,
        has_scope=is_local or is_apart,
        **_own_of(chosen.optimizer),
      )

    first = make_one()
    if not groups and (is_local or not are_tables_different()):
      return first
    members = {
      (group, is_table): make_one(group, is_table)
      for group in (None, *groups)
      for is_table in (False, True)
    }
    members[None, False] = first
    tables = _find_tables()

    def find_member(variable: tf.Variable) -> optimizer_lib.Optimizer:
      name = groups_lib.find_name(variable)
      return members[groups_lib.find(groups, name), name in tables]

    return groups_lib.GroupedOptimizer(first, members.values(), find_member)

  return make, learning_rate


class Choice(NamedTuple):
  """The optimizer, factor and decay by which a variable is moved.

  Attributes:
    optimizer: one of OPTIMIZERS.
    factor: what the scheduled rate is multiplied by.
    weight_decay: fraction of the weights, times the rate.
  """

  optimizer: str
  factor: float
  weight_decay: float


def choose(
  group: groups_lib.Group | None = None,
  is_table: bool = False,
  is_local: bool = False,
) -> Choice:
  """Returns how a variable is moved, by its group and else by the flags.

  Args:
    group: that of the variable, or None.
    is_table: whether it is a sparse table.
    is_local: whether it is a worker's copy; else the center.
  """
  name = (group and group.optimizer) or _OPTIMIZER.value
  if is_local:
    name = _LOCAL_OPTIMIZER.value or name
  elif is_table and not (group and group.optimizer):
    name = _TABLE_OPTIMIZER.value or name
  decay = _weight_decay_of(name)
  if group and group.weight_decay is not None:
    decay = group.weight_decay
  return Choice(name, group.factor if group else 1.0, decay)


def show_table_optimizer(group: groups_lib.Group | None = None) -> str:
  """Returns how the optimizer of a sparse table is given."""
  name = choose(group, is_table=True).optimizer
  if group and group.optimizer:
    return f'{group.shown} ({name})'
  return f'--{"table_" if _TABLE_OPTIMIZER.value else ""}optimizer={name}'


def are_tables_different() -> bool:
  """Whether flags give sparse tables an optimizer or a rate of their own."""
  has_rate = _TABLE_LEARNING_RATE.value is not None
  return has_rate or _TABLE_OPTIMIZER.value is not None


def find_moves(strategy: Strategy, is_table: bool) -> list[dict[str, bool]]:
  """Returns the arguments of `choose` for the optimizers that move a variable.

  Args:
    strategy: the rule.
    is_table: whether it is a sparse table.
  """
  if is_table and tables_apart.is_wanted():
    return [{'is_table': True}]
  moves = []
  if strategy.has_center_optimizer:
    moves.append({'is_table': is_table})
  if strategy.has_local_steps:
    moves.append({'is_local': True})
  return moves


def _scale(rate: tf.Tensor, factor: float) -> float | tf.Tensor:
  if factor == 1:
    return rate
  number = tf.get_static_value(rate)
  if number is not None:
    return float(number) * factor
  with tf.device(rate.device):
    return rate * factor


def _find_tables() -> set[str]:
  """Returns the whole names of the sparse tables of the model."""
  with tf.init_scope():  # An update may be in a branch of a tf.cond.
    shards = tf.get_collection(sparse_table.TABLES)
  return {shard_slices.find_place(shard)[0] for shard in shards}


def _own_of(name: str) -> dict[str, float]:
  """Returns `own` of make_optimizer, a dict, as the flags say."""
  if name == 'ftrl':
    return {'l1': _FTRL_L1.value, 'l2': _FTRL_L2.value}
  if name == 'lars':
    return {'trust_coefficient': _TRUST_COEFFICIENT.value}
  own = {}
  if name in ('adam', 'adamw', 'rmsprop') and _EPSILON.value is not None:
    own['epsilon'] = _EPSILON.value
  if name == 'rmsprop':
    own['first_mean_square'] = _FIRST_MEAN_SQUARE.value
  return own


def _weight_decay_of(name: str) -> float:
  if _WEIGHT_DECAY.value is None:
    return _DECAYS.get(name, 0)
  return _WEIGHT_DECAY.value


def base_rate_from_flags() -> tuple[str, float]:
  """Returns (--optimizer, --learning_rate); 'sgd' has no weight decay."""
  return _describe(_OPTIMIZER.value), _LEARNING_RATE.value


def find_used(
  strategy: Strategy, groups: Iterable[groups_lib.Group] = ()
) -> set[str]:
  """Returns the names of the optimizers that may move something."""
  return {
    choose(group, **move).optimizer
    for group in (None, *groups)
    for is_table in (False, True)
    for move in find_moves(strategy, is_table)
  }


def local_name_from_flags() -> str:
  """Returns the optimizer of a worker's copy; 'sgd' has no weight decay."""
  return _describe(_LOCAL_OPTIMIZER.value or _OPTIMIZER.value)


def _describe(name: str) -> str:
  return f'{name} with --weight_decay' if _weight_decay_of(name) else name


def describe_variables(
  strategy: Strategy, groups: Sequence[groups_lib.Group]
) -> dict[str, str]:
  """Returns {whole name: what moves it} of all that the default graph trains.

  It is empty where all are moved alike.
  """
  tables = _find_tables()
  if not groups and not (tables and are_tables_different()):
    return {}
  told = {}
  for variable in tf.trainable_variables():
    name = groups_lib.find_name(variable)
    group, is_table = groups_lib.find(groups, name), name in tables
    decays = weight_decay_lib.decays(variable, 0 if _DECAY_BIASES.value else 2)
    told[name] = '; '.join(
      ('local: ' if 'is_local' in move else '')
      + _describe_choice(choose(group, **move), is_table, decays)
      for move in find_moves(strategy, is_table)
    )
  return told


def _describe_choice(choice: Choice, is_table: bool, decays: bool) -> str:
  words = [choice.optimizer]
  if is_table and _TABLE_LEARNING_RATE.value is not None:
    words.append(f'--table_learning_rate={_TABLE_LEARNING_RATE.value:g}')
  if choice.factor != 1:
    words.append(f'{choice.factor:g} times the rate')
  if choice.weight_decay and decays and not is_table:
    words.append(f'weight decay {choice.weight_decay:g}')
  return ', '.join(words)
