"""variable_checks: what no rule could train is refused when a step is built."""

import re

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.common import cli, registry
from distmnist.common.names import STRATEGIES
from distmnist.training import step as step_lib


def build_with(make_variable, name, num_ps):
  """Builds the step of a loss that also uses what `make_variable` makes."""
  ps_hosts = tuple(f'p{i}:1' for i in range(num_ps))
  member = cluster.make_cluster(ps_hosts, ('w0:1',), 'worker', 0)

  def build_loss(state):
    del state
    return tf.get_variable('a', []) + tf.cast(make_variable(), tf.float32), {}

  with tf.Graph().as_default():
    rule = registry.load(STRATEGIES, name).make(member)
    return step_lib.build_step_of(member, rule, build_loss)


def make_by_itself():
  return tf.Variable(1.0, name='b')


def make_int():
  return tf.get_variable('n', [], tf.int64, tf.zeros_initializer())


def make_constrained():
  return tf.get_variable('c', [], constraint=tf.nn.relu)


@pytest.mark.parametrize('name', ['async_sgd', 'agn', 'sync_sgd'])
@pytest.mark.parametrize(
  'make_variable, message',
  [
    (
      make_by_itself,
      "the variable 'b' is made by a Keras layer, ",
    ),
    (
      make_int,
      "the variable 'n' is of int64, and no gradient moves it: make it with "
      'trainable=False, or of floats',
    ),
    (make_constrained, "the variable 'c' has a constraint, which no update"),
  ],
)
def test_a_variable_that_a_rule_cannot_train_is_refused(
  set_flags, name, make_variable, message
):
  set_flags()
  with pytest.raises(cli.UsageError, match=f'^{re.escape(message)}'):
    build_with(make_variable, name, num_ps=2)


def test_a_rule_without_ps_trains_what_is_made_in_any_way(set_flags):
  set_flags()
  built = build_with(make_by_itself, 'ring_allreduce', num_ps=0)
  assert [v.op.name for v in built.center] == ['a', 'b']
  with pytest.raises(cli.UsageError, match="^the variable 'n' is of int64"):
    build_with(make_int, 'ring_allreduce', num_ps=0)


@pytest.mark.slow
def test_an_untrained_variable_may_be_made_in_any_way(set_flags):
  set_flags()
  built = build_with(
    lambda: tf.Variable(1, trainable=False, name='part_0/count'), 'agn', 1
  )
  assert [v.op.name for v in built.center] == ['a', 'part_0/count']
