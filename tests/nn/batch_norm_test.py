"""Batch normalisation: its equation, and whose averages move when."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from distmnist.nn import batch_norm, layers, optimizers
from distmnist.transport import model_state, sharding
from tests.support import in_process
from tests.support.variables import run_with

RNG = np.random.default_rng(11)


def compute_batch_norm(x, gamma, beta, mean=None, variance=None):
  """The paper's, slow; with the batch's own statistics if none are given.

  Args:
    x: array [batch, h, w, c].
    gamma, beta, mean, variance: arrays [c].

  Returns:
    (y, mean, variance); the variance as it goes into the moving average, with
    n - 1 and not n.
  """
  y, means, variances = np.empty_like(x), [], []
  for channel in range(x.shape[-1]):
    values = x[..., channel]
    n = values.size
    mean_v = values.sum() / n if mean is None else mean[channel]
    square = ((values - mean_v) ** 2).sum() / n
    variance_v = square if variance is None else variance[channel]
    scale = gamma[channel] / np.sqrt(variance_v + 1e-5)
    y[..., channel] = scale * (values - mean_v) + beta[channel]
    means.append(mean_v)
    variances.append(square * n / (n - 1))
  return y, np.array(means), np.array(variances)


def build_alone(x):
  """Returns the outputs of batch norm in a training step of one process."""
  state = model_state.ModelState(cluster_lib.Cluster(), is_lock_step=False)
  state.activate()
  outputs = batch_norm.batch_norm(x, 'norm', is_training=True)
  state.build_updates()
  return outputs


@pytest.mark.slow
def test_batch_norm_in_training_goes_by_the_batch_and_moves_the_averages(
  tf_session,
):
  x = tf.placeholder(tf.float32, [None, 3, 5, 2])
  outputs = build_alone(x)
  train_op = batch_norm.after_updates(tf.constant(7))
  variables = {v.op.name: v for v in tf.global_variables()}
  assert [v.op.name for v in tf.trainable_variables()] == [
    'norm/gamma',
    'norm/beta',
  ]
  tf_session.run(tf.global_variables_initializer())
  moving_mean, moving_variance = np.zeros(2), np.ones(2)
  gamma, beta = np.array([2, -0.5]), np.array([1, 3.0])
  tf_session.run(
    [variables['norm/gamma'].assign(gamma), variables['norm/beta'].assign(beta)]
  )
  for _ in range(3):
    batch = RNG.normal(size=(4, 3, 5, 2)) * [1, 3] + [5, -2]
    expected, mean, variance = compute_batch_norm(batch, gamma, beta)
    moving_mean -= 0.1 * (moving_mean - mean)
    moving_variance -= 0.1 * (moving_variance - variance)
    found, train_op_v = tf_session.run([outputs, train_op], {x: batch})
    assert train_op_v == 7
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    # Run again by themselves, they would have moved.
    for name, value in (
      ('moving_mean', moving_mean),
      ('moving_variance', moving_variance),
    ):
      found = tf_session.run(variables[f'norm/{name}'])
      np.testing.assert_allclose(found, value, rtol=1e-4)


def test_batch_norm_in_evaluation_goes_by_the_averages_and_leaves_them(
  tf_session,
):
  batch = RNG.normal(size=(3, 2, 2, 3))
  values = {
    'gamma': [2, 1, 0],
    'beta': [0, 1, 5],
    'moving_mean': [1, 0, 0],
    'moving_variance': [4, 1, 9],
  }
  x = tf.constant(batch, tf.float32)
  outputs = batch_norm.batch_norm(x, 'norm', is_training=False)
  assert tf.get_collection(tf.GraphKeys.UPDATE_OPS) == []
  found = run_with(tf_session, outputs, **values)
  expected, _, _ = compute_batch_norm(batch, *values.values())
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
  assert tf_session.run(tf.global_variables()[2]).tolist() == [1, 0, 0]


def test_the_first_gamma_may_be_another(tf_session):
  batch_norm.batch_norm(tf.zeros([1, 1, 1, 2]), 'norm', True, first_gamma=0.0)
  tf_session.run(tf.global_variables_initializer())
  found = tf_session.run(tf.global_variables())
  assert [v.tolist() for v in found] == [[0, 0], [0, 0], [0, 0], [1, 1]]


def test_a_batch_of_one_value_has_no_variance(tf_session):
  outputs = build_alone(tf.fill([1, 1, 1, 1], 3.0))
  train_op = batch_norm.after_updates(outputs)
  tf_session.run(tf.global_variables_initializer())
  assert tf_session.run(train_op).ravel().tolist() == [0]
  moving = tf_session.run(tf.global_variables())[2:]
  np.testing.assert_allclose(np.ravel(moving), [0.3, 0.9], rtol=1e-6)


def test_a_model_without_updates_has_the_same_graph(tf_session):
  train_op = tf.reduce_sum(layers.dense(tf.zeros([1, 2]), 3, 'layer'))
  before = tf.get_default_graph().as_graph_def()
  assert batch_norm.after_updates(train_op) is train_op
  assert tf.get_default_graph().as_graph_def() == before


WITH_PS = [
  name for name in registry.names(STRATEGIES) if name != 'ring_allreduce'
]


def build_with_batch_norm(name, member):
  """Builds as train does; returns (rule, x, train_op)."""
  with tf.device(member.device_setter()):
    global_step = tf.train.get_or_create_global_step()
    x = tf.placeholder(tf.float32, [4, 1, 1, 2])
    rule = registry.load(STRATEGIES, name).make(member)
    state = model_state.ModelState(member, rule.is_lock_step)
    state.activate()
    with sharding.sharded(member.num_ps), rule.scope():
      outputs = batch_norm.batch_norm(x, 'norm', is_training=True)
    update = rule.minimize(
      tf.reduce_sum(outputs * [[[[1.0, 2.0]]]] * tf.cumsum(x)),
      lambda is_local=False, rate_factor=None: optimizers.make_optimizer(
        'sgd', 0.01 * (1 if rate_factor is None else rate_factor)
      ),
      global_step,
    )
    state.build_updates()
    train_op = batch_norm.after_updates(update.train_op)
  return rule, x, train_op


@pytest.mark.daily(but=['ad_psgd', 'async_sgd', 'easgd', 'sync_sgd'])
@pytest.mark.parametrize('name', WITH_PS)
@pytest.mark.slow
def test_averages_stay_whole_and_cross_the_wire_as_one_message(
  tf_session, set_flags, name
):
  set_flags()
  member = cluster_lib.make_cluster(
    ('p0:1', 'p1:1'), ('w0:1', 'w1:1'), 'worker', 1
  )
  build_with_batch_norm(name, member)
  moving = {
    v.op.name: v for v in tf.global_variables() if '/moving_' in v.op.name
  }
  assert set(moving) == {'norm/moving_mean', 'norm/moving_variance'}
  assert not {v.op.name for v in tf.trainable_variables()} & set(moving)
  for variable in moving.values():
    assert tf.DeviceSpec.from_string(variable.device).job == 'ps'
    # What changes an average is beside it.
    for op in variable.handle.consumers():
      if op.type == 'AssignAddVariableOp':
        assert op.device == variable.device, op.name
  for place in {v.device for v in moving.values()}:
    arriving = find_arriving(tf.get_collection(tf.GraphKeys.UPDATE_OPS), place)
    assert len(arriving) <= 1, [op.name for op in arriving]


def find_arriving(updates, place):
  """Returns the set of workers' floats, no gradients, that `place` takes."""
  seen, arriving, todo = set(), set(), list(updates)
  while todo:
    op = todo.pop()
    if op in seen:
      continue
    seen.add(op)
    todo += [*(t.op for t in op.inputs), *op.control_inputs]
    arriving |= {t for t in op.inputs if op.device == place != t.op.device}
  return {
    t for t in arriving if t.dtype == tf.float32 and '/wire/' not in t.name
  }


