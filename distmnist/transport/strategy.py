"""The contract of a strategy: one distributed update rule.

Each file in `strategies/` defines `make(cluster)`, which reads the rule's flags
and returns a Strategy. `train` then builds the model inside `scope()` and
calls `minimize` outside of it; this order matters, as the accumulators of a
partitioned model cannot be built inside a partitioner's scope.

  with tf.device(cluster.device_setter()):
    with strategy.scope():
      logits = build_model(images)
    update = strategy.minimize(loss, make_optimizer, global_step)
  session.run(update.train_op)

The flags defined here are shared by several rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.transport import weight_averages, wire

_COMMUNICATION_PERIOD = flags.DEFINE_integer(
  'communication_period',
  None,
  'ad_psgd, agn, sagn, easgd, dynsgd, bmuf: local steps from one exchange to '
  'the next. Each rule has its own default.',
  lower_bound=1,
)
_MAX_STALENESS = flags.DEFINE_integer(
  'max_staleness',
  None,
  'drop_stale, ringmaster: a gradient is dropped if more updates than this '
  'came between its pull and its push. By default 3; ringmaster: R - 1 of the '
  'paper, 2 n - 1 with n workers.',
  lower_bound=0,
)
_REPLICAS_TO_AGGREGATE = flags.DEFINE_integer(
  'replicas_to_aggregate',
  None,
  'sync_sgd, sagn: gradients in one update; fewer than there are workers '
  'leaves backup workers. By default one per worker.',
  lower_bound=1,
)


class Update(NamedTuple):
  """One step of a worker, as `Strategy.minimize` has built it.

  Attributes:
    train_op: int64 scalar tensor, global_step once the step is applied; the
      last known one where a step does not contact the center.
    staleness: int64 scalar tensor: the updates of the center between this
      worker's read and its write; -1 if this step wrote nothing. None if not
      known.
    bytes_pulled, bytes_pushed: int, or int64 scalar tensor: the bytes of
      variables that this step read from the center, and of gradients or
      variables that it sent there.
  """

  train_op: tf.Tensor
  staleness: tf.Tensor | None
  bytes_pulled: int | tf.Tensor
  bytes_pushed: int | tf.Tensor


# What ends a push, and the ops that follow it: see `Strategy.mark_done`.
MarkDone = Callable[[list[tf.Operation]], list[tf.Operation]]


class MakeOptimizer(Protocol):
  """Makes a new optimizer for a step."""

  def __call__(
    self, is_local: bool = False, rate_factor: tf.Tensor | None = None
  ) -> tf.train.Optimizer:
    """
    Args:
      is_local: whether it is for a worker's own copy and not for the center.
      rate_factor: float32 scalar tensor by which the learning rate is
        multiplied.
    """
    ...


class Strategy:
  """Where variables live, what a step does, what a session needs.

  Attributes, all known before `minimize`:
    batches_per_update: the batches that go into one update of the center:
      global_step * batches_per_update * batch_size images were used.
    pull_period, push_period: the local steps from one pull, or push, of the
      whole center to the next.
    share_with_ps: the share of a worker's exchanges that are with the center;
      the others are with workers.
    max_staleness: a staler gradient is thrown away. None if none ever is.
    needs_ps: whether the center is on ps; otherwise each worker has it.
    has_local_steps: whether workers step on copies of their own, so that no
      batch was computed with the weights of the center.
    has_center_optimizer: whether --optimizer, too, moves the center.
    is_lock_step: whether one push from each worker makes a global step.
    overlaps_exchange: whether a worker pulls for its next step while it pushes.
    max_shard_bytes: a variable with larger shards is cut further than into one
      per ps, unless --max_shard_mib says otherwise; None for no such cut.
    needs_warmup: whether a step begins with a copy of the center that was
      pulled before it, and no other worker waits for its push: see
      exchange/steps/graph_warmup.py.
    waits_for_all: whether a worker lost for good sooner or later holds up the
      others.
    takes_tables: whether a model may have sparse tables
      (tables/sparse_table.py).
    agreement: RunAgreement, where all workers must make as many steps at a
      time; None where each makes its own (exchange/steps/run_length.py).
    refuses_tables_with: a flag with which it takes none after all, or ''.
    needs_sgd: a flag under which only plain sgd moves variables, or ''.
  """

  batches_per_update = pull_period = push_period = 1
  share_with_ps = 1.0
  max_staleness: int | None = None
  agreement: RunAgreement | None = None
  needs_ps = True
  has_center_optimizer = True
  is_lock_step = has_local_steps = overlaps_exchange = False
  max_shard_bytes: int | None = None
  _build_mark: Callable[[list[tf.Operation]], tf.Operation] | None = None
  _batch_weight: tf.Tensor | None = None
  needs_warmup = waits_for_all = takes_tables = False
  refuses_tables_with = needs_sgd = ''

  def __init__(self, cluster: wire.ClusterView) -> None:
    """Checks that the cluster fits the rule.

    Raises:
      cli.UsageError: several workers without a ps.
    """
    if self.needs_ps and cluster.num_workers > 1 and not cluster.num_ps:
      raise cli.UsageError(
        f'{cluster.num_workers} workers but no ps: this strategy keeps its '
        'variables on a ps; name one in --ps_hosts (launch: --num_ps=1)'
      )
    # Any: a rule hands it on to rooms that need all of a Cluster.
    self.cluster: Any = cluster

  @property
  def pushes_per_step(self) -> int:
    """How many workers' pushes make a global step."""
    return self.batches_per_update // self.push_period

  @property
  def steps_wait_for_others(self) -> bool:
    """Whether another worker that is slow may hold up a step."""
    meets_workers = not self.needs_ps or self.share_with_ps < 1
    return self.waits_for_all or self.pushes_per_step > 1 or meets_workers

  def scope(self) -> contextlib.AbstractContextManager[None]:
    """The context in which the model's variables are made."""
    return contextlib.nullcontext()

  def minimize(
    self,
    loss: tf.Tensor,
    make_optimizer: MakeOptimizer,
    global_step: tf.Variable,
  ) -> Update:
    """Builds one step of this worker.

    Args:
      loss: float32 scalar tensor, the mean over this worker's batch.
      global_step: int64 scalar variable, counts the updates of the center.
    """
    raise NotImplementedError

  def mark_by(
    self, build_mark: Callable[[list[tf.Operation]], tf.Operation]
  ) -> None:
    """Has each push note that its batches are done; called before `minimize`.

    Args:
      build_mark: returns the op that notes it on the ps of the global_step once
        the ops given have run (training/batches/dispatcher.py).
    """
    self._build_mark = build_mark

  def weigh_by(self, weight: tf.Tensor | None) -> None:
    """Has a mean over workers weigh their gradients; called before `minimize`.

    With g^i the gradient of worker i's loss and w_i its weight, the mean of an
    update is sum_i w_i g^i / sum_i w_i: the gradient of one loss of all their
    batches, where each loss is divided by w_i, as by the sum of a mask. A rule
    that takes no such mean ignores it.

    Args:
      weight: float32 scalar tensor, w_i of this worker's batch; None if all
        count alike.
    """
    self._batch_weight = weight

  def mark_done(
    self, ops: list[tf.Operation], has_moved: tf.Tensor | None = None
  ) -> list[tf.Operation]:
    """Returns `ops`, the list that ends a push, and the ops that follow it.

    Args:
      has_moved: bool scalar tensor, whether the push has moved the center; None
        for yes.
    """
    done = weight_averages.move_after(ops, has_moved)
    return [*done, self._build_mark(ops)] if self._build_mark else done

  def pause(self, session: tf.Session) -> None:
    """Called when this worker waits for work; no other may wait for it."""

  def resume(self, session: tf.Session) -> None:
    """Called when a paused worker goes on."""

  def hold_back(self, ops: Sequence[tf.Operation | tf.Tensor]) -> None:
    """Makes a step's changes, `ops` and what they need, wait for all of it.

    Called once the step is built. A rule on whose workers all variables are
    sees to it that a step that breaks off, as another worker is lost, has
    changed none of them.

    Args:
      ops: the train_op and the UPDATE_OPS.
    """

  def gather(self, session: tf.Session) -> None:
    """Returns once all workers have come here, without a ps.

    Called twice after the last step: the chief saves it in between. The loss of
    a worker then ends the session, as in a step.
    """

  def describe_exchange(self) -> list[str]:
    """Returns how the step moves its bytes, a list of lines for `plan`.

    Called after `minimize`.
    """
    return []

  def hooks(self, stop: Any) -> list[tf.train.SessionRunHook]:
    """Returns the rule's SessionRunHooks; `stop` is the task's StopRequest.

    A CenterHook among them is also called for a new center.
    """
    del stop
    return []

  def request_stop(self, run_context: tf.train.SessionRunContext) -> None:
    """Ends this worker's loop; a rule may want all workers to agree first."""
    run_context.request_stop()


