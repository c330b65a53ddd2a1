"""local_copies: a worker's own copy of the center, and the ways between."""

import functools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.copies import local_copies
from distmnist.nn import optimizers
from distmnist.strategies import (
  ad_psgd,
  agn,
  async_sgd,
  bmuf,
  dc_asgd,
  downpour,
  dynsgd,
  easgd,
  sagn,
  staleness_aware,
  sync_sgd,
)
from distmnist.transport import sharding
from tests.support import stepper as stepper_lib

PS = [f'/job:ps/task:{i}/device:CPU:0' for i in range(3)]
WORKER = '/job:worker/task:1/device:CPU:0'

ROWS = np.arange(10, dtype=np.float32).reshape(5, 2)


def make_member(num_ps):
  """Worker 1 of two; nothing is started."""
  ps_hosts = tuple(f'p{i}:1' for i in range(num_ps))
  return cluster_lib.make_cluster(ps_hosts, ('w0:1', 'w1:1'), 'worker', 1)


def build(member):
  """Returns (copies, what the model sees): a matrix, a vector and a scalar."""
  copies = local_copies.LocalCopies(member)
  with (
    tf.device(member.device_setter()),
    sharding.sharded(member.num_ps),
    copies.scope(),
  ):
    model = [
      tf.get_variable('rows', initializer=tf.constant(ROWS)),
      tf.get_variable('one', [1], initializer=tf.ones_initializer()),
      tf.get_variable('scalar', [], initializer=tf.zeros_initializer()),
    ]
  return copies, model


@pytest.fixture
def start(make_cluster):
  """Returns start(num_ps) -> (copies, session), all variables initialised."""
  with tf.Graph().as_default():
    sessions = []

    def start(num_ps):
      cluster = make_cluster(num_ps, 2)
      copies, _ = build(cluster.worker(1))
      sessions.append(tf.Session(cluster.servers[1].target))
      sessions[-1].run(tf.global_variables_initializer())
      sessions[-1].run(tf.local_variables_initializer())
      return copies, sessions[-1]

    yield start
    for session in sessions:
      session.close()


@pytest.fixture
def alone(tf_session):
  """The copies of a process without a cluster."""
  return build(cluster_lib.Cluster())[0]


def places(variables):
  return {v.op.name: v.device for v in variables}


def test_the_model_gets_a_copy_of_each_variable_on_the_worker(tf_session):
  copies, model = build(make_member(1))
  assert model == copies.variables
  assert places(model) == {
    'local_copy/rows': WORKER,
    'local_copy/one': WORKER,
    'local_copy/scalar': WORKER,
  }
  assert [v.shape.as_list() for v in model] == [[5, 2], [1], []]
  assert tf.local_variables() == model
  assert places(tf.global_variables()) == {
    'rows': PS[0],
    'one': PS[0],
    'scalar': PS[0],
  }
  assert copies.shards == tf.global_variables() == tf.trainable_variables()


@pytest.mark.slow
def test_copies_start_with_the_values_that_the_center_has_then(start):
  copies, session = start(2)
  found = session.run(copies.variables)
  assert [value.tolist() for value in found] == [ROWS.tolist(), [1], 0]
  session.run([shard.assign_add(shard + 1) for shard in copies.shards])
  assert session.run(copies.variables)[2] == 0
  session.run(tf.local_variables_initializer())  # As at a restart.
  found = session.run(copies.variables)
  assert [value.tolist() for value in found] == [
    (2 * ROWS + 1).tolist(),
    [3],
    1,
  ]


@pytest.mark.slow
def test_what_is_cut_as_the_center_can_be_put_together(start):
  copies, session = start(3)
  with tf.device(WORKER):
    tensors = [tf.constant(ROWS), tf.constant([3.0]), tf.constant(4.0)]
  pairs = copies.to_shards(tensors)
  parts = [part for part, _ in pairs]
  assert [shard for _, shard in pairs] == copies.shards
  assert [part.shape for part in parts] == [v.shape for v in copies.shards]
  assert [p.device for p in parts] == [v.device for v in copies.shards]
  cut = np.split(ROWS, [2, 4])
  for part, expected in zip(session.run(parts), [*cut, [3], 4], strict=True):
    np.testing.assert_array_equal(part, expected)
  whole = session.run(copies.from_shards(parts))
  assert [value.tolist() for value in whole] == [ROWS.tolist(), [3], 4]


