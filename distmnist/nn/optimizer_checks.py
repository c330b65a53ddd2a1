"""Whether the flags of the optimizers fit each other and the update rule."""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.nn import optimizers

FLAGS = flags.FLAGS
# What only one optimizer can heed.
_OF_ONE = {'ftrl_l1': 'ftrl', 'ftrl_l2': 'ftrl', 'trust_coefficient': 'lars'}
# They compute in the dtype of the weights, and divide by numbers that become 0:
# epsilon (1e-8) in float16, 1 - beta2 (0.001) in bfloat16.
_NEED_32_BITS = 'adam', 'adamw'


def check_flags(strategy):
  """Raises cli.UsageError if the optimizer flags do not fit together.

  Args:
    strategy: strategy.Strategy; it says which optimizers move something.
  """
  used = optimizers.find_used(strategy)
  local = FLAGS.local_optimizer or FLAGS.optimizer
  if strategy.has_local_steps and local == 'ftrl':
    given = 'local_optimizer' if FLAGS.local_optimizer else 'optimizer'
    raise cli.UsageError(
      f'--{given}=ftrl computes weights from its own sums, and would undo '
      "each pull of a worker's copy: give a --local_optimizer such as adagrad"
    )
  if FLAGS.weight_decay and 'ftrl' in used:
    raise cli.UsageError(
      f'--weight_decay={FLAGS.weight_decay:g} does not go with '
      '--optimizer=ftrl, which computes weights anew from its sums: take '
      '--ftrl_l2'
    )
  for name, optimizer in _OF_ONE.items():
    flag = FLAGS[name]
    if flag.value != flag.default and optimizer not in used:
      raise cli.UsageError(
        f'--{name}={flag.value:g} needs --optimizer={optimizer}, not '
        f'{" or ".join(sorted(used))}'
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
