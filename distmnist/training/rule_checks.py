"""What a rule's methods return: a mistake there is named in one line."""

from __future__ import annotations

import contextlib
import numbers
from typing import Any, NoReturn

import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.transport import strategy as strategy_lib

_BYTES = numbers.Integral, 'an int or an int64 tensor'
# Of strategy.Update: what each field may be besides an int64 tensor, in words.
_FIELDS = {
  'train_op': ((), 'an int64 tensor'),
  'staleness': (type(None), 'an int64 tensor or None'),
  'bytes_pulled': _BYTES,
  'bytes_pushed': _BYTES,
}


def check_scope(
  strategy: strategy_lib.Strategy, scope: Any
) -> contextlib.AbstractContextManager:
  """Checks and returns what `strategy.scope` returned.

  Raises:
    cli.UsageError: it is no context.
  """
  if not isinstance(scope, contextlib.AbstractContextManager):
    _refuse(strategy, 'scope', 'a context manager', scope)
  return scope


def check_hooks(
  strategy: strategy_lib.Strategy, hooks: Any
) -> list[tf.train.SessionRunHook]:
  """Checks what `strategy.hooks` returned; returns it as a list.

  Raises:
    cli.UsageError: it is no list of SessionRunHook.
  """
  if not isinstance(hooks, (list, tuple)):
    _refuse(strategy, 'hooks', 'a list of SessionRunHooks', hooks)
  for hook in hooks:
    if not isinstance(hook, tf.train.SessionRunHook):
      _refuse(strategy, 'hooks', 'a list of SessionRunHooks', hook)
  return list(hooks)


def check_update(strategy: strategy_lib.Strategy, update: Any) -> None:
  """Checks what `strategy.minimize` returned.

  Raises:
    cli.UsageError: it is no strategy.Update, or one of something else.
  """
  if not isinstance(update, strategy_lib.Update):
    _refuse(strategy, 'minimize', 'a strategy.Update', update)
  for name, value in update._asdict().items():
    kinds, expected = _FIELDS[name]
    is_int64 = tf.is_tensor(value) and value.dtype.base_dtype == tf.int64
    if not (is_int64 or isinstance(value, kinds)):
      raise cli.UsageError(
        f'{type(strategy).__name__}.minimize: expected {name} of its '
        f'strategy.Update as {expected}, not {value!r:.80}'
      )


def _refuse(
  strategy: strategy_lib.Strategy, method: str, expected: str, found: Any
) -> NoReturn:
  raise cli.UsageError(
    f'{type(strategy).__name__}.{method}: expected that it returns {expected}, '
    f'not {type(found).__name__}'
  )
