"""Whether the flags of the optimizers fit each other and the update rule."""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.common.refusals import Refusal
from distmnist.nn import optimizers

FLAGS = flags.FLAGS
# What only one optimizer can heed.
_OF_ONE = {'ftrl_l1': 'ftrl', 'ftrl_l2': 'ftrl', 'trust_coefficient': 'lars'}
# They compute in the dtype of the weights, and divide by numbers that become 0:
# epsilon (1e-8) in float16, 1 - beta2 (0.001) in bfloat16.
_NEED_32_BITS = 'adam', 'adamw'


def _make_refusal(flag, optimizer):
  """Returns the row of a flag that only one optimizer heeds."""
  return Refusal(
    flag,
    lambda f: (
      FLAGS[flag].value != FLAGS[flag].default
      and optimizer not in optimizers.find_used(f.strategy)
    ),
    lambda f: (
      f' needs --optimizer={optimizer}, not '
      f'{" or ".join(sorted(optimizers.find_used(f.strategy)))}'
    ),
  )


def _is_local_ftrl(strategy):
  local = FLAGS.local_optimizer or FLAGS.optimizer
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
    lambda f: FLAGS.weight_decay and 'ftrl' in optimizers.find_used(f.strategy),
    ' does not go with --optimizer=ftrl, which computes weights anew from its '
    'sums: take --ftrl_l2',
  ),
  *(_make_refusal(*pair) for pair in _OF_ONE.items()),
)


def check_dtypes(strategy):
  """Raises cli.UsageError if an optimizer cannot train a variable's dtype.

  Args:
    strategy: strategy.Strategy; the trainable variables of the default graph
      are those that it trains.
  """
  used = sorted(optimizers.find_used(strategy) & {*_NEED_32_BITS})
  small = [v for v in tf.trainable_variables() if v.dtype.size < 4]
  if used and small:
    name = small[0].dtype.base_dtype.name
    given = 'optimizer' if FLAGS.optimizer in used else 'local_optimizer'
    raise cli.UsageError(
      f'--{given}={FLAGS[given].value} cannot train the variable '
      f'{small[0].op.name!r} of {name}: the small numbers that it divides by '
      'become 0 there. Make it of float32 and have the model compute with '
      f'tf.cast(..., tf.{name}), or take another optimizer, such as momentum '
      'or lamb'
    )
