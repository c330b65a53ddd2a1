"""center: views of the whole of it, and the ways to its shards and back."""

import concurrent.futures
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.center import center as center_lib
from distmnist.nn import optimizers
from distmnist.transport import sharding, strategy, variable_lists

PS = [f'/job:ps/task:{i}/device:CPU:0' for i in range(2)]
WORKER = '/job:worker/task:0/device:CPU:0'

ROWS = np.arange(10, dtype=np.float32).reshape(5, 2)


def make_member(num_ps, **settings):
  """Worker 0 of one; nothing is started."""
  ps_hosts = tuple(f'p{i}:1' for i in range(num_ps))
  return cluster_lib.make_cluster(ps_hosts, ('w0:1',), 'worker', 0, **settings)


def build(member, in_place=()):
  """Returns (center, what the model sees of a matrix, a scalar, ...)."""
  center = center_lib.Center(member)
  with tf.device(member.device_setter()), center.scope():
    with sharding.sharded(member.num_ps):
      model = [
        tf.get_variable('rows', initializer=tf.constant(ROWS)),
        tf.get_variable('scalar', [], initializer=tf.constant_initializer(7.0)),
      ]
    model += [
      tf.get_variable(
        name,
        [2],
        initializer=tf.ones_initializer(),
        collections=[tf.GraphKeys.GLOBAL_VARIABLES, variable_lists.IN_PLACE],
      )
      for name in in_place
    ]
  return center, model


def names(variables):
  return [v.op.name for v in variables]


@pytest.fixture
def start(make_cluster):
  """Returns start(num_ps, ...) -> (center, model, session), initialised."""
  with tf.Graph().as_default():
    sessions = []

    def start(num_ps, **how):
      cluster = make_cluster(num_ps, 1)
      center, model = build(cluster.worker(0), **how)
      sessions.append(tf.Session(cluster.servers[0].target))
      sessions[-1].run(tf.global_variables_initializer())
      return center, model, sessions[-1]

    yield start
    for session in sessions:
      session.close()


def test_the_model_sees_whole_tensors_on_the_worker(tf_session):
  center, model = build(make_member(2))
  assert model == center.views
  assert [tf.is_tensor(view) for view in model] == [True, True]
  assert [view.shape.as_list() for view in model] == [[5, 2], []]
  assert {view.device for view in model} == {WORKER}
  assert [view.op.name for view in model] == ['pulled/rows', 'pulled/scalar']
  assert names(center.shards) == ['rows/part_0', 'rows/part_1', 'scalar']
  assert [v.device for v in center.shards] == [PS[0], PS[1], PS[0]]
  assert center.shards == tf.trainable_variables()


@pytest.mark.slow
def test_each_step_sees_what_the_center_is_then(start):
  center, model, session = start(2)
  doubled = [2 * view for view in model]
  found = session.run(doubled)
  assert [x.tolist() for x in found] == [(2 * ROWS).tolist(), 14]
  session.run([shard.assign_add(shard + 1) for shard in center.shards])
  found = session.run(doubled)
  assert [x.tolist() for x in found] == [(4 * ROWS + 2).tolist(), 30]
  whole = session.run(center.read_center())
  assert [x.tolist() for x in whole] == [(2 * ROWS + 1).tolist(), 15]


def test_without_a_ps_a_view_is_the_variable_itself(tf_session):
  center, model = build(make_member(0))
  assert model == center.views == center.shards == tf.global_variables()
  assert names(model) == ['rows', 'scalar']


@pytest.mark.slow
def test_gradients_of_the_whole_reach_the_shards(start):
  center, (rows, scalar), session = start(2)
  optimizer = optimizers.make_optimizer('sgd', 0.5)
  loss = tf.reduce_sum(rows * rows) / 2 + tf.stop_gradient(scalar)
  [gradient] = center.compute_gradients(optimizer, loss)
  pairs = center.to_shards([gradient])
  assert session.run(gradient).tolist() == ROWS.tolist()
  assert [shard for _, shard in pairs] == center.shards
  assert [part.shape.as_list() for part, _ in pairs] == [[3, 2], [2, 2]]
  session.run(optimizer.apply_gradients(pairs))
  found = session.run([rows, scalar])
  assert [x.tolist() for x in found] == [(ROWS / 2).tolist(), 7]


@pytest.mark.slow
def test_what_the_loss_does_not_reach_is_pulled_alone(start):
  center, (rows, scalar, a, b), session = start(2, in_place=['a', 'b'])
  assert center.count_bytes() == (44, 44)
  frozen = tf.stop_gradient(rows[0, 0] + a[0])
  gradients = center.compute_gradients(
    optimizers.make_optimizer('sgd', 0.5), tf.reduce_sum(b) * scalar + frozen
  )
  assert center.views == [scalar, b]
  assert names(center.shards) == ['scalar', 'b']
  assert center.count_bytes() == (44, 4)
  found = session.run([part for part, _ in center.to_shards(gradients)])
  assert [x.tolist() for x in found] == [2, [7, 7]]