def test_a_rule_whose_center_no_batch_has_seen_says_so(tf_session, set_flags):
  set_flags()
  assert batch_norm.describe_averages('easgd', has_local_steps=True) is None
  build_alone(tf.zeros([4, 1, 1, 2]))
  member = cluster_lib.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 1)
  said = {}
  for name in WITH_PS:
    rule = registry.load(STRATEGIES, name).make(member)
    said[name] = batch_norm.describe_averages(name, rule.has_local_steps)
  local = {'ad_psgd', 'agn', 'bmuf', 'downpour', 'dynsgd', 'easgd', 'sagn'}
  assert {name for name, line in said.items() if line} == local
  for name in local:
    start = f'batch norm under {name}: its moving averages are of '
    assert said[name].startswith(start)


def compute_moved(moving, batch):
  """Returns the moving (mean, variance), two arrays, after a batch."""
  _, *of_batch = compute_batch_norm(batch, np.ones(2), np.zeros(2))
  return [m - 0.1 * (m - v) for m, v in zip(moving, of_batch, strict=True)]


def read_moving(session, graph):
  with graph.as_default():
    return session.run(
      [v for v in tf.global_variables() if '/moving_' in v.op.name]
    )


@pytest.mark.daily(but=['async_sgd'])
@pytest.mark.slow
@pytest.mark.parametrize(
  'name',
  [name for name in WITH_PS if name not in ('sync_sgd', 'sagn', 'bmuf')],
)
def test_every_worker_moves_the_averages_of_the_center(
  make_cluster, set_flags, name
):
  set_flags()
  cluster, workers = make_cluster(1, 2), []
  for index in range(2):
    with tf.Graph().as_default() as graph:
      rule, x, train_op = build_with_batch_norm(name, cluster.worker(index))
      session = cluster.make_session(index, rule.hooks(in_process.NoStop()))
    workers.append((graph, session, x, train_op))
  expected = [np.zeros(2), np.ones(2)]
  for index in (0, 1, 1, 0):
    graph, session, x, train_op = workers[index]
    batch = RNG.normal(size=(4, 1, 1, 2)) + 3
    session.run(train_op, {x: batch})
    expected = compute_moved(expected, batch)
    for graph, session, _, _ in workers:
      found = read_moving(session, graph)
      np.testing.assert_allclose(found, expected, rtol=1e-4)
  for _, session, _, _ in workers:
    session.close()


