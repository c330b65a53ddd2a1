"""ring_allreduce: by an oracle, bit for bit, and to a good end."""

import dataclasses
import re
import signal
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.exchange.ring import all_reduce
from distmnist.nn import batch_norm, optimizers
from distmnist.strategies import ring_allreduce
from distmnist.training import step
from distmnist.transport import weight_averages
from tests.support import in_process
from tests.support.runner import (
  SMALL,
  check_kept_best,
  read_report,
  steps_of,
  wait_for_line,
)

RING = '--strategy=ring_allreduce'


class Stop(in_process.NoStop):
  """A StopRequest without signals of its own."""

  signal = None

  def request(self, signum):
    self.is_requested, self.signal = True, signum


@pytest.fixture
def make_ring(make_cluster):
  """Returns make(num_workers) -> InProcessCluster, with nothing on it."""

  def make(num_workers):
    cluster = make_cluster(0, num_workers)
    cluster.reset()
    return cluster

  return make


def build_toy(member, size, optimizer='sgd', rate=0.5, start=0.0, **settings):
  """w is `start` first, loss sum (w - x)^2 / 2; returns (rule, update, x)."""
  with tf.device(member.device_setter()):
    global_step = tf.train.get_or_create_global_step()
    x = tf.placeholder(tf.float32, [size], name='x')
    w = tf.get_variable('w', [size], initializer=tf.constant_initializer(start))
    loss = tf.reduce_sum((w - x) ** 2) / 2
    rule = ring_allreduce.make(member)
    update = rule.minimize(
      loss,
      lambda: optimizers.make_optimizer(optimizer, rate, **settings),
      global_step,
    )
    rule.hold_back([update.train_op])
  return rule, update, x


def read_all_after(op):
  """Returns {name: value once `op` has run} of all global variables."""
  with tf.control_dependencies([op]):
    return {v.op.name: v.read_value() for v in tf.global_variables()}


def train_toy(
  cluster, inputs, optimizer='sgd', rate=0.5, wire_dtype='float32', **settings
):
  """Returns for each worker a list of the variables after each step.

  Args:
    cluster: in_process.InProcessCluster.
    inputs: float32 [steps, num_workers, size], the x of each step and worker.
    optimizer, rate, **settings: of optimizers.make_optimizer.
    wire_dtype: str, as --wire_dtype.
  """

  def work(index):
    rule, update, x = build_toy(
      dataclasses.replace(cluster.worker(index), wire_dtype=wire_dtype),
      inputs.shape[2],
      optimizer,
      rate,
      start=5.0 * index,
      **settings,
    )
    values, found = read_all_after(update.train_op), []
    with cluster.make_session(index, rule.hooks(Stop())) as session:
      for given in inputs:
        step_v, values_v = session.run(
          [update.train_op, values], {x: given[index]}
        )
        assert step_v == values_v['global_step'] == len(found) + 1
        found.append(values_v)
    return found

  return cluster.run_workers(work)


def as_bits(values):
  return {name: value.tobytes() for name, value in values.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
  'dtype, expected',
  [('float16', 250.75), ('bfloat16', 251)],
)
def test_the_gradients_are_cast_to_be_sent(make_ring, dtype, expected):
  inputs = np.array([[[1003, 0], [0, 1]]], np.float32)
  for found in train_toy(make_ring(2), inputs, wire_dtype=dtype):
    assert found[0]['w'].tolist() == [expected, 0.25]  # bfloat16: 1004.


@pytest.mark.slow
def test_a_worker_clips_its_own_gradient(make_ring):
  inputs = np.array([[[30, 40], [0.1, 0.2]]], np.float32)
  for found in train_toy(make_ring(2), inputs, clip_norm=1.0):
    # (-30, -40) is clipped to (-0.6, -0.8), the other is short enough.
    np.testing.assert_allclose(found[0]['w'], [0.175, 0.25], rtol=1e-6)


def compute_oracle(inputs, rate, momentum):
  """The rule as the equation is written; returns [steps, size]."""
  x = m = np.zeros(inputs.shape[2])
  path = []
  for given in inputs:
    g = sum(x - x_i for x_i in given) / len(given)
    m = momentum * m + g
    x = x - rate * m
    path.append(x)
  return np.array(path)