class RunAgreement:
  """The number of steps at a time of workers that must all make as many.

  Attributes, the same on all workers:
    secs: how long a step takes; 0 until it is known.
    is_long: whether the next run is a long one.
  """

  secs, is_long = 0.0, False

  def forget(self) -> None:
    """Begins anew, in a new session."""

  def vote(self, secs: float, is_long: bool) -> None:
    """Says, in the run that begins, what this worker has for both."""


class CenterHook(tf.train.SessionRunHook):
  """A hook of a rule that keeps something on the ps beside the center."""

  def on_new_center(self, session: tf.Session) -> None:
    """Called once the center has been initialised or restored.

    No other worker has seen it yet, and none goes on before this returns. A
    chief that takes over a live center does not call it.
    """

  def is_whole(self, session: tf.Session) -> bool:
    """Returns whether all of the center is of the same update.

    Called before the first checkpoint of a life, and before the last one.
    """
    del session
    return True

  def describe_wait(self) -> str:
    """Returns what a stuck step is waiting for; '' if unknown.

    Called on each worker, from a separate thread, while the step is stuck.
    """
    return ''


class MemberHook(tf.train.SessionRunHook):
  """A hook of a rule without a ps, whose workers all have the variables.

  Attributes:
    has_values: whether this worker has those of the training.
    is_given: whether any worker has, once they have met: then nothing is
      restored, and who has none gets them in the next session.
  """

  has_values = is_given = False

  def meet(self, task: Any) -> None:
    """Called before each session is made; returns once all workers are here.

    Args:
      task: task.Task, which serves.

    Raises:
      cli.RunError: they do not come, or do not fit.
      stop_request.StoppedError: this task was asked to stop.
    """
    raise NotImplementedError

  def find_loss(self) -> str:
    """Returns why the session cannot go on; '' if it can.

    Called from a thread, in a session that has stood still for a second.

    Raises:
      tf.errors.OpError: that cannot be found out now.
    """
    return ''


