"""Workers that are stepped by hand, in one process, on real servers.

Each worker minimises (w - x)^T diag(h) (w - x) / 2, so that its gradient is
h (w - x) at the w that it sees, for the x that the test feeds; h is 1 unless
the test gives another Hessian. A gate between the gradients and
all that follows makes the order of events a matter of the test, not of chance:
when `begin` returns the worker has its gradients (and, where the rule reads
it in the same step, the global step); nothing is applied before `end`.
"""

import concurrent.futures
import dataclasses
import types
import typing

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.steps import fused_steps
from distmnist.nn import optimizers
from distmnist.transport import sharding
from tests.support import in_process

DEADLINE_SECS = 120


class Step(typing.NamedTuple):
  """What a step of a worker tells.

  Attributes:
    global_step: int, its train_op.
    staleness: int, -1 if it pushed nothing.
    center: list of float, the center after the step.
  """

  global_step: int
  staleness: int
  center: list


class How(typing.NamedTuple):
  """What is computed, and how.

  Attributes:
    optimizer: str, a name for optimizers.make_optimizer; None: those that the
      flags ask for, as in a training.
    rate: float, its learning rate, everywhere.
    hessian: list of float, h; None is 1.
    wire_dtype: str, as --wire_dtype.
    steps_per_run: int, K, as --steps_per_run; then x comes from a queue, a gate
      opens once a step, and a step ends when the next one has come to its gate.
    build: callable, x -> (w, loss), a model in place of the one above.
  """

  optimizer: str | None = 'sgd'
  rate: float = 0.5
  hessian: list | None = None
  wire_dtype: str = 'float32'
  steps_per_run: int = 1
  build: typing.Callable | None = None


class Worker:
  """The graph and session of one worker; w starts at 0."""

  def __init__(self, cluster, index, make_rule, size, *how, **settings):
    self.index = index
    self.how = how = How(*how, **settings)
    with tf.Graph().as_default() as self.graph:
      member = self.member = dataclasses.replace(
        cluster.worker(index), wire_dtype=how.wire_dtype
      )
      with tf.device(member.device_setter()):
        global_step = tf.train.get_or_create_global_step()
        self.x = tf.placeholder(tf.float32, [size])
        self.rule = make_rule(member)
        with sharding.sharded(member.num_ps), self.rule.scope():
          if how.build:
            w, loss = how.build(self.x)
          else:
            w = tf.get_variable('w', [size], initializer=tf.zeros_initializer())
        self.center_variables = [
          v for v in tf.global_variables() if v is not global_step
        ]
        x = self.x
        if how.steps_per_run > 1:
          with tf.device(member.cpu_device):
            xs = tf.FIFOQueue(-1, tf.float32, [size])
            self.feed, x = xs.enqueue(self.x), xs.dequeue()
        h = tf.ones([size]) if how.hessian is None else how.hessian
        if not how.build:
          loss = tf.reduce_sum(h * (w - x) ** 2) / 2
        update = self.rule.minimize(
          loss, self._make_factory(global_step), global_step
        )
      self.fetches = [
        update.train_op,
        update.staleness,
        update.bytes_pulled + tf.constant(0, tf.int64),
        update.bytes_pushed + tf.constant(0, tf.int64),
      ]
      self.copy = tf.convert_to_tensor(w)
      self.center = tf.concat(
        [v.read_value() for v in self.center_variables], 0
      )
      if how.steps_per_run > 1:
        self._build_run(update)
      self.hooks = self.rule.hooks(in_process.NoStop())
      self.session = cluster.make_session(index, self.hooks)

  def variables(self):
    """Returns ({name: device} of the global, and of the local variables)."""
    with self.graph.as_default():
      return tuple(
        {v.op.name: v.device for v in variables}
        for variables in (tf.global_variables(), tf.local_variables())
      )

  def _build_run(self, update):
    """Has `run` make K steps in one session.run."""
    self._steps = fused_steps.Steps(
      {'global_step': update.train_op, 'staleness': update.staleness},
      self.how.steps_per_run,
      None,
      graph_record.of(self.graph).exchanges,
    )
    self._steps.num_local_steps = 0

  def run(self, x):
    """Makes a session.run; returns the `fetches` of its last step.

    Args:
      x: list of float; unused if it comes from a queue.
    """
    options = tf.RunOptions(timeout_in_ms=1000 * DEADLINE_SECS)
    if self.how.steps_per_run == 1:
      return self.session.run(self.fetches, {self.x: x}, options=options)
    fetches = self._steps.before_run(None).fetches
    results = self.session.run(fetches, options=options)
    self._steps.after_run(None, types.SimpleNamespace(results=results))
    self.done = [(s['global_step'], s['staleness']) for s in self._steps.done]
    return *self.done[-1], 0, 0

  def _make_factory(self, global_step):
    """Returns make_optimizer; the gradients of its optimizers are gated."""
    how = self.how
    if how.optimizer is None:
      make_plain, _ = optimizers.from_flags(global_step)
    else:

      def make_plain(is_local=False, rate_factor=None):
        del is_local
        factor = 1 if rate_factor is None else rate_factor
        return optimizers.make_optimizer(how.optimizer, how.rate * factor)

    def make(is_local=False, rate_factor=None):
      return _GatedOptimizer(make_plain(is_local, rate_factor), self._gate)

    return make

  def _gate(self, pairs):
    # A read that waits for something belongs to what comes later.
    reads_of_step = [
      op
      for op in self.graph.get_operations()
      if op.type == 'ReadVariableOp'
      and op.inputs[0].op.name == 'global_step'
      and not op.control_inputs
    ]
    arrived, go = build_gate(self.index)
    with tf.control_dependencies([*reads_of_step, *(g for g, _ in pairs)]):
      at_gate = arrived.enqueue(True)
    with tf.control_dependencies([at_gate]):
      passed = go.dequeue()
    with tf.control_dependencies([passed]):
      return [(tf.identity(g), v) for g, v in pairs]


