"""async_sgd: two workers stepped by hand, and a NumPy oracle.

A gate between pull and push makes staleness a matter of the test and not of
chance: the gradients of a worker are ready, and so is its read of the global
step, before `begin` returns; nothing is applied before `end`.
"""

import concurrent.futures

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import optimizers, placement
from distmnist.strategies import async_sgd

DEADLINE_SECS = 20


class Worker:
  """The graph of one worker: w starts at 0, loss = sum (w - x)^2 / 2."""

  def __init__(self, cluster, index, num_ps, size, optimizer, rate):
    self.index = index
    with tf.Graph().as_default() as self.graph:
      member = cluster.worker(index)
      with tf.device(member.device_setter()):
        global_step = tf.train.get_or_create_global_step()
        self.x = tf.placeholder(tf.float32, [size])
        with placement.sharded(num_ps):
          self.w = tf.get_variable(
            'w', [size], initializer=tf.zeros_initializer()
          )
        loss = tf.reduce_sum((self.w - self.x) ** 2) / 2
        rule = async_sgd.make(member)
        train_op = rule.minimize(
          loss, lambda: self._make_gated(optimizer, rate), global_step
        )
      self.fetches = [train_op, rule.staleness]
      self.center = tf.convert_to_tensor(self.w)
      self.session = cluster.make_session(index, hooks=[])

  def _make_gated(self, name, rate):
    """Returns the optimizer; its gradients wait at the gate."""
    optimizer = optimizers.make_optimizer(name, rate)
    compute_gradients = optimizer.compute_gradients

    def compute_gated(loss):
      pairs = compute_gradients(loss)
      read_step = self.graph.get_operation_by_name(
        'async_sgd/Read/ReadVariableOp'
      )
      assert read_step.inputs[0].op.name == 'global_step'
      arrived, go = build_gate(self.index)
      with tf.control_dependencies([read_step, *(g for g, _ in pairs)]):
        at_gate = arrived.enqueue(True)
      with tf.control_dependencies([at_gate]):
        passed = go.dequeue()
      with tf.control_dependencies([passed]):
        return [(tf.identity(g), v) for g, v in pairs]

    optimizer.compute_gradients = compute_gated
    return optimizer


def build_gate(index):
  """Returns the queues (arrived, go) of a worker, which live on ps 0."""
  with tf.device('/job:ps/task:0/device:CPU:0'):
    return [
      tf.FIFOQueue(-1, tf.bool, (), shared_name=f'{name}_{index}')
      for name in ('arrived', 'go')
    ]


class Stepper:
  """Two workers that pull and push when they are told to."""

  def __init__(self, cluster, num_ps, size, optimizer, rate):
    self._workers = [
      Worker(cluster, i, num_ps, size, optimizer, rate) for i in range(2)
    ]
    self._threads = concurrent.futures.ThreadPoolExecutor(2)
    self._steps = {}
    target, chief = cluster.servers[0].target, self._workers[0]
    self._reader = tf.Session(target, graph=chief.graph)
    with tf.Graph().as_default():
      gates = [build_gate(i) for i in range(2)]
      self._wait_ops = [arrived.dequeue() for arrived, _ in gates]
      self._go_ops = [go.enqueue(True) for _, go in gates]
      self._gates = tf.Session(target)

  def begin(self, index, x):
    """Lets a worker pull and compute its gradient for `x` (list of float)."""
    worker = self._workers[index]
    self._steps[index] = self._threads.submit(
      worker.session.run,
      worker.fetches,
      {worker.x: x},
      options=tf.RunOptions(timeout_in_ms=1000 * DEADLINE_SECS),
    )
    self._gates.run(
      self._wait_ops[index],
      options=tf.RunOptions(timeout_in_ms=1000 * DEADLINE_SECS),
    )

  def end(self, index):
    """Lets it push; returns (global_step, staleness, center)."""
    self._gates.run(self._go_ops[index])
    step, staleness = self._steps.pop(index).result(DEADLINE_SECS)
    return int(step), int(staleness), self.read_center()

  def step(self, index, x):
    self.begin(index, x)
    return self.end(index)

  def read_center(self):
    return self._reader.run(self._workers[0].center).tolist()

  def close(self):
    for worker in self._workers:
      worker.session.close()
    self._gates.close()
    self._reader.close()
    self._threads.shutdown()


