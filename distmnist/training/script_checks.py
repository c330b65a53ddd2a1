"""Refuses what a script with a loop of its own cannot ask of a task.

Of the flags of `train` run_task adopts those that it reads: the cluster, the
update rule, the optimizer, what is saved and shown. The script chooses the
rest: the data, the net, and where the training ends. A flag of that rest is
refused, unless the script itself names it, as in `FLAGS.batch_size`.
"""

from __future__ import annotations

import numbers
import os
import re
import sys
import sysconfig
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf
from absl import flags

import distmnist
from distmnist.common import cli, refusals
from distmnist.common.names import PACKAGE

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib

FLAGS = flags.FLAGS

# The modules, or their rooms, whose flags run_task reads.
_ADOPTED = (
  *('cluster.', 'common.', 'exchange.pull_ahead', 'lifecycle.'),
  *('logdir.logdirs', 'logdir.restart', 'logdir.saving', 'nn.optimizers'),
  *('nn.schedules', 'strategies.', 'tables.'),
  *('training.averages', 'training.final_report', 'training.flag_checks'),
  *('training.hooks.end_hook', 'training.hooks.save_hook'),
  *(
    'training.step',
    'training.telemetry.',
    'training.warm_start',
    'transport.',
  ),
)
# Of these modules, but for our own loop: it counts epochs.
_NOT_ADOPTED = ('lr_schedule_unit',)
OURS = os.path.dirname(os.path.realpath(distmnist.__file__)) + os.sep
LIBRARIES = tuple(
  os.path.realpath(path) + os.sep
  for path in {*map(sysconfig.get_path, ('stdlib', 'purelib', 'platlib'))}
)


def is_adopted(name: str) -> bool:
  """Whether run_task reads a flag, or it is none of distmnist's."""
  module = FLAGS.find_module_defining_flag(name) or ''
  if not module.startswith(f'{PACKAGE}.'):
    return True
  is_of_ours = module.removeprefix(f'{PACKAGE}.').startswith(_ADOPTED)
  return is_of_ours and name not in _NOT_ADOPTED


def check_flags(script: str) -> None:
  """Checks that each flag that was given has an effect.

  Args:
    script: the path of the script's file.

  Raises:
    cli.UsageError: neither run_task nor the script reads one of them.
  """
  given = [x for x in find_unread(script) if FLAGS[x].value != FLAGS[x].default]
  if given:
    verb, it = ('have', 'them') if given[1:] else ('has', 'it')
    raise cli.UsageError(
      f'{", ".join(map(refusals.show, given))} {verb} no effect in a script '
      'with a loop of its own, which chooses its data, its net and where the '
      f'training ends: leave {it} out'
    )


def find_unread(script: str) -> list[str]:
  """Returns the names of the flags for which `is_read` is false, sorted."""
  sources = _read_sources(script)
  return [x for x in sorted(FLAGS) if not (is_adopted(x) or _is_in(x, sources))]


def is_read(name: str, script: str) -> bool:
  """Whether run_task reads a flag, or a script or a module beside it does.

  Args:
    script: the path of its file; modules that it imports later are not seen.
  """
  return is_adopted(name) or _is_in(name, _read_sources(script))


def _is_in(name: str, sources: Iterable[bytes]) -> bool:
  found = re.compile(rf'[.\'"]{name}\b'.encode())
  return any(map(found.search, sources))


def _read_sources(script: str) -> list[bytes]:
  """Returns what is in a script and the modules of its folder, [bytes]."""
  folder = os.path.dirname(os.path.realpath(script)) + os.sep
  paths = {script}
  for module in list(sys.modules.values()):
    path = getattr(module, '__dict__', {}).get('__file__') or ''
    is_other = path.startswith((OURS, *LIBRARIES))
    if path.endswith('.py') and not is_other:
      paths |= {path} if os.path.realpath(path).startswith(folder) else set()
  return [_read(path) for path in paths]


def _read(path: str) -> bytes:
  try:
    with open(path, 'rb') as file:
      return file.read()
  except OSError:  # Typed in, say.
    return b''


def check_builder(build_loss: Any) -> None:
  """Raises cli.UsageError if minimize() was given no function."""
  if not callable(build_loss):
    raise cli.UsageError(
      f'minimize() was given {_describe(build_loss)}, expected the function '
      'that builds the loss, such as lambda: build_loss(x): its variables are '
      'made where the rule wants them'
    )


def take_outputs(found: Any) -> tuple[Any, dict[str, tf.Tensor] | None]:
  """Returns (loss, outputs or None) of what build_loss() gives.

  Raises:
    cli.UsageError: the outputs are no dict of tensors.
  """
  if not (isinstance(found, tuple) and len(found) == 2):
    return found, None
  loss, outputs = found
  if isinstance(outputs, dict) and all(
    isinstance(name, str) and isinstance(x, tf.Tensor)
    for name, x in outputs.items()
  ):
    return loss, outputs
  raise cli.UsageError(
    f'build_loss() gives a pair of {_describe(loss)} and {_describe(outputs)}, '
    'expected the loss, or the loss and a dict of tensors by their names'
  )


def check_loss(loss: Any) -> None:
  """Raises cli.UsageError if `loss` is not one number to minimize."""
  is_float = isinstance(loss, tf.Tensor) and loss.dtype.is_floating
  if not (is_float and loss.shape.rank in (0, None)):
    raise cli.UsageError(
      f'build_loss() gives {_describe(loss)}, expected a scalar tensor of '
      'floats, the mean over the batch'
    )


def check_session(last_step: Any, hooks: Any) -> None:
  """Raises cli.UsageError if session() cannot end or has no list of hooks."""
  if not isinstance(last_step, numbers.Integral | None):
    raise cli.UsageError(
      f'session(last_step={last_step!r}): expected a whole number of steps, '
      'or None where the loop decides'
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


def check_places(cluster: cluster_lib.Cluster) -> None:
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


def _describe(thing: Any) -> str:
  if isinstance(thing, tf.Tensor):
    return f'a tensor of {thing.dtype.name} and shape {thing.shape}'
  return f'{type(thing).__name__}'