@pytest.mark.slow
def test_random_steps_follow_the_oracle_with_the_same_bits_on_all(make_ring):
  inputs = np.random.default_rng(3).normal(size=(20, 3, 7))
  results = train_toy(
    make_ring(3), inputs.astype(np.float32), 'momentum', rate=0.1
  )
  for of_all in zip(*results, strict=True):
    bits = [as_bits(values) for values in of_all]
    assert all(b == bits[0] for b in bits)
  found = np.array([values['w'] for values in results[0]])
  expected = compute_oracle(inputs, 0.1, momentum=0.9)
  np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
def test_rows_of_a_table_and_variables_without_a_gradient(make_ring):
  cluster = make_ring(2)

  def work(index):
    member = cluster.worker(index)
    with tf.device(member.device_setter()):
      global_step = tf.train.get_or_create_global_step()
      zeros = tf.zeros_initializer()
      table = tf.get_variable('table', [3, 2], initializer=zeros)
      tf.get_variable('unused', [4], initializer=zeros)
      loss = tf.reduce_sum(tf.gather(table, [index, 2]))
      rule = ring_allreduce.make(member)
      update = rule.minimize(
        loss, lambda: optimizers.make_optimizer('sgd', 1.0), global_step
      )
    values = read_all_after(update.train_op)
    with cluster.make_session(index, rule.hooks(Stop())) as session:
      return session.run([update.train_op, values])[1]

  for found in cluster.run_workers(work):
    expected = [[-0.5, -0.5], [-0.5, -0.5], [-1, -1]]
    np.testing.assert_array_equal(found['table'], expected)
    np.testing.assert_array_equal(found['unused'], np.zeros(4))


def save(values, path):
  """Writes a checkpoint of {name: value}."""
  with tf.Graph().as_default(), tf.Session() as session:
    for name, value in values.items():
      tf.get_variable(name, initializer=value)
    session.run(tf.global_variables_initializer())
    tf.train.Saver().save(session, path, global_step=values['global_step'])


@pytest.mark.slow
def test_what_the_chief_restores_reaches_all(make_ring, tmp_path):
  optimizer = 'adam'
  inputs = np.random.default_rng(0).normal(size=(6, 3, 2)).astype(np.float32)
  whole = train_toy(make_ring(3), inputs, optimizer)[0]
  save(whole[3], str(tmp_path / 'model.ckpt'))
  cluster = make_ring(3)

  def work(index):
    rule, update, x = build_toy(
      cluster.worker(index), 2, optimizer, start=1.0 + index
    )
    values = read_all_after(update.train_op)
    all_hooks = rule.hooks(Stop())
    with cluster.make_session(index, all_hooks, str(tmp_path)) as session:
      return [
        session.run([values, update.train_op], {x: given[index]})[0]
        for given in inputs[4:]
      ]

  for found in cluster.run_workers(work):
    assert found[0]['global_step'] == 5
    assert [as_bits(v) for v in found] == [as_bits(v) for v in whole[4:]]


@pytest.mark.slow
def test_a_signal_to_one_stops_all_after_the_same_step(make_ring):
  cluster = make_ring(3)

  class Ask(tf.train.SessionRunHook):
    def __init__(self, is_asked, rule, stop):
      self.is_asked, self.rule, self.stop = is_asked, rule, stop
      self.steps = 0

    def after_run(self, run_context, run_values):
      self.steps += 1
      if self.is_asked and self.steps == 5:
        self.stop.request(signal.SIGINT)
      if self.stop.is_requested:
        self.rule.request_stop(run_context)

  def work(index):
    rule, update, x = build_toy(cluster.worker(index), 1)
    stop = Stop()
    ask = Ask(index == 2, rule, stop)
    with cluster.make_session(index, [ask, *rule.hooks(stop)]) as session:
      while not session.should_stop():
        session.run(update.train_op, {x: [1.0]})
    return ask.steps, stop

  results = cluster.run_workers(work)
  assert [steps for steps, _ in results] == [6, 6, 6]
  signals = [stop.signal for _, stop in results]
  assert signals.count(signal.SIGTERM) >= 2
  assert all(stop.is_requested for _, stop in results)


