"""All-reduce: synchronous SGD with no ps.

Every worker i of n holds all variables x, and all take the same step:

  g = (1/n) sum_i g^i(x);  x <- Opt(x, g)

g^i is the gradient of worker i's batch. Where its loss is divided by what
counts in the batch, w^i, as by the sum of a mask, g = sum_i w^i g^i / sum_i
w^i, and w^i travels with w^i g^i (Strategy.weigh_by). A short vector goes from
each worker to each; of a long one each worker adds up a chunk for all, so that
a worker sends, and gets, 2 (n - 1) / n |x| as in a ring, but in two hops
instead of 2 (n - 1) (exchange/ring/all_reduce.py, with its sources). All get
the same bits, so that x stays equal everywhere, bit for bit. The gradients
travel in buckets (exchange/ring/buckets.py), the last layers first, while those
of the earlier layers are computed.

Variables, slots and the global_step live on each worker; before the first step
the chief, which may have restored them, gives its own to all. Every step waits
for every worker, and so all of them wait while the chief saves or validates.

With a --wire_dtype of 16 bits each worker casts its gradients before they
travel; they are added up in float32, and their mean is rounded once to 16 bits,
also where it does not travel again. Gradients of float64 stay what they are, in
buckets of their own.

If a worker dies, nobody has its part of the step: the step of the others breaks
off, and has changed no variable, as each change waits until all means are
there. They keep their variables, wait for its successor (start_timeout_secs)
and meet (exchange/ring/meeting.py): the worker that has made most steps, at
most one more than another, gives its values to those that have fewer or none.
So the successor reads no checkpoint, also that of the chief, and no step is
lost. If nobody comes, they exit with one line and code 3, which means a lost
task; if all are lost, the chief restores the last checkpoint.

Workers agree to stop: one that wants to stop votes in the next step, and all
stop after it. So one SIGTERM ends all workers at the same step, with a
checkpoint. One that leaves a loop of its own takes part in one more step of the
others, with zeros for its gradient, and votes in that. One whose input ends
within a step does so in that step, but adds up nothing for the others: its
chunks stay as they were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import tf_internals
from distmnist.common import cli
from distmnist.exchange.ring import buckets, ring_hook, votes
from distmnist.exchange.steps import graph_warmup
from distmnist.nn import plateau as plateau_lib
from distmnist.transport import gradients as gradients_lib
from distmnist.transport import strategy

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.cluster.stop_request import StopRequest


_BUCKET_MIB = flags.DEFINE_float(
  'bucket_mib',
  4.0,
  'ring_allreduce: gradients travel in buckets of this many MiB, each as soon '
  'as it is full, while others are computed. 0: all together at the end.',
  lower_bound=0,
)


def make(cluster: Cluster) -> RingAllreduce:
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

  def __init__(self, cluster: Cluster, bucket_bytes: int = 0) -> None:
    super().__init__(cluster)
    self.batches_per_update = cluster.num_workers
    self._votes = votes.Votes(cluster, bucket_bytes)
    if cluster.num_workers > 1:
      self.agreement = self._votes
    self._bucket_bytes = bucket_bytes
    self._arrival = self._hook = None

  def minimize(
    self,
    loss: tf.Tensor,
    make_optimizer: strategy.MakeOptimizer,
    global_step: tf.Variable,
  ) -> strategy.Update:
    with tf.name_scope('ring_allreduce'):
      staleness = tf.constant(0, tf.int64)
      optimizer = make_optimizer()
      has_towers = len(self.cluster.tower_devices) > 1
      pairs = optimizer.compute_gradients(
        loss, colocate_gradients_with_ops=has_towers
      )
      gradients, variables = zip(*gradients_lib.find_moved(pairs), strict=True)
      num_bytes, followed = 0, []
      if self.cluster.num_workers > 1:
        num_bytes = buckets.count_sent(
          self.cluster, variables, self._bucket_bytes
        )
        plateau = plateau_lib.find()
        is_untold = plateau.build_is_untold() if plateau else False
        gradients = self._votes.build_means(
          gradients, variables, is_untold, self._batch_weight
        )
        if plateau:
          told = is_untold, self._votes.is_any_cut
          followed = [plateau.build_follow(*told)]
        # For `hold_back`, without which a change waits for its own mean alone.
        arrived = [*gradients, self._votes.mean]
        with (
          tf.device(self.cluster.cpu_device),
          tf.control_dependencies(arrived),
        ):
          self._arrival = tf.no_op('arrival')
      apply = optimizer.apply_gradients(zip(gradients, variables, strict=True))
      with tf.control_dependencies([apply, *followed]):
        count = global_step.assign_add(1, read_value=False)
      train_op = strategy.read_after(global_step, self.mark_done([count]))
      return strategy.Update(train_op, staleness, num_bytes, num_bytes)

  def hold_back(self, ops: Sequence[tf.Operation | tf.Tensor]) -> None:
    # Each waits for all means, and so does batch norm, or what else a model
    # changes itself.
    if self._arrival is not None:
      for op in graph_warmup.find_changes(ops, self._arrival):
        tf_internals.add_control_inputs(op, [self._arrival])

  def gather(self, session: tf.Session) -> None:
    if self._hook:
      self._hook.gather(session)

  def describe_exchange(self) -> list[str]:
    return self._votes.describe() if self.cluster.num_workers > 1 else []

  def hooks(self, stop: StopRequest) -> list[tf.train.SessionRunHook]:
    self._votes.stop = stop
    if self.agreement is None:
      return []
    self._hook = ring_hook.RingHook(self.cluster, self._votes, stop)
    return [self._hook]

  def request_stop(self, run_context: tf.train.SessionRunContext) -> None:
    if self.cluster.num_workers == 1:
      run_context.request_stop()
    self._votes.wants_stop = True
