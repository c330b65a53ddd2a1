"""optimizer: what an update does in which order, and what it sends."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.logdir import checkpoints
from distmnist.nn import gradient_accumulation, optimizer, optimizers
from distmnist.strategies import async_sgd
from tests.support import stepper
from tests.training.worker_loop_test import train  # noqa: F401  A fixture.

START = np.random.default_rng(0).normal(size=[4, 2]).astype(np.float32)
# One of each kind: plain, with slots, with a ratio.
SOME = 'sgd', 'adam', 'lamb'
each_optimizer = pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in SOME))
    for name in optimizers.OPTIMIZERS
  ],
)


def build_all_steps(name):
  """Builds a step of async_sgd that does all of them; returns the rate."""
  with tf.device(stepper.NoSessions().worker(1).device_setter()):
    global_step = tf.train.get_or_create_global_step()
    rule = async_sgd.AsyncSgd(stepper.NoSessions().worker(1))
    with rule.scope():
      w = tf.get_variable('w', [4, 2])
      losses, gates = [], []
      for _ in range(2):
        gate = tf.identity(tf.constant([2, 0, 2]))
        losses.append(tf.reduce_sum(tf.gather(w, gate) ** 2))
        gates.append(gate.op)
      loss = gradient_accumulation.build_mean(losses, gates)
    make, rate = optimizers.from_flags(global_step)
    rule.minimize(loss, make, global_step)
  return rate


def find_steps(name, rate):
  """Returns the lists of ops that take the steps of optimizer.py, in order."""

  def has(op, *types):
    return [x.op.type for x in op.inputs] == [*types]

  kernel = 'ResourceApplyMomentum'
  steps = [
    lambda op: op.type == 'UnsortedSegmentSum',  # Repeated rows, of a slice.
    lambda op: has(op, 'UnsortedSegmentSum', 'UnsortedSegmentSum'),
    lambda op: 'clip_by_global_norm' in op.name,
    lambda op: op.type == 'IsFinite',
  ]
  if name == 'lamb':
    steps += [
      lambda op: op.type == 'AddV2' and has(op, 'RealDiv', 'Mul'),  # Decay.
      lambda op: op.name.startswith('async_sgd/Lamb/Select'),  # The ratio.
      lambda op: any(x is rate for x in op.inputs) and has(op, 'Mul', 'Mul'),
    ]
    kernel = 'AssignSubVariableOp'
  else:
    steps.append(lambda op: op.type == 'AssignSubVariableOp')  # Decay.
  steps.append(lambda op: op.type == kernel)
  ops = tf.get_default_graph().get_operations()
  return [list(filter(step, ops)) for step in steps]


def find_before(ops):
  """Returns the set of all ops that `ops` wait for."""
  found, left = set(), list(ops)
  while left:
    op = left.pop()
    for other in [*op.control_inputs, *(x.op for x in op.inputs)]:
      if other not in found:
        found.add(other)
        left.append(other)
  return found


@pytest.mark.slow
@pytest.mark.parametrize('name', ['momentum', 'lamb'])
def test_the_steps_of_an_update_come_in_their_order(set_flags, name):
  set_flags(
    *(f'--optimizer={name}', '--clip_norm=1', '--weight_decay=0.1'),
    '--lr_schedule=exponential',
  )
  with tf.Graph().as_default():
    rate = build_all_steps(name)
    steps = find_steps(name, rate)
    assert all(steps)
    for former, latter in zip(steps, steps[1:], strict=False):
      assert set(former) <= find_before(latter)
      assert not set(latter) & find_before(former)
    assert rate.op in find_before(steps[-1])


@pytest.mark.slow
@each_optimizer
def test_a_worker_sends_gradients_and_no_constants(name):
  worker = '/job:worker/task:1'
  hosts = tf.train.ClusterSpec({'ps': ['a:1', 'b:1'], 'worker': ['c:1', 'd:1']})
  setter = tf.train.replica_device_setter(worker_device=worker, cluster=hosts)
  with tf.Graph().as_default() as graph, tf.device(setter):
    variables = [
      tf.get_variable(f'v{i}', [3], use_resource=True) for i in range(2)
    ]
    optimizer = optimizers.make_optimizer(
      name, tf.constant(0.1), weight_decay=0.2
    )
    gradients = [tf.ones([3]) for _ in variables]
    update = optimizer.apply_gradients(zip(gradients, variables, strict=True))
    run = tf.graph_util.extract_sub_graph(graph.as_graph_def(), [update.name])
    ops = [graph.get_operation_by_name(node.name) for node in run.node]
    updates = 'ResourceApply', 'AssignSubVariableOp'
    assert {op.device for op in ops if op.type.startswith(updates)} == {
      variable.device for variable in variables
    }
    sent = {
      tensor
      for op in ops
      for tensor in op.inputs
      if 'ps' in op.device and 'worker' in tensor.device
    }
  assert sent == set(gradients)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['adam', 'lamb'])
def test_those_of_the_center_are_in_no_scope(tf_session, set_flags, name):
  set_flags(f'--optimizer={name}')
  make, _ = optimizers.from_flags(tf.train.get_or_create_global_step())
  weight = tf.get_variable('w', [2, 3])
  pairs = [(tf.ones([2, 3]), weight)]
  with tf.name_scope('rule'):
    make(is_local=True).apply_gradients(pairs)
    make().apply_gradients(pairs)
  names = {v.op.name for v in tf.global_variables()}
  scopes = 'rule/', ''
  assert names >= {f'{s}beta{i}_power' for s in scopes for i in (1, 2)}


@pytest.mark.parametrize(
  'saved, expected',
  [
    (['w', 'w/Adam', 'beta2_power'], None),
    (['beta2_power', 'beta1_power_1'], 'beta1_power_1'),
    (['tables_apart/beta1_power', 'beta1_power'], 'beta1_power'),
    (['tables_apart/beta1_power', 'w'], 'tables_apart/beta1_power'),
  ],
)
def test_tables_apart_have_them_in_their_scope(saved, expected):
  assert optimizer.find_other_power('beta1_power', saved) == expected


def read(logdir):
  path = checkpoints.find_latest(logdir)
  reader = tf.train.load_checkpoint(path)
  names = reader.get_variable_to_shape_map()
  return {name: reader.get_tensor(name) for name in names}


@pytest.mark.slow
def test_a_run_goes_on_under_another_rule(train, tmp_path):  # noqa: F811
  words = '--optimizer=adam', f'--logdir={tmp_path}'
  train(*words, '--train_steps=3')
  train(*words, '--train_steps=5', '--strategy=sync_sgd')
  found = read(tmp_path)
  assert found['beta1_power'] == pytest.approx(0.9**6)


@pytest.mark.slow
@pytest.mark.parametrize('is_table', [False, True])
def test_another_ps_gets_both_in_one_message(tf_session, is_table):
  pairs = []
  for i, ps in enumerate([0, 1, 1, 1]):
    with tf.device(f'/job:ps/task:{ps}'):
      variable = tf.get_variable(f'v{i}', [4, 2])
      gradient = tf.ones([4, 2])
      if is_table:
        gradient = tf.IndexedSlices(gradient, tf.range(4))
    pairs.append((gradient, variable))
  with tf.device('/job:ps/task:0'):
    optimizers.make_optimizer('adam', 0.1).apply_gradients(pairs)
  sent = {
    x.name
    for op in tf.get_default_graph().get_operations()
    for x in op.inputs
    if 'ps' in x.device and 'ps' in op.device and x.device != op.device
  }
  assert sent == {'Adam/stack:0'}


@pytest.mark.daily(
  but=[
    'sgd-0-None',
    'sgd-0-0.5',
    'momentum-0.3-None',
    'nesterov-0-None',
    'adam-0-None',
    'adamw-0.3-None',
    'adagrad-0-0.5',
    'rmsprop-0-None',
    'ftrl-0.3-None',
    'lars-0-None',
    'lamb-0-None',
  ]
)
@pytest.mark.parametrize('decay, clip_norm', [(0, None), (0.3, None), (0, 0.5)])
@each_optimizer
@pytest.mark.slow
def test_rows_that_are_looked_up_more_than_once_are_summed_up_first(
  tf_session, name, decay, clip_norm
):
  if decay and name == 'ftrl':
    pytest.skip('refused')
  found = []
  for is_gathered in True, False:
    variable = tf.Variable(START, use_resource=True)
    unused = tf.Variable(START, use_resource=True)
    rows = tf.constant([2, 0, 2, 2])
    if is_gathered:
      given = tf.gather(variable, rows)
    else:
      given = tf.matmul(tf.one_hot(rows, 4), variable)
    made = optimizers.make_optimizer(
      name, 0.1, clip_norm=clip_norm, weight_decay=decay
    )
    pairs = made.compute_gradients(tf.reduce_sum(given**2), [variable, unused])
    assert [tf.is_tensor(g) for g, _ in pairs] == [True, False]
    apply = made.apply_gradients(pairs)
    tf_session.run(tf.global_variables_initializer())
    for _ in range(3):
      tf_session.run(apply)
    found.append(tf_session.run(variable))
  np.testing.assert_allclose(*found, atol=1e-6)
