"""Ring all-reduce: synchronous SGD with no ps, on TensorFlow's collectives.

Patarasuk and Yuan 2009, JPDC 69(2), for the ring. Every worker i of n holds
all variables x, and all take the same step:

  g = (1/n) sum_i g^i(x);  x <- Opt(x, g)

g^i is the gradient of worker i's batch. The mean is taken by reduce-scatter
and all-gather: a worker sends and receives 2 (n - 1) messages of |x| / n. All
get the same bits, so that x stays equal everywhere, bit for bit. The gradients
travel in buckets (exchange/ring/buckets.py), the last layers first, while those
of the earlier layers are computed.

Variables, slots and the global_step live on each worker; before the first step
the chief, which may have restored them, broadcasts its own. Every step waits
for every worker, and so all of them wait while the chief saves or validates.

With a --wire_dtype of 16 bits each worker casts its gradients before the ring,
which then adds and divides in that dtype; what overflows counts as zeros.
Gradients of float64 stay what they are, in buckets of their own.

If a worker dies (kill -9, a diverged cost), all must end: the ring is broken,
and TensorFlow cannot mend it. Within seconds the others exit with one line and
code 3, which means a lost task; restarted tasks resume from the checkpoint.
Workers agree to stop: one that wants to stop votes in the next step, and all
stop after it. So one SIGTERM ends all workers at the same step, with a
checkpoint. One that leaves a loop of its own takes part in one more step of the
others, with zeros for its gradient, and votes in that.
"""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.exchange.ring import buckets, ring_hook, votes
from distmnist.transport import gradients as gradients_lib
from distmnist.transport import strategy

_BUCKET_MIB = flags.DEFINE_float(
  'bucket_mib',
  4.0,
  'ring_allreduce: gradients travel in buckets of this many MiB, each as soon '
  'as it is full, while others are computed. 0: all together at the end.',
  lower_bound=0,
)


def make(cluster):
  """Returns the rule; raises cli.UsageError if there is a ps."""
  if cluster.num_ps:
    raise cli.UsageError(
      'ring_allreduce keeps its variables on the workers and has no ps: leave '
      '--ps_hosts empty (launch: --num_ps=0)'
    )
  return RingAllreduce(cluster, int(_BUCKET_MIB.value * 2**20))


class RingAllreduce(strategy.Strategy):
  """One mean of all workers' gradients per step, applied by each worker."""

  needs_ps = False
  waits_for_all = True
  is_lock_step = True

  def __init__(self, cluster, bucket_bytes=0):
    super().__init__(cluster)
    self.batches_per_update = cluster.num_workers
    self._votes = votes.Votes(cluster, ring_hook.STEP, bucket_bytes)

  def minimize(self, loss, make_optimizer, global_step):
    with tf.name_scope('ring_allreduce'):
      staleness = tf.constant(0, tf.int64)
      optimizer = make_optimizer()
      has_towers = len(self.cluster.tower_devices) > 1
      pairs = optimizer.compute_gradients(
        loss, colocate_gradients_with_ops=has_towers
      )
      gradients, variables = zip(*gradients_lib.find_moved(pairs), strict=True)
      n = self.cluster.num_workers
      size = buckets.count_bytes(self.cluster, variables)
      num_bytes = round(2 * (n - 1) / n * size)
      if n > 1:
        gradients = self._votes.build_means(gradients, variables)
      apply = optimizer.apply_gradients(zip(gradients, variables, strict=True))
      with tf.control_dependencies([apply]):
        count = global_step.assign_add(1, read_value=False)
      train_op = strategy.read_after(global_step, self.mark_done([count]))
      return strategy.Update(train_op, staleness, num_bytes, num_bytes)

  def hooks(self, stop):
    self._votes.stop = stop
    if self.cluster.num_workers == 1:
      return []
    return [ring_hook.RingHook(self.cluster, self._votes, stop)]

  def request_stop(self, run_context):
    if self.cluster.num_workers == 1:
      run_context.request_stop()
    self._votes.wants_stop = True