@pytest.fixture
def make_stepper(make_cluster):
  """Returns make(num_ps=1, size=1, optimizer='sgd', rate=0.5) -> Stepper."""
  made = []

  def make(num_ps=1, size=1, optimizer='sgd', rate=0.5):
    cluster = make_cluster(num_ps, 2)
    made.append(Stepper(cluster, num_ps, size, optimizer, rate))
    return made[-1]

  yield make
  for stepper in made:
    stepper.close()


def test_two_workers_one_after_the_other(make_stepper):
  stepper = make_stepper()
  # w <- w - 0.5 (w - x), and nobody is stale.
  assert stepper.step(0, [8]) == (1, 0, [4])
  assert stepper.step(1, [0]) == (2, 0, [2])
  assert stepper.step(1, [10]) == (3, 0, [6])
  assert stepper.step(0, [-2]) == (4, 0, [2])


def test_a_gradient_is_as_stale_as_the_updates_that_came_between(make_stepper):
  stepper = make_stepper()
  stepper.begin(0, [8])  # Pulls w = 0: the gradient is -8.
  assert stepper.step(1, [4]) == (1, 0, [2])
  assert stepper.step(1, [4]) == (2, 0, [3])
  assert stepper.end(0) == (3, 2, [7])  # 3 + 0.5 * 8
  assert stepper.step(0, [7]) == (4, 0, [7])


def test_two_workers_that_overlap(make_stepper):
  stepper = make_stepper()
  stepper.begin(0, [6])
  stepper.begin(1, [2])
  assert stepper.read_center() == [0]
  assert stepper.end(1) == (1, 0, [1])
  assert stepper.end(0) == (2, 1, [4])  # Both gradients are of w = 0.


def compute_async_sgd(w, events, rate, momentum):
  """The rule as its docstring has it, slowly.

  Args:
    w: float array, the center at step 0.
    events: list of (worker, x or None): pull and compute with x, or push.
    rate, momentum: float.

  Returns:
    A list of (global_step, staleness, center), one a push.
  """
  velocity, step = np.zeros_like(w), 0
  at_work, found = {}, []
  for worker, x in events:
    if x is not None:
      at_work[worker] = w - x, step
      continue
    gradient, step_read = at_work.pop(worker)
    velocity = momentum * velocity + gradient
    w = w - rate * velocity
    step += 1
    found.append((step, step - 1 - step_read, w))
  return found


def draw_events(rng, num_events, size):
  events, is_busy = [], [False, False]
  while len(events) < num_events or any(is_busy):
    worker = int(rng.integers(2))
    if len(events) >= num_events and not is_busy[worker]:
      continue
    x = None if is_busy[worker] else rng.normal(size=size)
    is_busy[worker] = not is_busy[worker]
    events.append((worker, x))
  return events


@pytest.mark.parametrize('optimizer, momentum', [('sgd', 0), ('momentum', 0.9)])
@pytest.mark.parametrize('num_ps', [1, 2])
def test_random_pulls_and_pushes_agree_with_the_oracle(
  make_stepper, num_ps, optimizer, momentum
):
  events = draw_events(np.random.default_rng(num_ps), num_events=60, size=5)
  expected = compute_async_sgd(np.zeros(5), events, 0.2, momentum)
  assert {staleness for _, staleness, _ in expected} >= {0, 1, 2}
  stepper = make_stepper(num_ps, 5, optimizer, rate=0.2)
  found = []
  for worker, x in events:
    if x is None:
      found.append(stepper.end(worker))
    else:
      stepper.begin(worker, x)
  for (*numbers, w), (*expected_numbers, expected_w) in zip(
    found, expected, strict=True
  ):
    assert numbers == expected_numbers
    np.testing.assert_allclose(w, expected_w, rtol=1e-4, atol=1e-5)


def test_center_slots_and_step_live_on_the_ps_and_the_worker_keeps_nothing(
  make_stepper,
):
  stepper = make_stepper(2, 5, 'momentum')
  for worker in stepper._workers:
    with worker.graph.as_default():
      variables = {v.op.name: v.device for v in tf.global_variables()}
      assert tf.local_variables() == []
    assert variables == {
      'global_step': '/job:ps/task:0/device:CPU:0',
      'w/part_0': '/job:ps/task:1/device:CPU:0',
      'w/part_1': '/job:ps/task:0/device:CPU:0',
      'w/part_0/Momentum': '/job:ps/task:1/device:CPU:0',
      'w/part_1/Momentum': '/job:ps/task:0/device:CPU:0',
    }