@pytest.mark.slow
@pytest.mark.parametrize('hop_bytes', [100, 0], ids=['all', 'chunks'])
def test_an_input_that_ends_in_a_step_counts_as_zeros_and_ends_all(
  make_ring, monkeypatch, hop_bytes
):
  monkeypatch.setattr(all_reduce, 'HOP_BYTES', hop_bytes)
  cluster = make_ring(3)

  def work(index):
    member, steps = cluster.worker(index), []
    with tf.device(member.device_setter()):
      global_step = tf.train.get_or_create_global_step()
      last = 2 if index == 1 else 9
      numbers = tf.data.Dataset.range(last).make_one_shot_iterator().get_next()
      w = tf.get_variable('w', [5], initializer=tf.zeros_initializer())
      loss = tf.reduce_sum(w * tf.cast(numbers * 0 - 3, tf.float32))
      rule = ring_allreduce.make(member)
      update = rule.minimize(
        loss, lambda: optimizers.make_optimizer('sgd', 1.0), global_step
      )
    values = read_all_after(update.train_op)
    with cluster.make_session(index, rule.hooks(Stop())) as session:
      while not session.should_stop():
        steps.append(session.run([update.train_op, values])[1]['w'].tolist())
    return steps

  first, fewer, last = cluster.run_workers(work)
  assert fewer == first[:2] == [[3.0] * 5, [6.0] * 5]
  assert first == last and len(first) == 3
  # Of five numbers and five votes worker 1 has those from the fifth on.
  assert first[2] == [8.0] * 4 + [8.0 if hop_bytes else 6.0]


class BreakOnce(tf.train.SessionRunHook):
  """Lets a session end after some steps, as a cut connection does."""

  def __init__(self, num_steps):
    self.num_steps, self.num_sessions = num_steps, 0

  def after_create_session(self, session, coord):
    self.num_sessions += 1

  def after_run(self, run_context, run_values):
    self.num_steps -= 1
    if not self.num_steps:
      raise tf.errors.UnavailableError(None, None, 'cut off')


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('breaks', [(0,), (2,), (1, 2)], ids=str)
def test_who_loses_its_session_meets_the_others_again(make_ring, breaks):
  """None of them has ended, and nothing tells the others but the meeting."""
  inputs = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
  whole = train_toy(make_ring(3), np.array([inputs] * 9), 'adam')[0][-1]
  cluster = make_ring(3)

  def work(index):
    rule, update, x = build_toy(cluster.worker(index), 4, 'adam')
    values = read_all_after(update.train_op)
    cut = BreakOnce(3 + index if index in breaks else 0)
    hooks = [*rule.hooks(Stop()), cut]
    with cluster.make_session(index, hooks) as session:
      step_v = 0
      while step_v < 9:
        step_v, values_v = session.run(
          [update.train_op, values], {x: inputs[index]}
        )
    assert cut.num_sessions > 1
    return values_v

  assert [as_bits(v) for v in cluster.run_workers(work)] == [as_bits(whole)] * 3


def build_net(x):
  """A loss with variables in two buckets, and averages of batch norm."""
  h = batch_norm.batch_norm(x[:, tf.newaxis, tf.newaxis], 'norm', True)
  w = tf.get_variable('w', [3], initializer=tf.zeros_initializer())
  return tf.reduce_mean((tf.linalg.matvec(h[:, 0, 0], w) - x[:, 0]) ** 2)


