"""Ring all-reduce: synchronous SGD with no ps, by TensorFlow's collectives.

Patarasuk and Yuan 2009, JPDC 69(2), for the ring. Every worker i of n holds
all variables x, and all make the same step:

  g = (1/n) sum_i g^i(x);  x <- Opt(x, g)

g^i is the gradient of worker i's batch. The mean is taken by reduce-scatter
and all-gather: a worker sends and receives 2 (n - 1) messages of |x| / n. All
get the same bits, so that x stays equal everywhere, bit for bit.

Variables, slots and the global_step live on each worker; before the first step
the chief, which may have restored them, broadcasts its own. Every step waits
for every worker, and so does all of it for the chief that saves or validates.

With a --wire_dtype of 16 bits each worker casts its gradients before the ring,
which then adds and divides in that dtype.

A worker that dies (kill -9, a diverged cost) is the end for all: its ring is
broken and TensorFlow cannot mend it. Within seconds the others end with one
line and exit code 3, that of a lost task; tasks that are started again resume
from the checkpoint. To stop is agreed upon: who wants it votes in the next
step, and all stop after it. So one SIGTERM ends all workers at one step, with a
checkpoint.
"""

import contextlib
import signal

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist import cli, collectives, nonfinite, strategy, wire

# The names of the collective ops; the broadcast takes those from _BROADCAST
# on, one a dtype.
_STEP, _END, _BROADCAST = 1, 2, 3
_END_TIMEOUT_SECS = 5.0


def make(cluster):
  """Returns the rule; raises cli.UsageError if there is a ps."""
  if cluster.num_ps:
    raise cli.UsageError(
      'ring_allreduce keeps its variables on the workers and has no ps: leave '
      '--ps_hosts empty (launch: --num_ps=0)'
    )
  return RingAllreduce(cluster)


class RingAllreduce(strategy.Strategy):
  """One mean of all workers' gradients a step, applied by each of them."""

  needs_ps = False
  waits_for_all = True
  is_lock_step = True

  def __init__(self, cluster):
    super().__init__(cluster)
    self.batches_per_update = cluster.num_workers
    self._wire_dtype = tf.as_dtype(cluster.wire_dtype)
    self._wants_stop = False
    self._stop = None
    self._votes = None

  def minimize(self, loss, make_optimizer, global_step):
    with tf.name_scope('ring_allreduce'):
      self.staleness = tf.constant(0, tf.int64)
      optimizer = make_optimizer()
      gradients, variables = zip(
        *[
          pair
          for pair in optimizer.compute_gradients(
            loss,
            colocate_gradients_with_ops=len(self.cluster.tower_devices) > 1,
          )
          if pair[0] is not None
        ],
        strict=True,
      )
      n = self.cluster.num_workers
      size = sum(v.shape.num_elements() for v in variables)
      size *= self._wire_dtype.size
      num_bytes = round(2 * (n - 1) / n * size)
      self.bytes_pulled = self.bytes_pushed = num_bytes
      if n > 1:
        gradients = self._build_means(gradients, variables)
      apply = optimizer.apply_gradients(zip(gradients, variables, strict=True))
      with tf.control_dependencies([apply]):
        count = global_step.assign_add(1, read_value=False)
      return strategy.read_after(global_step, [count])

  def _build_means(self, gradients, variables):
    """Returns the workers' means, and sets the share of votes on the way."""
    # All in one tensor: a collective op costs more than a small gradient.
    with tf.device(self.cluster.cpu_device):
      votes = tf.py_func(self._vote, [], tf.float32, name='votes')
      parts = [*gradients, tf.ensure_shape(votes, [2])]
      sent = tf.cast(wire.flatten(parts), self._wire_dtype)
      # The votes go with it; who wants to stop votes again.
      sent = nonfinite.guard(sent, self.cluster.task_index)
      mean = collectives.build_mean(self.cluster, sent, _STEP)
      mean = tf.cast(mean, tf.float32)
      *means, self._votes = wire.split_like(mean, [*variables, parts[-1]])
    return means

  def _vote(self):
    """float32 [2]: whether this worker wants to stop; whether by a signal."""
    is_preempted = self._stop is not None and self._stop.is_requested
    return np.array([self._wants_stop, is_preempted], np.float32)

  def hooks(self, stop):
    self._stop = stop
    if self.cluster.num_workers == 1:
      return []
    return [_RingHook(self.cluster, self._votes, stop)]

  def request_stop(self, run_context):
    if self.cluster.num_workers == 1:
      run_context.request_stop()
    self._wants_stop = True


class _RingHook(tf.train.SessionRunHook):
  """Equal variables at the start, one last step for all, a barrier there."""

  def __init__(self, cluster, votes, stop):
    """
    Args:
      cluster: cluster.Cluster.
      votes: float32 [2], the means of what all workers' `_vote` returned.
      stop: preemption.StopRequest.
    """
    self._cluster = cluster
    self._votes = votes
    self._stop = stop

  def begin(self):
    cluster, variables = self._cluster, {}
    for variable in tf.global_variables():
      variables.setdefault(variable.dtype.base_dtype, []).append(variable)
    # The slash enters the scope of the step again.
    with tf.name_scope('ring_allreduce/'), tf.device(cluster.cpu_device):
      dtypes = sorted(variables, key=lambda dtype: dtype.name)
      self._broadcast_op = [
        collectives.build_broadcast(cluster, variables[dtype], _BROADCAST + i)
        for i, dtype in enumerate(dtypes)
      ]
      self._end_op = collectives.build_mean(
        cluster, tf.zeros([1]), _END, _END_TIMEOUT_SECS
      )

  def after_create_session(self, session, coord):
    try:
      session.run(self._broadcast_op)
    except tf.errors.DeadlineExceededError as error:
      raise cli.RunError(
        'not all workers were ready for the first step within '
        f'{self._cluster.start_timeout_secs:g} s: see their logs'
      ) from error
    except tf.errors.InvalidArgumentError as error:
      raise cli.RunError(
        'the workers do not have the same variables: check that all tasks have '
        'the same flags'
      ) from error

  def before_run(self, run_context):
    return tf.train.SessionRunArgs(self._votes)

  def after_run(self, run_context, run_values):
    wants_stop, is_preempted = run_values.results > 0
    if is_preempted:
      self._stop.request(signal.SIGTERM)
    if wants_stop or is_preempted:
      run_context.request_stop()

  def end(self, session):
    """Nobody leaves while another may still fetch its part of the last mean."""
    with contextlib.suppress(tf.errors.OpError):
      session.run(self._end_op)
