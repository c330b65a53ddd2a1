"""What a step sends: few messages, as each costs more than many an op."""

import collections

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.exchange.copies import periodic_exchange
from distmnist.exchange.steps import fused_steps
from distmnist.nn import layers
from distmnist.transport import sharding
from tests.strategies import battery_test

NUM_STEPS = 3


def find_task(op):
  """Returns 'ps0', ...: the op's own, else its variable's, else worker 1."""
  handles = [x for x in op.inputs if x.dtype == tf.resource]
  for x in (op, *handles):
    spec = tf.DeviceSpec.from_string(x.device)
    if spec.job:
      return f'{spec.job}{spec.task}'
  return 'worker1'


def count_messages(tensors):
  """Returns {(from, to): number} of what `tensors` need sent between tasks."""
  graph = tf.get_default_graph()
  names = [tensor.op.name for tensor in tensors]
  part = tf.graph_util.extract_sub_graph(graph.as_graph_def(), names)
  messages = set()
  for node in part.node:
    op = graph.get_operation_by_name(node.name)
    for source in (*op.inputs, *op.control_inputs):
      start, end = find_task(getattr(source, 'op', source)), find_task(op)
      if start != end:
        messages.add((source.name, start, end))
  return collections.Counter((start, end) for _, start, end in messages)


def build(name, member, has_table):
  """Returns (update, loss) of two variables and perhaps a table."""
  with tf.device(member.device_setter()):
    global_step = tf.train.get_or_create_global_step()
    rule = registry.load(STRATEGIES, name).make(member)
    with sharding.sharded(member.num_ps), rule.scope():
      c = tf.get_variable('a', [2]) + tf.get_variable('b', [2])
      if has_table:
        with tf.device(member.compute_device):
          ids = tf.random.uniform([4], maxval=100, dtype=tf.int64)
        c += tf.reduce_sum(layers.embedding(ids, 100, 2, 't'), 0)
    loss = tf.reduce_sum(c**2)
    make = battery_test.make_optimizers('adam', 0.1)
    return rule.minimize(loss, make, global_step), loss


@pytest.fixture
def count(tf_session, set_flags):
  """Returns count(rule, num_ps, has_table) -> what a run of NUM_STEPS sends."""

  set_flags()

  def run(name, num_ps, has_table):
    hosts = [f'p{i}:1' for i in range(num_ps)], ['w0:1', 'w1:1']
    member = cluster_lib.make_cluster(*map(tuple, hosts), 'worker', 1)
    update, loss = build(name, member, has_table)
    tensors = {'global_step': update.train_op, 'loss': loss}
    if update.staleness is not None:
      tensors['staleness'] = update.staleness
    exchanges = periodic_exchange.get_all()
    assert not exchanges  # Nothing is left out.
    steps = fused_steps.Steps(tensors, NUM_STEPS, None, exchanges)
    return count_messages(steps.before_run(None).fetches)

  return run


@pytest.mark.daily(
  but=[
    'False-1-async_sgd',
    'False-1-sync_sgd',
    'True-1-ssp',
    'False-2-ssp',
    'True-2-async_sgd',
  ]
)
@pytest.mark.parametrize('name', ['async_sgd', 'sync_sgd', 'ssp'])
@pytest.mark.parametrize('num_ps', [1, 2])
@pytest.mark.parametrize('has_table', [False, True])
@pytest.mark.slow
def test_a_step_is_a_pull_and_a_push_and_the_answer_comes_once_a_run(
  count, name, num_ps, has_table
):
  sent = count(name, num_ps, has_table)
  if num_ps == 1:  # Else they agree without the worker.
    assert len(sent) == 2
  for i in range(num_ps):
    # A pull of rows is asked for; then they come with the rest.
    assert sent[('worker1', f'ps{i}')] == NUM_STEPS * (1 + has_table)
    assert sent[(f'ps{i}', 'worker1')] == NUM_STEPS + (i == 0)
  # From one ps to another go the powers of Adam, the end of its updates, which
  # the powers wait for, the end of the step and the begin of the next one.
  between = sum(n for way, n in sent.items() if 'worker1' not in way)
  assert between <= 4 * NUM_STEPS * (num_ps - 1)
