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
from the checkpoint. Workers agree to stop: one that wants to votes in the next
step, and all stop after it. So one SIGTERM ends all workers at one step, with a
checkpoint.
"""

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.exchange import nonfinite, strategy, transport
from distmnist.exchange.ring import collectives, ring_hook


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
      staleness = tf.constant(0, tf.int64)
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
      if n > 1:
        gradients = self._build_means(gradients, variables)
      apply = optimizer.apply_gradients(zip(gradients, variables, strict=True))
      with tf.control_dependencies([apply]):
        count = global_step.assign_add(1, read_value=False)
      train_op = strategy.read_after(global_step, self.mark_done([count]))
      return strategy.Update(train_op, staleness, num_bytes, num_bytes)

  def _build_means(self, gradients, variables):
    """Returns the workers' means, and sets the share of votes on the way."""
    # All in one tensor: a collective op costs more than a small gradient.
    with tf.device(self.cluster.cpu_device):
      votes = tf.py_func(self._vote, [], tf.float32, name='votes')
      parts = [*gradients, tf.ensure_shape(votes, [2])]
      sent = tf.cast(transport.flatten(parts), self._wire_dtype)
      # The votes go with it; a worker that wants to stop votes again.
      sent = nonfinite.guard(sent, self.cluster.task_index)
      mean = collectives.build_mean(self.cluster, sent, ring_hook.STEP)
      mean = tf.cast(mean, tf.float32)
      *means, self._votes = transport.split_like(mean, [*variables, parts[-1]])
    return means

  def _vote(self):
    """float32 [2]: whether this worker wants to stop; whether by a signal."""
    is_preempted = self._stop is not None and self._stop.is_requested
    return np.array([self._wants_stop, is_preempted], np.float32)

  def hooks(self, stop):
    self._stop = stop
    if self.cluster.num_workers == 1:
      return []
    return [ring_hook.RingHook(self.cluster, self._votes, stop)]

  def request_stop(self, run_context):
    if self.cluster.num_workers == 1:
      run_context.request_stop()
    self._wants_stop = True