class _GatedOptimizer(tf.train.Optimizer):
  """An optimizer whose gradients go through a gate."""

  def __init__(self, optimizer, gate):
    super().__init__(use_locking=False, name='gated')
    self._optimizer, self._gate = optimizer, gate
    self.takes_all_norms = optimizer.takes_all_norms

  def compute_gradients(self, *args, **how):
    return self._gate(self._optimizer.compute_gradients(*args, **how))

  def apply_gradients(self, *args, **how):
    return self._optimizer.apply_gradients(*args, **how)


class NoSessions:
  """Stands for an InProcessCluster of two ps whose graphs are not run."""

  def worker(self, index):
    ps_hosts, worker_hosts = ('p0:1', 'p1:1'), ('w0:1', 'w1:1')
    return cluster_lib.make_cluster(ps_hosts, worker_hosts, 'worker', index)

  def make_session(self, index, hooks):
    pass


def build_gate(index):
  """Returns the queues (arrived, go) of a worker, which live on ps 0."""
  with tf.device('/job:ps/task:0/device:CPU:0'):
    return [
      tf.FIFOQueue(-1, tf.bool, (), shared_name=f'{name}_{index}')
      for name in ('arrived', 'go')
    ]


class Stepper:
  """Workers that compute and push when they are told to."""

  def __init__(self, cluster, make_rule, size=1, **how):
    """
    Args:
      cluster: in_process.InProcessCluster.
      make_rule: callable(cluster.Cluster) -> strategy.Strategy.
      size: int, the length of w.
      **how: fields of How.
    """
    self._make_worker = lambda index: Worker(
      cluster, index, make_rule, size, **how
    )
    self.workers = [self._make_worker(i) for i in range(cluster.num_workers)]
    self._gone = set()
    self._num_left = [0] * cluster.num_workers
    self._threads, self._gate_threads = (
      concurrent.futures.ThreadPoolExecutor(len(self.workers)) for _ in range(2)
    )
    self._steps = {}
    target, chief = cluster.servers[0].target, self.workers[0]
    self._reader = tf.Session(target, graph=chief.graph)
    with tf.Graph().as_default():
      gates = [build_gate(worker.index) for worker in self.workers]
      self._wait_ops = [arrived.dequeue() for arrived, _ in gates]
      self._go_ops = [go.enqueue(True) for _, go in gates]
      self._gates = tf.Session(target)

  def begin(self, index, x):
    """Lets a worker compute its gradient for `x` (list of float)."""
    worker = self.workers[index]
    if worker.how.steps_per_run > 1:
      worker.session.run(worker.feed, {worker.x: x})
    if not self._num_left[index]:
      self._num_left[index] = worker.how.steps_per_run
      self._steps[index] = self._threads.submit(worker.run, x)
    self._wait_for_gate(index)

  def _wait_for_gate(self, index):
    options = tf.RunOptions(timeout_in_ms=1000 * DEADLINE_SECS)
    arrival = self._gate_threads.submit(
      self._gates.run, self._wait_ops[index], options=options
    )
    step = self._steps[index]
    concurrent.futures.wait(
      [arrival, step], return_when=concurrent.futures.FIRST_COMPLETED
    )
    if step.done() and not arrival.done():
      step.result()  # Raises what has ended it on its way to the gate.
    arrival.result()

  def release(self, index):
    """Opens the gate of a worker and does not wait for its step."""
    self._gates.run(self._go_ops[index])
    self._num_left[index] -= 1

  def is_done(self, index, wait_secs=0.1):
    """Whether a released step has ended; waits so long for it."""
    done, _ = concurrent.futures.wait([self._steps[index]], wait_secs)
    return bool(done)

  def join(self, index):
    """Waits for the end of a released step; returns its Step."""
    self._num_left[index] = 0  # One that was killed has steps left.
    fetched = self._steps.pop(index).result(DEADLINE_SECS)
    step, staleness, self.bytes_pulled, self.bytes_pushed = map(int, fetched)
    return Step(step, staleness, self.read_center())

  def end(self, index):
    self.release(index)
    return self.join(index)

  def step(self, index, x):
    self.begin(index, x)
    return self.end(index)

  def step_together(self, xs):
    """A step of all workers at once, for rules that wait for each other.

    Args:
      xs: list of lists of float, one a worker.

    Returns:
      The list of Step, read when all have ended.
    """
    for index, x in enumerate(xs):
      self.begin(index, x)
    for index in range(len(xs)):
      self.release(index)
    return [self.join(index) for index in range(len(xs))]

  def leave(self, index, end=None):
    """Ends a worker's session in order, or calls `end` to have it end."""
    self._gone.add(index)
    (end or self.workers[index].session.close)()

  def come_back(self, index):
    """Puts a worker that just starts in the place of one that is away.

    One that has not left before is as good as dead: no hook runs at its end.
    """
    new = self._make_worker(index)
    # The center is read by the graph of the first worker 0.
    new.center = self.workers[index].center
    self.workers[index] = new
    self._gone.discard(index)

  def read_center(self):
    return self._reader.run(self.workers[0].center).tolist()

  def read_copies(self):
    return [self.read_copy(i) for i in range(len(self.workers))]

  def read_copy(self, index):
    """What a worker's model sees: its copy, or the center if it has none."""
    worker = self.workers[index]
    return worker.session.run(worker.copy).tolist()

  def close(self):
    for worker in self.workers:
      if worker.index not in self._gone:
        worker.session.close()
    self._gates.close()
    self._reader.close()
    self._threads.shutdown()
    self._gate_threads.shutdown()