@pytest.mark.slow
@pytest.mark.daily(but=['1'])
@pytest.mark.parametrize(
  'num_arrived',
  [1, 0, 2],
)
def test_a_step_that_breaks_off_has_changed_nothing(
  set_flags, make_ring, num_arrived
):
  set_flags('--bucket_mib=1e-6', '--ema_decay=0.9', '--optimizer=adam')
  cluster = make_ring(2)
  member, other = cluster.worker(0), cluster.worker(1)
  with tf.Graph().as_default():
    x = tf.random.stateless_normal([5, 3], [1, 2])
    built = step.build_step_of(
      member, ring_allreduce.make(member), lambda state: (build_net(x), {})
    )
    values = tf.global_variables()
    names = {v.op.name for v in values}
    assert {'norm/moving_mean', f'w/{weight_averages.NAME}', 'w/Adam'} <= names
    with tf.device(other.cpu_device):
      # w is in the first bucket; gamma, beta and the votes follow.
      sent = [
        all_reduce.build_mean(other, tf.zeros([size]), f'bucket_{i}', False)
        for i, size in enumerate([3, 3, 6])
      ]
    config = cluster.session_config(0)
    config.allow_soft_placement = False
    target = cluster.servers[0].target
    with tf.Session(target, config=config) as session:
      session.run([v.initializer for v in values])
      session.run(tf.local_variables_initializer())
      before = session.run(values)
      step_of_own = in_process.start_thread(
        lambda: session.run(built.update.train_op)
      )
      with tf.Session(target, config=config) as beside:
        for mean in sent[:num_arrived]:
          beside.run(mean)
      # Most of what could change now has the time to do so.
      threading.Event().wait(0.5)
    step_of_own.join(60)
    assert len(step_of_own.errors) == 1
    with tf.Session(target, config=config) as session:
      after = session.run(values)
  assert as_bits_of(after) == as_bits_of(before)


@pytest.mark.slow
def test_what_a_step_has_begun_to_change_it_changes_to_the_end(make_ring):
  """TensorFlow ends what waits for nobody else, and only then says so."""
  cluster = make_ring(2)
  member, other = cluster.worker(0), cluster.worker(1)
  with tf.Graph().as_default():
    with tf.device(member.cpu_device):
      first, last = (
        tf.get_variable(name, initializer=0) for name in ('first', 'last')
      )
      begun = first.assign_add(1, read_value=False)
      with tf.control_dependencies([begun]):
        x = tf.random.normal([400, 400])
      for _ in range(200):  # Some tenths of a second.
        x = x @ x / 400
      number = tf.cast(tf.reduce_sum(x) > -np.inf, tf.int32)
      ended = last.assign_add(number, read_value=False)
    with tf.device(other.cpu_device):
      queue = tf.FIFOQueue(1, tf.int32, [()], shared_name='nothing')
      put, taken = queue.enqueue(1), queue.dequeue()
    with tf.device(member.cpu_device):
      taken = tf.identity(taken)
    config = cluster.session_config(0)
    with tf.Session(cluster.servers[0].target, config=config) as session:
      session.run(tf.global_variables_initializer())
      session.run(put)
      # Before the first run is prepared TensorFlow forgets a limit of time.
      session.run([ended, taken])
      with pytest.raises(tf.errors.DeadlineExceededError):
        options = tf.RunOptions(timeout_in_ms=150)
        session.run([ended, taken], options=options)
      assert session.run([first, last]) == [2, 2]


def as_bits_of(arrays):
  return [value.tobytes() for value in arrays]


def make_member(index, num_workers):
  """A worker of several; nothing is started."""
  hosts = tuple(f'w{i}:1' for i in range(num_workers))
  return cluster_lib.make_cluster((), hosts, 'worker', index)


@pytest.mark.slow
@pytest.mark.parametrize('index', [0, 1])
def test_every_variable_and_op_is_on_the_own_task(tf_session, set_flags, index):
  set_flags()
  rule, _, _ = build_toy(make_member(index, 2), 3, 'adam')
  for hook in rule.hooks(Stop()):
    hook.begin()
    hook._handover.take_from(1 - index)  # As once they have met.
  variables = tf.global_variables()
  assert {'w', 'w/Adam', 'global_step'} <= {v.op.name for v in variables}
  own, other = (
    f'/job:worker/task:{i}/device:CPU:0' for i in (index, 1 - index)
  )
  assert {v.device for v in variables} == {own}
  # What it takes from the other worker is all that it has there.
  for op in tf.get_default_graph().get_operations():
    if op.type in ('PyFunc', 'QueueDequeueV2', 'QueueEnqueueV2'):
      assert op.name.startswith('ring_allreduce/')
    if op.type in ('PyFunc', 'QueueEnqueueV2'):
      assert op.device == own
    elif op.type == 'QueueDequeueV2':
      assert op.device == other
    elif op.device != own:
      assert op.type == 'FIFOQueueV2' or not op.device