@pytest.mark.daily(but=['1-shard'])
@pytest.mark.slow
@pytest.mark.parametrize(
  ('num_ps', 'barrier'), [(1, 'step'), (2, 'step'), (1, 'shard')]
)
def test_in_lock_step_averages_move_once_a_global_step(
  make_cluster, set_flags, num_ps, barrier
):
  """By the mean of the workers' statistics, whoever comes first."""
  set_flags(f'--sync_barrier={barrier}')
  cluster, num_steps = make_cluster(num_ps, 2), 6
  batches = RNG.normal(size=(num_steps, 2, 4, 1, 1, 2)) * 2 + 3

  def work(index):
    rule, x, train_op = build_with_batch_norm('sync_sgd', cluster.worker(index))
    graph, found = tf.get_default_graph(), []
    hooks = rule.hooks(in_process.NoStop())
    with cluster.make_session(index, hooks) as session:
      for of_step in batches:
        session.run(train_op, {x: of_step[index]})
        # The other one is a step ahead at most, and has not ended it.
        found.append(read_moving(session._tf_sess(), graph))
    return found

  found, _ = cluster.run_workers(work)
  moving, at_once = [np.zeros(2), np.ones(2)], [np.zeros(2), np.ones(2)]
  for step, of_step in enumerate(batches):
    both = [compute_moved(moving, batch) for batch in of_step]
    moving = np.mean(both, axis=0)
    np.testing.assert_allclose(found[step], moving, rtol=1e-5)
    at_once = compute_moved(at_once, of_step.reshape(8, 1, 1, 2))
  # The mean, unlike the variance, is that of one process with both batches.
  np.testing.assert_allclose(found[-1][0], at_once[0], rtol=1e-5)
  assert abs(found[-1][1] / at_once[1] - 1).max() < 0.2


@pytest.mark.slow
def test_in_a_ring_each_worker_has_averages_of_its_own(make_cluster, set_flags):
  set_flags()
  cluster = make_cluster(0, 2)
  batches = [RNG.normal(size=(4, 1, 1, 2)) + 3 * i for i in range(2)]

  def work(index):
    member = cluster.worker(index)
    rule, x, train_op = build_with_batch_norm('ring_allreduce', member)
    graph, result = tf.get_default_graph(), []
    all_hooks = [
      *rule.hooks(in_process.NoStop()),
      in_process.AtEnd(
        lambda session: result.extend(read_moving(session, graph))
      ),
    ]
    with cluster.make_session(index, all_hooks) as session:
      for _ in range(10):
        session.run(train_op, {x: batches[index]})
    return result

  found, own = cluster.run_workers(work), []
  for batch in batches:
    moving = [np.zeros(2), np.ones(2)]
    for _ in range(10):
      moving = compute_moved(moving, batch)
    own.append(moving)
  np.testing.assert_allclose(found, own, rtol=1e-3)