@pytest.mark.slow
def test_what_adam_keeps_for_a_local_step_is_local(tf_session):
  copies, model = build(make_member(2))
  shared = tf.global_variables()
  optimizer = optimizers.make_optimizer('adam', 0.1)
  loss = tf.add_n([tf.reduce_sum(copy) for copy in model])
  copies.local_step(optimizer, copies.compute_gradients(optimizer, loss))
  expected = {'beta1_power', 'beta2_power'} | {
    f'{copy.op.name}{slot}'
    for copy in model
    for slot in ('', '/Adam', '/Adam_1')
  }
  assert places(tf.local_variables()) == dict.fromkeys(expected, WORKER)
  assert tf.global_variables() == shared == tf.trainable_variables()


def test_local_variables_catches_every_variable_that_is_made_in_it(tf_session):
  with local_copies.local_variables():
    variables = [
      tf.Variable(1.0, name='a'),
      tf.get_variable('b', [1]),
      tf.Variable(2.0, name='c', trainable=False),
    ]
  after = tf.Variable(3.0, name='d')
  assert tf.local_variables() == variables
  assert tf.global_variables() == [after]


def test_a_gradient_too_few_is_an_error(tf_session, alone):
  with pytest.raises(ValueError, match='zip'):
    alone.to_shards([tf.zeros([5, 2])])


@pytest.mark.slow
def test_what_is_cut_along_another_axis_comes_together_again(make_cluster):
  cluster = make_cluster(3, 2)
  member = cluster.worker(1)
  wide = np.arange(14, dtype=np.float32).reshape(2, 7)
  with tf.Graph().as_default():
    copies = local_copies.LocalCopies(member)
    with (
      tf.device(member.device_setter()),
      sharding.sharded(member.num_ps),
      copies.scope(),
    ):
      tf.get_variable('wide', initializer=tf.constant(wide))
    parts = [part for part, _ in copies.to_shards([tf.constant(wide)])]
    with tf.Session(cluster.servers[1].target) as session:
      session.run(tf.global_variables_initializer())
      session.run(tf.local_variables_initializer())
      assert session.run(copies.variables)[0].tolist() == wide.tolist()
      center = session.run(copies.shards)
      assert [part.shape for part in center] == [(2, 3), (2, 2), (2, 2)]
      for part, shard in zip(session.run(parts), center, strict=True):
        assert part.tolist() == shard.tolist()


def build_from_1_01(x):
  """Returns (w, loss): w begins with what 16 bits cannot hold."""
  w = tf.get_variable('w', [1], initializer=tf.constant_initializer(1.01))
  return w, tf.reduce_sum((w - x) ** 2) / 2


RULES = {
  'sync_sgd': functools.partial(
    sync_sgd.SyncSgd, replicas_to_aggregate=1, barrier='shard'
  ),
  'async_sgd': functools.partial(async_sgd.AsyncSgd, pulls_ahead=True),
  'downpour': functools.partial(downpour.Downpour, n_fetch=2, n_push=2),
  'agn': functools.partial(agn.Agn, communication_period=2),
  'sagn': functools.partial(
    sagn.Sagn, communication_period=2, replicas_to_aggregate=1
  ),
  'easgd': functools.partial(easgd.Easgd, moving_rate=0.5, period=2),
  'bmuf': functools.partial(
    bmuf.Bmuf, communication_period=2, momentum=0, learning_rate=1
  ),
  'dynsgd': functools.partial(dynsgd.DynSgd, communication_period=2),
  'ad_psgd': functools.partial(ad_psgd.AdPsgd, communication_period=2),
  'dc_asgd': functools.partial(dc_asgd.DcAsgd, dc_lambda=0.5),
  'staleness_aware': staleness_aware.StalenessAware,
}


@pytest.mark.daily(but=['ad_psgd', 'async_sgd', 'bmuf', 'easgd', 'sync_sgd'])
@pytest.mark.parametrize('name', RULES)
@pytest.mark.slow
def test_the_first_pull_of_a_session_is_rounded_as_each_pull_is(
  make_cluster, name
):
  stepper = stepper_lib.Stepper(
    make_cluster(1, 1),
    RULES[name],
    wire_dtype='bfloat16',
    build=build_from_1_01,
  )
  rounded = 1.0078125
  assert stepper.read_copies() == [[rounded]]
  first = stepper.step(0, [0.0])
  if name == 'sync_sgd':
    gradient = rounded
    assert first.center == [pytest.approx(1.01 - 0.5 * gradient, abs=1e-6)]
  stepper.close()
