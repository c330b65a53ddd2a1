"""Stale synchronous parallel: asynchronous, but nobody runs far ahead.

Ho et al. 2013, "More effective distributed ML via a stale synchronous parallel
parameter server" (NIPS), section 2; second source: Dai et al. 2015, "High-
performance distributed ML at scale through parameter server consistency
models", arXiv 1410.8043. c^i counts the steps of worker i; it may start its
next one if and only if

  c^i - min_j c^j <= S

and then does what async_sgd does: pull x~;  g = g^i(x~);  x~ <- Opt(x~, g).
S (ssp_bound) = 0 is bulk-synchronous, a large S asynchronous.

Variables, slots and the clocks c live on the ps, with a queue of permits a
worker: each time min_j c^j rises, every worker gets a permit. A worker takes
one at the end of a step, so it waits where its next step may not start yet.
The others wait for a worker that died, S steps ahead of its clock, until it is
back. One that leaves in order, or is asked to stop, holds up nobody.
"""

import contextlib
import threading

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import center, round_state, strategy

_SSP_BOUND = flags.DEFINE_integer(
  'ssp_bound',
  3,
  'ssp: S, how many steps a worker may be ahead of the slowest.',
  lower_bound=0,
)
# The clock of a worker that has left; nobody waits for it.
_NEVER = 2**62
# One that is asked to stop gets so many permits at a time: each step that its
# session.run has left takes one.
_NUM_OFFERED, _OFFER_SECS = 16, 0.1


def make(cluster):
  return Ssp(cluster, _SSP_BOUND.value)


class Ssp(strategy.Strategy):
  """async_sgd with a bound on how far the workers drift apart."""

  waits_for_all = True

  def __init__(self, cluster, bound):
    super().__init__(cluster)
    self._bound = bound
    self._center = center.Center(cluster)

  def scope(self):
    return self._center.scope()

  def minimize(self, loss, make_optimizer, global_step):
    with tf.name_scope('ssp'):
      self._clocks = _Clocks(self.cluster, self._bound, global_step.device)
      optimizer = make_optimizer()
      read_step = strategy.read_after(global_step, [])
      gradients = self._center.compute_gradients(optimizer, loss)
      self.bytes_pulled = self.bytes_pushed = self._center.num_bytes
      pairs = self._center.to_shards(gradients)
      with tf.device(global_step.device):  # Where all ps meet.
        apply = optimizer.apply_gradients(pairs)
      new_step, self.staleness = strategy.count_update(
        global_step, [apply], read_step, self.mark_done
      )
      ticked = self._clocks.tick_and_wait([new_step])
      with tf.control_dependencies([ticked]), tf.device(global_step.device):
        return tf.identity(new_step)

  def pause(self, session):
    session.run(self._clocks.leave)

  def resume(self, session):
    session.run(self._clocks.enter)

  def hooks(self, stop):
    return [_SspHook(self._clocks, stop)]


