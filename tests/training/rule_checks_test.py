"""rule_checks: what a rule of one's own returns, and is refused for."""

import contextlib
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.training import rule_checks
from distmnist.transport import strategy


class Rule:
  """Stands for a rule."""


@pytest.mark.parametrize(
  ('make_update', 'message'),
  [
    (lambda step: None, 'that it returns a strategy.Update, not NoneType'),
    (
      lambda step: strategy.Update(step.op, None, 0, 0),
      'train_op of its strategy.Update as an int64 tensor, not <tf.Operation',
    ),
    (
      lambda step: strategy.Update(step, 0.5, 0, 0),
      'staleness of its strategy.Update as an int64 tensor or None, not 0.5',
    ),
    (
      lambda step: strategy.Update(step, None, 0, 1.5),
      'bytes_pushed of its strategy.Update as an int or an int64 tensor, not 1',
    ),
  ],
)
def test_an_update_of_something_else_is_refused(
  tf_session, make_update, message
):
  update = make_update(tf.constant(1, tf.int64))
  with pytest.raises(cli.UsageError) as caught:
    rule_checks.check_update(Rule(), update)
  assert str(caught.value).startswith(f'Rule.minimize: expected {message}')


def test_an_update_passes(tf_session):
  step = tf.constant(1, tf.int64)
  rule_checks.check_update(Rule(), strategy.Update(step, None, 0, step))


def test_what_is_no_scope_is_refused():
  with pytest.raises(cli.UsageError) as caught:
    rule_checks.check_scope(Rule(), None)
  assert str(caught.value) == (
    'Rule.scope: expected that it returns a context manager, not NoneType'
  )


def test_a_scope_of_ones_own_passes(tf_session):
  scopes = [contextlib.nullcontext(), tf.variable_scope('a')]
  for scope in scopes:
    assert rule_checks.check_scope(Rule(), scope) is scope


@pytest.mark.parametrize('hooks', [None, types.SimpleNamespace(), [None]])
def test_what_are_no_hooks_is_refused(hooks):
  with pytest.raises(cli.UsageError) as caught:
    rule_checks.check_hooks(Rule(), hooks)
  name = type(hooks[0] if isinstance(hooks, list) else hooks).__name__
  assert str(caught.value) == (
    'Rule.hooks: expected that it returns a list of SessionRunHooks, not '
    + name
  )


def test_hooks_pass():
  hook = tf.train.SessionRunHook()
  assert rule_checks.check_hooks(Rule(), [hook]) == [hook]
  assert rule_checks.check_hooks(Rule(), (hook,)) == [hook]