@pytest.mark.slow
@pytest.mark.parametrize(
  ('num_workers', 'num_bytes'), [(2, 400), (3, 800), (4, 1200)]
)
def test_what_a_step_tells_of_itself(
  set_flags, tf_session, num_workers, num_bytes
):
  set_flags()
  rule, update, _ = build_toy(make_member(0, num_workers), 100)
  # 400 bytes to each other worker.
  assert update.bytes_pulled == update.bytes_pushed == num_bytes
  assert isinstance(update.bytes_pushed, int)
  assert rule.batches_per_update == num_workers
  train_op = update.train_op
  assert (train_op.dtype, train_op.shape) == (tf.int64, [])
  assert update.staleness.dtype == tf.int64
  assert tf.get_static_value(update.staleness) == 0


def test_one_process_has_no_queue(set_flags, tf_session):
  set_flags()
  rule, update, x = build_toy(cluster_lib.Cluster(), 1)
  assert rule.hooks(Stop()) == []
  assert update.bytes_pulled == update.bytes_pushed == 0
  types = {op.type for op in tf.get_default_graph().get_operations()}
  assert not any('Queue' in name for name in types)
  tf_session.run(tf.global_variables_initializer())
  assert tf_session.run(update.train_op, {x: [1.0]}) == 1
  context = tf.train.SessionRunContext(None, None)
  rule.request_stop(context)
  assert context.stop_requested


def test_a_ps_is_a_usage_error():
  member = cluster_lib.make_cluster(('p0:1',), ('w0:1',), 'worker', 0)
  with pytest.raises(cli.UsageError, match='^.*--ps_hosts.*$'):
    ring_allreduce.make(member)


# Real tasks.


def saved_step(logdir):
  path = tf.train.latest_checkpoint(str(logdir))
  return int(path.rpartition('-')[2])


@pytest.mark.slow
def test_all_tasks_leave_by_themselves(tasks, make_real_cluster, tmp_path):
  logdir = tmp_path / 'run'
  flags = *SMALL, RING, '--train_steps=40', f'--logdir={logdir}'
  _, workers = make_real_cluster(0, 2).start_all(*flags)
  assert tasks.wait(*workers) == [0] * 2
  report = read_report(logdir)
  assert report['workers_not_heard_of'] == []
  assert [row['local_steps'] for row in report['workers']] == [40] * 2
  assert (report['global_step'], report['local_steps']) == (40, 80)
  # A run that is at its end ends at once.
  _, workers = make_real_cluster(0, 2).start_all(*flags)
  assert tasks.wait(*workers) == [0] * 2


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'victim, num_workers, how',
  [
    # Several buckets.
    *((i, 3, ['--bucket_mib=0.005']) for i in (0, 1)),
    # In chunks that have owners.
    (1, 4, ['--model=mlp']),
  ],
  ids=['0', '1', 'owner'],
)
def test_if_nobody_comes_back_the_others_end_and_the_next_start_resumes(
  tasks, make_real_cluster, tmp_path, victim, num_workers, how
):
  logdir = tmp_path / 'run'
  flags = *SMALL, RING, '--log_secs=0', f'--logdir={logdir}', '--save_steps=10'
  flags += tuple(how)
  cluster = make_real_cluster(0, num_workers)
  _, workers = cluster.start_all(
    *flags, '--train_steps=1000000', '--start_timeout_secs=6'
  )
  wait_for_line(workers[victim], 'step 3')
  wait_for_line(workers[0], 'step 12/')
  tasks.signal(workers[victim], signal.SIGKILL)
  left = [task for task in workers if task is not workers[victim]]
  assert tasks.wait(*left) == [3] * len(left)
  lost = f'worker {victim} at {cluster.hosts["worker"][victim]}'
  for task in left:
    assert 'Traceback' not in task.output
    assert f'lost {lost}: waits for its successor, up to 6 s\n' in task.output
    # Who waited longer may miss another that has ended by now, too.
    assert re.match(f'distmnist.train: error: lost .*{lost}', task.last_line)
    assert task.last_line.endswith(
      ': without a ps the others cannot go on; start all tasks again, and they '
      'resume from the last checkpoint if there is a --logdir'
    )

  restored = saved_step(logdir)
  assert restored >= 10
  cluster = make_real_cluster(0, num_workers)
  _, workers = cluster.start_all(*flags, f'--train_steps={restored + 20}')
  assert tasks.wait(*workers) == [0] * num_workers
  assert f'restored {logdir}/model.ckpt-{restored}\n' in workers[0].output
  for task in workers:
    assert steps_of(task)[0] == restored + 1
  lives = [row['lives'][-1] for row in read_report(logdir)['workers']]
  assert [life['local_steps'] for life in lives] == [20] * num_workers


