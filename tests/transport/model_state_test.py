"""model_state: what the steps of several workers leave of an average."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.steps import graph_warmup
from distmnist.transport import model_state


class Worker:
  """A worker whose average moves a tenth of the way to `fed` in each step."""

  def __init__(self, cluster, index, is_lock_step):
    with tf.Graph().as_default() as graph:
      member = cluster.worker(index)
      state = model_state.ModelState(member, is_lock_step)
      state.activate()
      with tf.device(member.device_setter()):
        self.average = tf.get_variable(
          'average', initializer=np.float32([1, 2]), trainable=False
        )
        self.count = tf.get_variable('count', initializer=0, trainable=False)
        self.is_set = tf.get_variable(
          'is_set', initializer=False, trainable=False, use_resource=True
        )
      self.fed = tf.placeholder(tf.float32, [2])
      with tf.device(member.compute_device):
        for variable, change in (
          (self.average, lambda old: old + 0.1 * (self.fed - old)),
          (self.count, lambda old: old + 1),
          (self.is_set, lambda old: old | (self.fed[0] > 100)),
        ):
          old = model_state.read(variable)
          model_state.change(variable, change(old))
        state.build_updates()
      self.step = tf.group(*tf.get_collection(tf.GraphKeys.UPDATE_OPS))
      self.first = tf.global_variables_initializer()
      self.start = tf.local_variables_initializer()
    target = cluster.servers[index].target
    self.session = tf.Session(target, graph=graph)

  def run(self, *fed):
    self.session.run(self.step, {self.fed: fed})

  def read(self):
    return self.session.run([self.average, self.count])


@pytest.fixture
def start(make_cluster):
  def start_workers(num_ps, num_workers, is_lock_step):
    cluster = make_cluster(num_ps, num_workers)
    workers = [Worker(cluster, i, is_lock_step) for i in range(num_workers)]
    workers[0].session.run(workers[0].first)
    for worker in workers:
      worker.session.run(worker.start)
    return workers

  return start_workers


@pytest.mark.slow
def test_in_lock_step_nothing_is_lost_for_want_of_a_round(start):
  with pytest.raises(NotImplementedError) as caught:
    start(1, 2, is_lock_step=True)
  assert str(caught.value).endswith('average, count, is_set')


@pytest.mark.slow
def test_without_lock_step_each_batch_moves_it_from_where_it_is(start):
  first, second = start(1, 2, is_lock_step=False)
  first.run(3, 1)
  first.run(5, 0)
  second.run(1, 4)  # It has the average as it was at its start.
  expected = np.float64([1, 2])
  for fed in [3, 1], [5, 0], [1, 4]:
    expected += 0.1 * (np.float64(fed) - expected)
  average, count = second.read()
  np.testing.assert_allclose(average, expected, rtol=1e-6)
  assert count == 3
  second.run(0, 0)
  np.testing.assert_allclose(second.read()[0], 0.9 * expected, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('num_ps', [0, 1])
def test_what_one_has_set_stays_set(start, num_ps):
  workers = start(num_ps, 1 + num_ps, is_lock_step=False)
  workers[0].run(1, 0)
  assert not workers[0].session.run(workers[0].is_set)
  workers[0].run(101, 0)
  workers[-1].run(1, 0)  # It has not seen that.
  assert workers[0].session.run(workers[0].is_set)


# A worker of a Keras net that began 30 steps behind left a moving variance
# below zero, and the evaluation had no number.
@pytest.mark.slow
def test_a_stale_worker_leaves_no_variance_below_zero(start):
  first, second = start(1, 2, is_lock_step=False)
  for _ in range(40):
    first.run(0.01, 0.02)
  second.run(0.01, 0.02)
  average, _ = second.read()
  expected = [0.01 + 0.99 * 0.9**41, 0.02 + 1.98 * 0.9**41]
  np.testing.assert_allclose(average, expected, rtol=1e-5)


# Of two asynchronous workers, each with a copy that knows nothing of the other.
@pytest.mark.parametrize(
  ('first', 'step', 'expected'),
  [
    (6.0, lambda old, fed: old + 1, 8.0),  # A counter.
    (False, lambda old, fed: old | (fed > 0), True),  # A switch.
    (6.0, lambda old, fed: fed + tf.zeros_like(old), 3.0),  # The latest.
    (6.0, lambda old, fed: tf.maximum(old, fed), 6.0),
  ],
)
@pytest.mark.slow
def test_a_change_of_another_kind(make_cluster, first, step, expected):
  cluster = make_cluster(1, 2)
  sessions = []
  for index in range(2):
    with tf.Graph().as_default() as graph:
      member = cluster.worker(index)
      state = model_state.ModelState(member, is_lock_step=False)
      state.activate()
      with tf.device(member.device_setter()):
        value = tf.get_variable('value', initializer=first, trainable=False)
      fed = tf.constant([2.0, 3.0][index])
      model_state.change(value, step(model_state.read(value), fed))
      state.build_updates()
      updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
      session = tf.Session(cluster.servers[index].target, graph=graph)
      if not index:
        session.run(tf.global_variables_initializer())
      session.run(tf.local_variables_initializer())
      sessions.append((session, updates))
  for session, updates in sessions:
    session.run(updates)
  with graph.as_default():
    assert sessions[1][0].run(value) == expected


@pytest.mark.slow
def test_without_a_ps_each_worker_has_its_own(start):
  [worker] = start(0, 1, is_lock_step=True)
  worker.run(3, 1)
  average, count = worker.read()
  np.testing.assert_allclose(average, [1.2, 1.9], rtol=1e-6)
  assert count == 1


@pytest.mark.slow
@pytest.mark.parametrize('num_ps', [0, 1])
def test_a_slice_goes_on_from_what_the_one_before_leaves(make_cluster, num_ps):
  cluster = make_cluster(num_ps, 1)
  member = cluster.worker(0)
  with tf.Graph().as_default():
    state = model_state.ModelState(member, is_lock_step=False)
    state.activate()
    with tf.device(member.device_setter()):
      average = tf.get_variable('average', initializer=8.0, trainable=False)
    for number, fed in enumerate([[2.0, 4.0], [0.0, 6.0]]):
      if number:
        state.begin_slice()
      for value in fed:  # Of two towers.
        old = model_state.read(average)
        model_state.change(average, old + 0.5 * (value - old))
    state.build_updates()
    with tf.Session(cluster.servers[0].target) as session:
      session.run(tf.global_variables_initializer())
      session.run(tf.local_variables_initializer())
      session.run(tf.get_collection(tf.GraphKeys.UPDATE_OPS))
      # (8 + 3) / 2, and then half of the way from there to 3.
      assert session.run(average) == 4.25


# A counter's is the only update that does not depend on the batch.
@pytest.mark.slow
@pytest.mark.parametrize('num_ps', [0, 1])
def test_a_warmup_counts_nothing(make_cluster, num_ps):
  cluster = make_cluster(num_ps, 1)
  member = cluster.worker(0)
  with tf.Graph().as_default():
    warmup = graph_warmup.Warmup(member.cpu_device)
    batch = warmup.hold_back(tf.constant(4.0))
    state = model_state.ModelState(member, is_lock_step=False)
    state.activate()
    with tf.device(member.device_setter()):
      variables = [
        tf.get_variable(name, initializer=8.0, trainable=False)
        for name in ('average', 'count', 'own')
      ]
    average, count, own = variables
    model_state.change(average, model_state.read(average) / 2 + batch)
    model_state.change(count, model_state.read(count) + 1)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, own.assign_add(1))
    state.build_updates()
    warmup.hold_back_changes([])
    updates = tf.group(*tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    with tf.control_dependencies([updates]):
      done = tf.identity(batch)
    step = warmup.or_zeros(done)
    everything = [*variables, *map(model_state.read, variables)]
    with tf.Session(cluster.servers[0].target) as session:
      session.run(tf.global_variables_initializer())
      session.run(tf.local_variables_initializer())
      for is_on, expected in (True, [8, 8, 8]), (False, [8, 9, 9]):
        session.run(warmup.turn(is_on))
        session.run(step)
        assert session.run(everything[:3]) == expected
      assert session.run(everything[3:5]) == expected[:2]


def test_outside_of_a_training_nothing_changes():
  with tf.Graph().as_default(), tf.Session() as session:
    average = tf.get_variable('average', initializer=5.0, trainable=False)
    model_state.change(average, model_state.read(average) + 1)
    session.run(tf.global_variables_initializer())
    assert session.run(model_state.read(average)) == 5
    assert not tf.get_collection(tf.GraphKeys.UPDATE_OPS)
