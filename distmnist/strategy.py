"""The contract of a strategy: one distributed update rule.

A file of `strategies/` defines `make(cluster)`, which reads the rule's flags
and returns a Strategy. `train` then builds the model inside `scope()` and
calls `minimize` outside of it; this order matters, as the accumulators of a
partitioned model cannot be built inside a partitioner's scope.

  with tf.device(cluster.device_setter()):
    with strategy.scope():
      logits = build_model(images)
    train_op = strategy.minimize(loss, make_optimizer, global_step)
"""

import contextlib

import tensorflow.compat.v1 as tf

from distmnist import cli


class Strategy:
  """Where variables live, what a step does, what a session needs.

  Attributes:
    batches_per_update: int, the batches that one update of the center takes
      in: global_step * batches_per_update * batch_size images were used.
    staleness: int64 scalar tensor, set by `minimize`: the updates of the
      center between this worker's read and its write. None if not known.
    drops_stale: bool, whether a gradient with staleness > 0 is thrown away.
  """

  batches_per_update = 1
  drops_stale = False

  def __init__(self, cluster):
    """Checks that the cluster fits the rule.

    Raises:
      cli.UsageError: several workers without a ps.
    """
    if cluster.num_workers > 1 and not cluster.num_ps:
      raise cli.UsageError(
        f'{cluster.num_workers} workers but no ps: this strategy keeps its '
        'variables on a ps; name one in --ps_hosts (launch: --num_ps=1)'
      )
    self.cluster = cluster
    self.staleness = None

  def scope(self):
    """The context in which the model's variables are made."""
    return contextlib.nullcontext()

  def minimize(self, loss, make_optimizer, global_step):
    """Builds one step of this worker.

    Args:
      loss: float32 scalar tensor, the mean over this worker's batch.
      make_optimizer: callable without arguments that returns a new
        tf.train.Optimizer; a rule may want one here and one for the center.
      global_step: int64 scalar variable, the updates of the center.

    Returns:
      train_op: int64 scalar tensor, global_step once the step is applied.
    """
    raise NotImplementedError

  def hooks(self, stop):
    """SessionRunHooks of the rule; `stop` is the StopRequest of the task."""
    del stop
    return []


def read_after(variable, ops):
  """Returns the value of `variable` once all `ops` have run."""
  with tf.control_dependencies(ops), tf.device(variable.device):
    return variable.read_value()
