"""The vertical split: slices of each layer, computed where they are kept."""

import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.models import cnn, dnn, mlp, vgg19
from distmnist.transport import sharding, variable_lists
from tests.strategies import battery_test
from tests.support import in_process

NUM_STEPS = 10
IN_PLACE = ('async_sgd', 'sync_sgd', 'ssp')
each_rule = pytest.mark.parametrize(
  'name',
  [
    name if name == 'async_sgd' else pytest.param(name, marks=pytest.mark.slow)
    for name in (*IN_PLACE, 'agn', 'dc_asgd')
  ],
)


def build(name, member, optimizer='momentum', model=dnn):
  """Builds a step of a small net; returns (rule, update, images, labels)."""
  with tf.device(member.device_setter(sharding.LeastBytes(member.num_ps))):
    global_step = tf.train.get_or_create_global_step()
    rule = registry.load(STRATEGIES, name).make(member)
    images = tf.placeholder(tf.float32, [4, 3, 3, 1])
    labels = tf.placeholder(tf.int32, [4])
    with sharding.sharded(member.num_ps), rule.scope():
      logits = model.make(10)(images, is_training=True)
      loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    update = rule.minimize(
      loss, battery_test.make_optimizers(optimizer, 0.1), global_step
    )
  return rule, update, images, labels


def find_place(variable):
  """Returns (name, shape, slices) of the whole of which `variable` is part."""
  info = variable._get_save_slice_info()
  if info is None:
    shape = variable.shape.as_list()
    return variable.op.name, shape, tuple(slice(n) for n in shape)
  cut = tuple(
    slice(start, start + n)
    for start, n in zip(info.var_offset, variable.shape, strict=True)
  )
  return info.full_name, info.full_shape, cut


def train(name, cluster, optimizer, model=dnn):
  """Takes NUM_STEPS on one worker; returns {variable: value after them}."""
  draw = np.random.default_rng(5)
  with tf.Graph().as_default():
    rule, update, images, labels = build(
      name, cluster.worker(0), optimizer, model
    )
    center_variables = tf.trainable_variables()
    places = [find_place(variable) for variable in center_variables]
    wholes = {
      full_name: draw.normal(0, 0.4, shape)
      for full_name, shape in sorted({n: s for n, s, _ in places}.items())
    }
    assign = [
      variable.assign(wholes[full_name][cut]).op
      for variable, (full_name, _, cut) in zip(
        center_variables, places, strict=True
      )
    ]
    pull = tf.local_variables_initializer()
    with cluster.make_session(0, rule.hooks(in_process.NoStop())) as session:
      session._tf_sess().run(assign)
      if name not in IN_PLACE:
        session._tf_sess().run(pull)  # The copies are of the center as it is.
      for _ in range(NUM_STEPS):
        batch = draw.random((4, 3, 3, 1)), draw.integers(0, 10, 4)
        session.run(
          update.train_op, dict(zip((images, labels), batch, strict=True))
        )
      values = session._tf_sess().run(center_variables)
  for (full_name, _, cut), value in zip(places, values, strict=True):
    wholes[full_name][cut] = value
  return wholes


@pytest.mark.daily(but=['sgd-dc_asgd'])
@each_rule
@pytest.mark.parametrize(
  'optimizer', ['sgd', pytest.param('adam', marks=pytest.mark.slow)]
)
def test_the_split_net_is_the_whole_one(
  make_cluster, set_flags, name, optimizer
):
  cluster, found = make_cluster(2, 1), []
  for num_slices in (1, 3):
    set_flags('--hidden_units=7,5', f'--vertical_slices={num_slices}')
    found.append(train(name, cluster, optimizer))
    cluster.reset()
  whole, split = found
  assert set(whole) == set(split)
  for variable, value in whole.items():
    np.testing.assert_allclose(split[variable], value, atol=1e-5)


@pytest.mark.daily(but=['sync_sgd'])
@pytest.mark.slow
@pytest.mark.parametrize('name', IN_PLACE)
def test_slices_are_computed_on_their_ps(set_flags, name):
  set_flags('--hidden_units=8,6', '--vertical_slices=2')
  member = cluster_lib.make_cluster(
    ('p0:1', 'p1:1'), ('w0:1', 'w1:1'), 'worker', 0
  )
  with tf.Graph().as_default() as graph:
    _, update, *_ = build(name, member)
    part = tf.graph_util.extract_sub_graph(
      graph.as_graph_def(), [update.train_op.op.name]
    )
    kept = tf.get_collection(variable_lists.IN_PLACE)
  assert len(kept) == 2 * 2 * 2
  assert {tf.DeviceSpec.from_string(v.device).task for v in kept} == {0, 1}
  # Forwards and backwards. The last layer is the worker's.
  found = [node for node in part.node if node.op == 'MatMul']
  on_ps = [node for node in found if '/job:ps' in node.device]
  assert len(on_ps) == 2 * 2 * 3  # Layers, slices, products.
  assert {re.search('task:.', n.device)[0] for n in on_ps} == {
    'task:0',
    'task:1',
  }
  # Only the last layer's weights are pulled.
  assert update.bytes_pulled == (6 * 10 + 10) * 4


@pytest.mark.daily
@pytest.mark.slow
def test_the_split_mlp_is_the_whole_one(make_cluster, set_flags):
  cluster, found = make_cluster(2, 1), []
  for num_slices in (1, 2):
    set_flags('--hidden_units=7,5', f'--vertical_slices={num_slices}')
    found.append(train('async_sgd', cluster, 'sgd', mlp))
    cluster.reset()
  whole, split = found
  for variable, value in whole.items():
    np.testing.assert_allclose(split[variable], value, atol=1e-5)


@pytest.mark.daily(but=['distmnist.models.cnn-1-1024'])
@pytest.mark.slow
@pytest.mark.parametrize(
  ('model', 'num_layers', 'last'), [(cnn, 1, 1024), (vgg19, 2, 4096)]
)
def test_dense_layers_after_convolutions_are_split(
  set_flags, model, num_layers, last
):
  set_flags('--vertical_slices=2')
  member = cluster_lib.make_cluster(('p0:1', 'p1:1'), ('w0:1',), 'worker', 0)
  with tf.Graph().as_default():
    _, update, *_ = build('async_sgd', member, model=model)
    kept = tf.get_collection(variable_lists.IN_PLACE)
    pulled = sum(
      np.prod(variable.shape.as_list())
      for variable in tf.trainable_variables()
      if not any(variable is x for x in kept)
    )
  assert len(kept) == 2 * 2 * num_layers
  assert {tf.DeviceSpec.from_string(v.device).task for v in kept} == {0, 1}
  # The convolutions and the last layer.
  assert update.bytes_pulled == 4 * pulled
  assert pulled > (last + 1) * 10
