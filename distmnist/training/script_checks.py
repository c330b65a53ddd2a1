"""Refuses what a script with a loop of its own cannot ask of a task."""

import numbers

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.common.refusals import Refusal

FLAGS = flags.FLAGS

# What only our own loop knows: the data, its batches, and where it begins.
_WITHOUT_EFFECT = (
  'gradient_accumulation',
  'lr_schedule_unit',
  'startup_delay_steps',
  'steps_per_run',
  'train_secs',
)


def _make_refusal(flag):
  return Refusal(
    flag,
    lambda f: FLAGS[flag].value != FLAGS[flag].default,
    ' has no effect in a script with a loop of its own, which chooses what a '
    'step reads and when the training ends: leave it out',
  )


# What asks for what a script's own loop does; they need no facts.
REFUSALS = tuple(map(_make_refusal, _WITHOUT_EFFECT))


def check_builder(build_loss):
  """Raises cli.UsageError if minimize() was given no function."""
  if not callable(build_loss):
    raise cli.UsageError(
      f'minimize() was given {_describe(build_loss)}, expected the function '
      'that builds the loss, such as lambda: build_loss(x): its variables are '
      'made where the rule wants them'
    )


def check_loss(loss):
  """Raises cli.UsageError if `loss` is not one number to minimize."""
  is_float = isinstance(loss, tf.Tensor) and loss.dtype.is_floating
  if not (is_float and loss.shape.rank in (0, None)):
    raise cli.UsageError(
      f'build_loss() gives {_describe(loss)}, expected a scalar tensor of '
      'floats, the mean over the batch'
    )


def check_session(last_step, hooks):
  """Raises cli.UsageError if session() cannot end or has no list of hooks."""
  if not isinstance(last_step, numbers.Integral):
    raise cli.UsageError(
      f'session(last_step={last_step!r}): expected a whole number of steps'
    )
  if not isinstance(hooks, list | tuple):
    raise cli.UsageError(
      f'session(hooks={_describe(hooks)}): expected a list of '
      'tf.train.SessionRunHooks'
    )
  for hook in hooks:
    if not isinstance(hook, tf.train.SessionRunHook):
      raise cli.UsageError(
        f'session(hooks=[{_describe(hook)}]): expected a '
        'tf.train.SessionRunHook'
      )


def check_places(cluster):
  """Raises cli.UsageError if a variable of all workers is on none of the ps.

  Each worker would have it for itself, and only the chief would initialise it:
  the others would wait for it at the start.
  """
  for variable in tf.global_variables() if cluster.num_ps else ():
    if '/job:ps' not in variable.device:
      raise cli.UsageError(
        f'the variable {variable.op.name!r} is made outside of build_loss(): '
        'make it there, which puts it on a ps, or with '
        'collections=[tf.GraphKeys.LOCAL_VARIABLES] if each worker is to have '
        'one of its own; a global step is task.global_step'
      )


def _describe(thing):
  if isinstance(thing, tf.Tensor):
    return f'a tensor of {thing.dtype.name} and shape {thing.shape}'
  return f'{type(thing).__name__}'
