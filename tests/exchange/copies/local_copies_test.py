"""local_copies: a worker's own copy of the center, and the ways between."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange import sharding
from distmnist.exchange.copies import local_copies
from distmnist.nn import optimizers

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


def initialize(session):
  session.run(tf.global_variables_initializer())
  session.run(tf.local_variables_initializer())


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


def test_two_ps_cut_the_center_and_not_the_copy(tf_session):
  copies, model = build(make_member(2))
  assert [v.shape.as_list() for v in model] == [[5, 2], [1], []]
  assert [(v.op.name, v.shape.as_list()) for v in copies.shards] == [
    ('rows/part_0', [3, 2]),
    ('rows/part_1', [2, 2]),
    ('one/part_0', [1]),
    ('scalar', []),
  ]
  assert [v.device for v in copies.shards] == [PS[0], PS[1], PS[0], PS[1]]
  assert copies.shards == tf.global_variables() == tf.trainable_variables()
  assert tf.local_variables() == model


def test_what_is_not_trained_stays_in_the_center(tf_session):
  member = make_member(1)
  copies = local_copies.LocalCopies(member)
  with tf.device(member.device_setter()), copies.scope():
    mean = tf.get_variable('moving_mean', [2], trainable=False)
  assert mean.device == PS[0]
  assert copies.variables == copies.shards == tf.local_variables() == []
  assert tf.global_variables() == [mean]


def test_outside_of_the_scope_a_variable_has_no_copy(tf_session):
  copies, _ = build(make_member(1))
  tf.get_variable('other', [1])
  assert len(copies.variables) == 3
  assert len(tf.local_variables()) == 3


@pytest.mark.parametrize('num_ps', [1, 2, 3])
def test_bytes_are_those_of_the_center(tf_session, num_ps):
  copies, _ = build(make_member(num_ps))
  assert copies.num_bytes == 4 * (10 + 1 + 1)


@pytest.mark.parametrize('num_ps', [1, 2])
def test_copies_start_with_the_values_that_the_center_has_then(start, num_ps):
  copies, session = start(num_ps)
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


@pytest.mark.parametrize('num_ps', [1, 2])
def test_a_pull_makes_the_copies_equal_to_the_center(start, num_ps):
  copies, session = start(num_ps)
  assign = copies.assign([tf.zeros([5, 2]), tf.zeros([1]), tf.constant(7.0)])
  pull, read = copies.pull(), copies.read()
  session.run(assign)
  found = session.run(read)
  assert [value.tolist() for value in found] == [[[0, 0]] * 5, [0], 7]
  session.run(pull)
  found = session.run(read)
  assert [value.tolist() for value in found] == [ROWS.tolist(), [1], 0]


@pytest.mark.slow
@pytest.mark.parametrize(
  'num_ps, row_counts', [(1, [5]), (2, [3, 2]), (3, [2, 2, 1])]
)
def test_what_is_cut_as_the_center_can_be_put_together(
  start, num_ps, row_counts
):
  copies, session = start(num_ps)
  with tf.device(WORKER):
    tensors = [tf.constant(ROWS), tf.constant([3.0]), tf.constant(4.0)]
  pairs = copies.to_shards(tensors)
  parts = [part for part, _ in pairs]
  assert [shard for _, shard in pairs] == copies.shards
  assert [part.shape for part in parts] == [v.shape for v in copies.shards]
  assert [part.shape[0] for part in parts[:num_ps]] == row_counts
  assert [p.device for p in parts] == [v.device for v in copies.shards]
  cut = np.split(ROWS, np.cumsum(row_counts)[:-1])
  for part, expected in zip(session.run(parts), [*cut, [3], 4], strict=True):
    np.testing.assert_array_equal(part, expected)
  whole = session.run(copies.from_shards(parts))
  assert [value.tolist() for value in whole] == [ROWS.tolist(), [3], 4]


def test_zeros_have_the_shapes_of_the_copies_and_are_local(start):
  copies, session = start(2)
  zeros = copies.make_zeros('velocity')
  assert set(places(zeros).values()) == {WORKER}
  assert [v.op.name for v in zeros] == ['velocity', 'velocity_1', 'velocity_2']
  assert tf.local_variables() == copies.variables + zeros
  session.run(tf.local_variables_initializer())
  found = session.run(zeros)
  assert [value.tolist() for value in found] == [[[0, 0]] * 5, [0], 0]


def test_a_counter_is_local(tf_session):
  copies = build(make_member(1))[0]
  counter = copies.make_counter(3, 'pulled_step')
  assert (counter.dtype.base_dtype, counter.shape) == (tf.int64, [])
  assert counter.device == WORKER
  assert tf.local_variables()[-1] is counter
  assert counter not in tf.global_variables()


def test_a_local_step_is_counted_when_it_is_done(tf_session, alone):
  done = alone.assign([copy + 1 for copy in alone.variables])
  step = alone.count_local_step([done])
  initialize(tf_session)
  assert [tf_session.run(step) for _ in range(3)] == [1, 2, 3]
  assert tf_session.run(alone.variables[2]) == 3


def test_bytes_count_if_they_are_due(tf_session, alone):
  is_due = tf.placeholder(tf.bool, [])
  num_bytes = alone.count_bytes_if(is_due)
  assert num_bytes.dtype == tf.int64
  assert tf_session.run(num_bytes, {is_due: True}) == 48
  assert tf_session.run(num_bytes, {is_due: False}) == 0


def test_gradients_and_a_local_step_are_those_of_the_copies(tf_session, alone):
  rows, one, scalar = alone.variables
  loss = tf.reduce_sum(rows * rows) / 2 + 3 * one[0] + 5 * scalar
  optimizer = optimizers.make_optimizer('sgd', 0.5)
  gradients = alone.compute_gradients(optimizer, loss)
  step = alone.local_step(optimizer, gradients)
  initialize(tf_session)
  found = tf_session.run(gradients)
  assert [g.tolist() for g in found] == [ROWS.tolist(), [3], 5]
  tf_session.run(step)
  found = tf_session.run(alone.variables)
  assert [x.tolist() for x in found] == [(ROWS / 2).tolist(), [-0.5], -2.5]
  found = tf_session.run(alone.shards)
  assert [x.tolist() for x in found] == [ROWS.tolist(), [1], 0]


@pytest.mark.parametrize(
  'name, slots',
  [
    ('sgd', []),
    ('momentum', ['Momentum']),
    ('nesterov', ['Momentum']),
    ('adagrad', ['Adagrad']),
    ('rmsprop', ['RMSProp', 'RMSProp_1']),
    ('adam', ['Adam', 'Adam_1']),
  ],
)
def test_slots_of_a_local_step_are_local(tf_session, name, slots):
  copies, model = build(make_member(2))
  shared = tf.global_variables()
  optimizer = optimizers.make_optimizer(name, 0.1)
  loss = tf.add_n([tf.reduce_sum(copy) for copy in model])
  copies.local_step(optimizer, copies.compute_gradients(optimizer, loss))
  expected = {copy.op.name for copy in model}
  expected |= {f'{copy.op.name}/{slot}' for copy in model for slot in slots}
  if name == 'adam':
    expected |= {'beta1_power', 'beta2_power'}
  assert places(tf.local_variables()) == dict.fromkeys(expected, WORKER)
  assert tf.global_variables() == shared == tf.trainable_variables()


def test_slots_of_the_center_are_global_and_beside_their_shards(tf_session):
  copies, model = build(make_member(2))
  optimizer = optimizers.make_optimizer('adam', 0.1)
  optimizer.apply_gradients(copies.to_shards([tf.ones_like(v) for v in model]))
  assert tf.local_variables() == model
  shared = places(tf.global_variables())
  assert len(shared) == 3 * len(copies.shards) + 2
  for shard in copies.shards:
    for slot in ('Adam', 'Adam_1'):
      assert shared[f'{shard.op.name}/{slot}'] == shard.device


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