@pytest.mark.daily(but=['all'])
@pytest.mark.slow
@pytest.mark.parametrize('asked', [[0], [1], [0, 1]], ids=['0', '1', 'all'])
def test_a_signal_stops_all_tasks_with_a_checkpoint(
  tasks, make_real_cluster, tmp_path, asked
):
  logdir = tmp_path / 'run'
  _, workers = make_real_cluster(0, 2).start_all(
    *(*SMALL, RING, '--log_secs=0', f'--logdir={logdir}'),
    '--train_steps=1000000',
  )
  wait_for_line(workers[asked[0]], 'step 10/')
  for i in asked:
    tasks.signal(workers[i], signal.SIGTERM)
  assert tasks.wait(*workers) == [143, 143]
  for i, task in enumerate(workers):
    if len(asked) == 1:
      rest = '; once more stops at once' if i in asked else ', with all tasks'
      assert f'SIGTERM: saving and stopping{rest}\n' in task.output
    assert 'Traceback' not in task.output
    assert task.last_line == f'stopped at step {saved_step(logdir)}'


@pytest.mark.daily
@pytest.mark.slow
def test_divergence_ends_all(tasks, make_real_cluster):
  cluster = make_real_cluster(0, 2)
  flags = *SMALL, RING, '--optimizer=sgd', '--learning_rate=1e38'
  flags = *flags, '--start_timeout_secs=6'
  workers = [cluster.start('worker', i, *flags) for i in (0, 1)]
  codes = tasks.wait(*workers)
  # Both see the same loss; the quicker one leaves the other alone.
  assert 1 in codes and set(codes) <= {1, 3}
  for code, worker in zip(codes, workers, strict=True):
    words = {1: 'the training has diverged', 3: 'lost worker'}[code]
    assert words in worker.last_line
    assert 'Traceback' not in worker.output


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('odd', ['--model=mlp', '--bucket_mib=0.01'])
def test_a_worker_that_was_started_differently_is_named(
  tasks, make_real_cluster, odd
):
  cluster = make_real_cluster(0, 2)
  flags = *SMALL, RING, '--start_timeout_secs=4'
  chief = cluster.start('worker', 0, *flags)
  other = cluster.start('worker', 1, *flags, odd)
  assert tasks.wait(other) == [1]
  assert 'was started differently' in other.last_line
  [code] = tasks.wait(chief)
  assert code in (1, 3)
  assert 'Traceback' not in chief.output + other.output


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('missing', [0, 1])
def test_a_worker_that_never_starts_is_named(tasks, make_real_cluster, missing):
  cluster = make_real_cluster(0, 3)
  workers = [
    cluster.start('worker', i, *SMALL, RING, '--start_timeout_secs=4')
    for i in range(3)
    if i != missing
  ]
  assert tasks.wait(*workers) == [1, 1]
  who = f'worker {missing} at {cluster.hosts["worker"][missing]}'
  outputs = ' '.join(task.output for task in workers)
  assert f'waiting for {who}\n' in outputs
  assert f'no answer within 4 s from {who}: start it' in outputs
  assert 'Traceback' not in outputs


@pytest.mark.daily
@pytest.mark.slow
def test_early_stopping_ends_all_workers(tasks, make_real_cluster, tmp_path):
  logdir = tmp_path / 'run'
  cluster = make_real_cluster(0, 2)
  _, workers = cluster.start_all(
    *SMALL,
    RING,
    '--learning_rate=0.05',
    '--train_steps=1000000',
    '--validation_steps=20',
    '--early_stopping_patience=3',
    f'--logdir={logdir}',
  )
  assert tasks.wait(*workers) == [0] * 2
  report = read_report(logdir)
  assert report['best_step'] < report['global_step'] < 1000000
  assert report['workers_not_heard_of'] == []
  rows = report['workers']
  assert {row['local_steps'] for row in rows} == {report['global_step']}
  # What is told of the best is true of the file.
  check_kept_best(tasks, logdir)