class _Clocks:
  """The vector c and the permits, all on one ps and changed under one lock.

  The clocks are in no collection: a ps that comes back starts them anew, and
  no checkpoint remembers them.
  """

  def __init__(self, cluster, bound, device):
    self._bound = bound
    self._worker = cluster.task_index
    self._device = device
    with tf.device(device):
      self._clocks = tf.Variable(
        tf.zeros([cluster.num_workers], tf.int64),
        trainable=False,
        collections=[],
        name='clocks',
      )
      self._lock = tf.CriticalSection(name='lock', shared_name='ssp/lock')
      self._permits = [
        tf.FIFOQueue(-1, tf.bool, (), shared_name=f'ssp/permits_{i}')
        for i in range(cluster.num_workers)
      ]
      self.state = (
        self._clocks.read_value(),
        tf.stack([queue.size() for queue in self._permits]),
      )
      self.enter, self.leave = self._build_enter(), self._advance(_NEVER)
      self.offer = self._permits[self._worker].enqueue_many(
        [tf.fill([_NUM_OFFERED], True)]
      )

  def tick_and_wait(self, ops):
    """Returns the op that counts a step and waits for a permit, after `ops`."""
    with tf.control_dependencies(ops), tf.device(self._device):
      ticked = self._advance(None)
    with tf.control_dependencies([ticked]), tf.device(self._device):
      return self._permits[self._worker].dequeue()

  def _advance(self, new_clock):
    """Sets this worker's clock, or adds one to it for None."""

    def advance():
      clocks = self._clocks.read_value()
      new = clocks[self._worker] + 1 if new_clock is None else new_clock
      least, after = self._set(clocks, new)
      # All have left if the least is _NEVER: nobody needs a permit.
      num_permits = tf.where(after < _NEVER, after - least, 0)
      with tf.control_dependencies(
        [
          queue.enqueue_many([tf.fill([num_permits], True)])
          for queue in self._permits
        ]
      ):
        return tf.identity(after)

    return self._lock.execute(advance)

  def _build_enter(self):
    """Brings a worker that starts, or comes back, among the others."""

    def enter():
      clocks = tf.cond(
        tf.is_variable_initialized(self._clocks),
        self._clocks.read_value,
        lambda: tf.zeros_like(self._clocks.initial_value),
      )
      own = clocks[self._worker]
      others = tf.concat(
        [clocks[: self._worker], clocks[self._worker + 1 :], [_NEVER]], 0
      )
      slowest = tf.reduce_min(others)
      # After all others have left there is nobody to be compared with.
      slowest = tf.where(slowest < _NEVER, slowest, 0)
      own = tf.where(own < _NEVER, own, slowest)
      # It may have died in its wait, a step further than it may go.
      own = tf.where(
        tf.reduce_min(others) < _NEVER,
        tf.minimum(own, slowest + self._bound),
        own,
      )
      _, least = self._set(clocks, own)
      permits = self._permits[self._worker]
      drain = permits.dequeue_many(tf.cast(permits.size(), tf.int32))
      with tf.control_dependencies([drain, least]):
        fill = permits.enqueue_many(
          [tf.fill([self._bound + least - own], True)]
        )
      with tf.control_dependencies([fill]):
        return tf.identity(least)

    return self._lock.execute(enter)

  def _set(self, clocks, own):
    """Returns (the least clock before, and after this worker's is `own`)."""
    new = tf.tensor_scatter_nd_update(clocks, [[self._worker]], [own])
    with tf.control_dependencies([self._clocks.assign(new)]):
      return tf.reduce_min(clocks), tf.reduce_min(new)


class _SspHook(strategy.CenterHook):
  def __init__(self, clocks, stop):
    self._clocks = clocks
    self._stop = stop
    self._session = None
    self._has_left = threading.Event()

  def begin(self):
    self._stop.on_request(self._leave_the_wait)

  def after_create_session(self, session, coord):
    session.run(self._clocks.enter)
    self._session = session

  def describe_wait(self):
    if self._session is None:
      return ''
    try:
      clocks, permits = round_state.read(
        self._session.sess_str,
        self._session.graph,
        self._session._config,
        self._clocks.state,
      )
    except tf.errors.OpError as error:
      return f'the clocks cannot be read ({type(error).__name__})'
    return format_state(clocks, permits)

  def end(self, session):
    self._has_left.set()
    session.run(self._clocks.leave)

  def _leave_the_wait(self):
    if self._session is None:
      return
    with contextlib.suppress(tf.errors.OpError, RuntimeError):
      while not self._has_left.is_set():
        self._session.run(self._clocks.offer)
        self._has_left.wait(_OFFER_SECS)


def format_state(clocks, permits):
  """Returns a line on the clocks and permits, int arrays [num_workers]."""
  texts = [
    f'worker {i} '
    + (f'at step {clock}' if clock < _NEVER else 'has left')
    + f' with {permits[i]} permits'
    for i, clock in enumerate(clocks)
  ]
  return f'the clocks: {", ".join(texts)}'