def find_member(hooks: Iterable[tf.train.SessionRunHook]) -> MemberHook | None:
  """Returns the MemberHook among `hooks`, or None."""
  return next((h for h in hooks if isinstance(h, MemberHook)), None)


def describe_wait(hooks: Iterable[tf.train.SessionRunHook]) -> str:
  """Returns what the CenterHooks among `hooks` say about a wait."""
  texts = [h.describe_wait() for h in hooks if isinstance(h, CenterHook)]
  return '; '.join(filter(None, texts))


def is_whole(
  hooks: Iterable[tf.train.SessionRunHook], session: tf.Session
) -> bool:
  """Returns whether all CenterHooks in `hooks` call the center whole."""
  return all(h.is_whole(session) for h in hooks if isinstance(h, CenterHook))


def read_after(
  variable: tf.Variable, ops: Sequence[tf.Operation | tf.Tensor]
) -> tf.Tensor:
  """Returns the value of `variable` once all `ops` have run."""
  with tf.control_dependencies(ops), tf.device(variable.device):
    return variable.read_value()


def count_update(
  global_step: tf.Variable,
  ops: Sequence[tf.Operation | tf.Tensor],
  read_step: tf.Tensor,
  mark_done: MarkDone = list,
) -> tuple[tf.Tensor, tf.Tensor]:
  """Counts an update of the center once all `ops` have run.

  All of it, the constant 1 included, is on the device of the global_step: what
  is made on the worker costs a round trip.

  Args:
    global_step: int64 scalar variable.
    read_step: int64 scalar tensor, the global_step when this worker pulled.
    mark_done: what else is done after the count.

  Returns:
    (new_step, staleness): int64 scalar tensors on that device. new_step is the
    number of this update, which no other one has; staleness is how many others
    were counted since read_step.
  """
  with tf.device(global_step.device):
    # Without an edge the read may come after the count: staleness -1.
    with tf.control_dependencies([*ops, read_step]):
      before = _count(global_step)
    with tf.control_dependencies(mark_done([before.op])):
      return before + 1, before - read_step


def _count(global_step: tf.Variable) -> tf.Tensor:
  """Adds 1 to the global step; returns what it was before."""
  if not wire.is_on_ps(global_step):
    # Nobody else counts, and it may be on a GPU, which has no such op as below.
    before = global_step.read_value()
    with tf.control_dependencies([before]):
      count = global_step.assign_add(1, read_value=False)
    with tf.control_dependencies([count]):
      return tf.identity(before)
  # One op: of an addition and a read, others may count in between.
  return tf.raw_ops.ResourceCountUpTo(
    resource=global_step.handle, limit=tf.int64.max, T=tf.int64
  )


def count_bytes(variables: Iterable[tf.Variable]) -> int:
  """Returns the total bytes of `variables`."""
  return sum(v.shape.num_elements() * v.dtype.size for v in variables)


def communication_period_from_flags(default: int) -> int:
  """Returns --communication_period, or the rule's own `default`."""
  return _COMMUNICATION_PERIOD.value or default


def max_staleness_from_flags(default: int) -> int:
  """Returns --max_staleness, or the rule's own `default`."""
  given = _MAX_STALENESS.value
  return default if given is None else given


def replicas_to_aggregate_from_flags(cluster: wire.ClusterView) -> int:
  """Returns --replicas_to_aggregate, or the number of workers."""
  return _REPLICAS_TO_AGGREGATE.value or cluster.num_workers