@pytest.mark.slow
def test_the_gradient_of_rows_is_one_tensor(start):
  center, (rows, _), session = start(1)
  loss = tf.reduce_sum(tf.gather(rows, [1, 1, 4]))
  [found] = center.compute_gradients(
    optimizers.make_optimizer('sgd', 0.5), loss
  )
  assert session.run(found)[:, 0].tolist() == [0, 2, 0, 0, 1]


@pytest.mark.slow
def test_parts_like_those_of_the_shards_come_back_whole(start):
  center, _, session = start(2)
  parts = center.read_shards()
  assert [part.device for part in parts] == [PS[0], PS[1], PS[0]]
  squares = [part * part for part in parts]
  found = session.run(center.from_shards(squares))
  assert [x.tolist() for x in found] == [(ROWS**2).tolist(), 49]


@pytest.mark.slow
def test_what_stays_in_place_is_its_own_view_and_comes_last(start):
  center, model, session = start(2, in_place=['a', 'b'])
  a, b = model[2:]
  assert center.views[2:] == [a, b] == center.shards[3:]
  assert names([a, b]) == ['a', 'b']
  assert center.num_bytes == 44  # Neither is pulled.
  assert len(center.read_shards()) == 3
  tensors = [tf.constant(ROWS), tf.constant(1.0), tf.fill([2], 5.0), 3 * b]
  pairs = center.to_shards(tensors)
  assert [shard for _, shard in pairs] == center.shards
  found = session.run([part for part, _ in pairs])
  assert [x.tolist() for x in found[2:]] == [1, [5, 5], [3, 3]]


@pytest.mark.slow
def test_gradients_come_in_the_order_of_the_views(start):
  center, (rows, scalar, a), session = start(1, in_place=['a'])
  loss = 2 * tf.reduce_sum(rows) + 3 * scalar + 4 * tf.reduce_sum(a)
  optimizer = optimizers.make_optimizer('sgd', 1.0)
  found = session.run(center.compute_gradients(optimizer, loss))
  assert [g.tolist() for g in found] == [[[2, 2]] * 5, 3, [4, 4]]


@pytest.mark.parametrize(
  'num_ps, expected', [(1, [1.0, 1.0078125]), (0, [1.001, 1.0078125])]
)
def test_what_is_sent_is_rounded_to_the_dtype_of_the_wire(
  tf_session, num_ps, expected
):
  # A bfloat16 has eight bits: the next number after 1 is 1 + 1 / 128.
  center = center_lib.Center(make_member(num_ps, wire_dtype='bfloat16'))
  [rounded] = center.round_as_sent([tf.constant([1.001, 1.0078125])])
  assert rounded.dtype == tf.float32
  np.testing.assert_allclose(tf_session.run(rounded), expected, rtol=1e-7)


@pytest.mark.parametrize('shape, axis', [([2, 4], 0), ([3, 4], 0), ([1, 7], 1)])
def test_the_cut_is_where_the_first_shard_is_smaller(tf_session, shape, axis):
  shard = tf.zeros([1, 4])
  assert center_lib.find_cut(shard, shape) == axis


def test_the_step_is_read_before_what_its_ps_holds():
  """An edge to another ps would cost a round trip in each step."""
  with tf.Graph().as_default() as graph:
    member = make_member(2)
    center, _ = build(member)
    with tf.device(PS[0]):
      step = center.read_step(tf.train.get_or_create_global_step())
    waiting = {
      op.inputs[0].op.name
      for op in graph.get_operations()
      if step.op in op.control_inputs
    }
  assert waiting == {'rows/part_0', 'scalar'}


@pytest.mark.slow
def test_what_is_pulled_has_all_updates_that_its_step_counts(make_cluster):
  """Three workers at once, each of whose updates adds 1 to all variables."""
  cluster, num_steps = make_cluster(1, 3), 150
  found, begin = [], threading.Event()

  def train(index):
    with tf.Graph().as_default() as graph:
      member = cluster.worker(index)
      with tf.device(member.device_setter()):
        global_step = tf.train.get_or_create_global_step()
        center = center_lib.Center(member)
        with center.scope():
          views = [
            tf.get_variable(f'w{i}', [], initializer=tf.zeros_initializer())
            for i in range(30)
          ]
      pulled_step = center.read_step(global_step)
      with tf.control_dependencies(views):
        ready = tf.constant(1.0)
      added = variable_lists.add_all(center.shards, [ready] * len(views))
      fetches = *strategy.count_update(global_step, [added], pulled_step), views
    target = cluster.servers[index].target
    with tf.Session(target, graph=graph) as session:
      if not index:
        with graph.as_default():
          session.run(tf.global_variables_initializer())
        begin.set()
      assert begin.wait(60)
      for _ in range(num_steps):
        found.append(session.run(fetches))

  with concurrent.futures.ThreadPoolExecutor(3) as pool:
    for done in [pool.submit(train, i) for i in range(3)]:
      done.result(120)
  numbers = sorted(int(number) for number, _, _ in found)
  assert numbers == list(range(1, 3 * num_steps + 1))
  assert any(staleness for _, staleness, _ in found)
  for number, staleness, values in found:
    assert 0 <= number - 1 - staleness <= min(values)
