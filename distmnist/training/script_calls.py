"""What a classic script calls for its cluster, while its task runs.

Such a script makes a Server, and a session by MonitoredTrainingSession or a
Supervisor. A task has both: it gives its session for the first, and one line
says what to write in place of the others. Calls of our own are left alone.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.common.names import PACKAGE

if TYPE_CHECKING:
  from distmnist.training import own_loop

_log = logging.getLogger(__name__)

_SESSION = 'MonitoredTrainingSession'
_INSTEAD = {
  'Server': 'leave it out: run_task serves, and a ps ends by itself',
  'Supervisor': (
    'write `with task.session(last_step) as session:` in place of its '
    'managed_session(), and session.should_stop()'
  ),
  'SyncReplicasOptimizer': (
    'leave it out, and its hook: --strategy=sync_sgd does this, with '
    '--replicas_to_aggregate, and task.minimize(build_loss) makes the step'
  ),
}
# What a task takes from flags.
_BY_FLAGS = {
  'checkpoint_dir': '--logdir',
  'summary_dir': '--logdir',
  'save_checkpoint_secs': '--save_secs',
  'save_checkpoint_steps': '--save_steps',
  'save_summaries_secs': '--summary_steps',
  'save_summaries_steps': '--summary_steps',
}


@contextlib.contextmanager
def taken_over(task: own_loop.WorkerTask) -> Iterator[None]:
  """Has tf.train's functions for a cluster act for `task` in the block."""
  made = {name: _make_refusal(name) for name in _INSTEAD}
  made[_SESSION] = functools.partial(open_session, task)
  before = {name: getattr(tf.train, name) for name in made}
  try:
    for name, call in made.items():
      setattr(tf.train, name, _keep_ours(before[name], call))
    yield
  finally:
    for name, call in before.items():
      setattr(tf.train, name, call)


def _keep_ours(before: Callable, call: Callable) -> Callable:
  @functools.wraps(before, updated=())
  def choose(*args: Any, **kwargs: Any) -> Any:
    caller = sys._getframe(1).f_globals.get('__name__', '')
    is_ours = caller.startswith(f'{PACKAGE}.')
    return (before if is_ours else call)(*args, **kwargs)

  return choose


def _make_refusal(name: str) -> Callable[..., NoReturn]:
  def refuse(*args: Any, **kwargs: Any) -> NoReturn:
    del args, kwargs
    raise RuntimeError(f'tf.train.{name} in a task: {_INSTEAD[name]}')

  return refuse


def open_session(task: own_loop.WorkerTask, *args: Any, **kwargs: Any) -> Any:
  """Returns task.session() for the arguments of MonitoredTrainingSession.

  A StopAtStepHook gives its last step; without one the loop decides. Hooks and
  the config are taken over; where and when to save is told by flags.
  """
  call = inspect.signature(inspect.unwrap(tf.train.MonitoredTrainingSession))
  given = call.bind(*args, **kwargs).arguments
  if given.get('scaffold') is not None:
    raise RuntimeError(
      'MonitoredTrainingSession(scaffold=...) in a task: the task has its own, '
      'which restores from --logdir; leave it out, and run what it would '
      'initialise within the session'
    )
  of_chief = given.get('chief_only_hooks') if task.is_chief else None
  hooks = [*(given.get('hooks') or ()), *(of_chief or ())]
  by_flags = {
    name: flag
    for name, flag in _BY_FLAGS.items()
    if given.get(name) is not None
  }
  if by_flags and task.is_chief:
    _log.info(
      f'{_SESSION}({", ".join(by_flags)}) has no effect in a task, which takes '
      f'this from {", ".join(dict.fromkeys(by_flags.values()))}'
    )
  last_step, kept = None, []
  for hook in hooks:
    if not isinstance(hook, tf.train.StopAtStepHook):
      kept.append(hook)
      continue
    last_step = tf_internals.get_last_step(hook)
    if last_step is None:
      raise RuntimeError(
        'StopAtStepHook(num_steps=...) in a task: expected last_step=, the '
        'global step at which all workers end, also after a restart'
      )
  return task.session(last_step, kept, given.get('config'))
