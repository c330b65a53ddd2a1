"""classic_variables: tf.Variable in a model is what tf.get_variable makes."""

import os

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.common import cli, registry
from distmnist.common.names import STRATEGIES
from distmnist.data import seeds
from distmnist.training import script_errors
from distmnist.training import step as step_lib
from distmnist.training.problems import classic_variables


def build_net(make_variable):
  """A net of two layers in name scopes, as the old tutorials have them."""
  x = tf.ones([1, 4096])
  with tf.name_scope('hidden'):
    w = make_variable(
      tf.truncated_normal([4096, 8], stddev=0.1), name='weights'
    )
    x = tf.nn.relu(tf.matmul(x, w) + make_variable(tf.zeros([8]), name='b'))
  with tf.name_scope('softmax'):
    w = make_variable(tf.truncated_normal([8, 2], stddev=0.1), name='weights')
    count = make_variable(0, trainable=False)
    return tf.reduce_mean(tf.matmul(x, w)) + tf.cast(count, tf.float32)


NAMES = 'hidden/weights', 'hidden/b', 'softmax/weights', 'softmax/Variable'


def build(num_ps, strategy='async_sgd', build_loss=None, calls=1):
  """Returns [(name, device)] of the center of a step, and its first values."""
  hosts = tuple(f'p{i}:1' for i in range(num_ps))
  member = cluster.make_cluster(hosts, ('w0:1',), 'worker', 0)

  def build_loss_once():
    with classic_variables.shared(cli.UsageError):
      return (build_loss or (lambda: build_net(tf.Variable)))()

  def build_all(state):
    del state
    loss = build_loss_once()
    for _ in range(calls - 1):
      with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        loss += build_loss_once()
    return loss, {}

  with tf.Graph().as_default() as graph:
    seeds.set_seed(7)
    rule = registry.load(STRATEGIES, strategy).make(member)
    built = step_lib.build_step_of(member, rule, build_all)
    first = {v.op.name: v.initial_value for v in built.center}
    with tf.Session(graph=place_here(graph, first)) as session:
      values = session.run({name: f'{x.name}' for name, x in first.items()})
    return [(v.op.name, v.device) for v in built.center], values


def place_here(graph, first):
  """Returns a graph of the first values, without the devices of a cluster."""
  names = [x.op.name for x in first.values()]
  definition = tf.graph_util.extract_sub_graph(graph.as_graph_def(), names)
  for node in definition.node:
    node.device = ''
    node.attr.pop('_class', None)
  here = tf.Graph()
  with here.as_default():
    tf.import_graph_def(definition, name='')
  return here


@pytest.mark.slow
def test_it_lies_on_the_ps_in_shards_with_the_names_it_would_have_had(
  set_flags,
):
  set_flags()
  found, _ = build(num_ps=2)
  parts = [f'hidden/weights/part_{i}' for i in range(2)]
  # What is too small to be cut is one part.
  whole = ['hidden/b/part_0', 'softmax/weights/part_0', 'softmax/Variable']
  assert [name for name, _ in found] == [*parts, *whole]
  devices = [device for _, device in found]
  assert all(device.startswith('/job:ps') for device in devices)
  assert devices[0] != devices[1]


@pytest.mark.slow
def test_first_values_are_the_same_for_any_number_of_ps(set_flags):
  set_flags()
  _, whole = build(num_ps=1)
  _, cut = build(num_ps=2)
  parts = [cut[f'hidden/weights/part_{i}'] for i in range(2)]
  assert abs(whole['hidden/weights']).max() > 0.1
  assert (whole['hidden/weights'] == [*parts[0], *parts[1]]).all()
  assert (whole['softmax/weights'] == cut['softmax/weights/part_0']).all()


@pytest.mark.slow
def test_each_call_of_a_model_has_the_same_variables(set_flags):
  set_flags()
  found, _ = build(num_ps=1, calls=3)
  assert [name for name, _ in found] == [*NAMES]


@pytest.mark.slow
def test_names_are_counted_as_tensorflow_counts_them(set_flags):
  set_flags()

  def build_loss():
    a = tf.get_variable('a', [])
    others = [tf.Variable(1.0, name=name) for name in ('a', 'b', 'b')]
    with tf.variable_scope('layer'):
      others.append(tf.Variable(1.0, name='a'))
      others.append(tf.get_variable('b', []))
    return a + tf.add_n(others)

  found, _ = build(1, build_loss=build_loss)
  names = ['a', 'a_1', 'b', 'b_1', 'layer/a', 'layer/b']
  assert [name for name, _ in found] == names


@pytest.mark.parametrize(
  'make, said',
  [
    (lambda: tf.Variable(1.0, constraint=tf.nn.relu), 'has a constraint'),
    (lambda: tf.Variable(tf.placeholder(tf.float32, [None])), "'Variable' has"),
    (lambda: tf.Variable(1, name='n'), "'n' is of int32"),
  ],
)
def test_what_no_rule_trains_is_refused_in_one_line(set_flags, make, said):
  set_flags()

  def build_loss():
    return tf.reduce_sum(tf.cast(make(), tf.float32))

  with pytest.raises(cli.UsageError, match=said) as raised:
    build(1, build_loss=build_loss)
  assert '\n' not in str(raised.value)


def test_ops_keep_their_names_and_a_global_step_of_its_own_is_another(
  set_flags,
):
  set_flags()
  names = []

  def build_loss():
    tf.Variable(0, name='global_step', trainable=False)
    cost = tf.square(tf.Variable(1.0, name='w'), name='cost')
    names.append(cost.op.name)
    return cost

  found, _ = build(1, build_loss=build_loss)
  assert [name for name, _ in found] == ['global_step_1', 'w']
  assert names == ['cost']


def test_a_first_value_waits_for_nothing_of_a_step(set_flags):
  set_flags()

  def build_loss():
    fed = tf.placeholder(tf.float32, [])
    with tf.control_dependencies([fed]):
      return tf.reduce_sum(tf.Variable([1.0, 2.0], name='w'))

  _, values = build(1, build_loss=build_loss)
  assert values['w'].tolist() == [1, 2]


def test_a_mistake_in_a_first_value_is_the_script_s():
  script = os.path.abspath(__file__)
  with (
    pytest.raises(cli.RunError, match=r'classic_variables_test\.py:\d+'),
    script_errors.explained(script),
    tf.Graph().as_default(),
    classic_variables.shared(cli.UsageError),
  ):
    tf.Variable([1.0, 'a'])


def test_local_variables_stay_with_their_worker(set_flags):
  set_flags()

  def build_loss():
    local = tf.Variable(
      0.0, trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES], name='l'
    )
    return tf.Variable(1.0, name='w') + local

  found, _ = build(1, build_loss=build_loss)
  assert [name for name, _ in found] == ['w']
