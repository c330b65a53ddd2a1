"""Variables that a model updates itself: batch norm averages, counters.

No gradient moves them. Like other variables they are in the center, on the ps;
a worker computes with its own copy, which it reads at the start of its session.
A step that replaces the copy a by b changes the center c to

  c + b - a + (m - 1) (c - a)   under asynchronous rules; the copy becomes c

where m is db/da per entry, from 0 to 1. For an average that moves by a fixed
rate towards that of each batch, m is 1 minus that rate, and this is the step
from c itself, computed on the ps, however old a is. With m = 1 only b - a would
be added, and a stale worker would subtract a share of its old copy from a
center that has moved on: a variance would end below zero. Where b does not
depend on a, m = 0: the center becomes b. What a step does not change is not
sent. A bool of the center becomes b where that differs from a. What floats of
one dtype have to do with a ps is one message each way.

With N workers in lock-step the copy becomes b, and the center moves once a
round, which is one step or T:

  c + (1/N) sum_i (b^i - a^i)   at the end of a round; the copies become c

A moving average is linear in the batches: so the center is the average of the
mean of the workers' batches. Only worker 0 counts whole numbers, or sets bools.
The changes are contributions to the round: see exchange/rounds/state_means.py.

Without a ps each worker has its own variables, and the chief's are saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.transport import packing, sums

if TYPE_CHECKING:
  from distmnist.transport import wire


class Change(NamedTuple):
  """The change of a variable by a step in lock-step; a round does the rest.

  Attributes:
    variable: of the center.
    copy: the worker's.
    pulled: tf.Variable beside it, the value that the worker has pulled.
    left: leaves the new value in the copy.
  """

  variable: tf.Variable
  copy: tf.Variable
  pulled: tf.Variable
  left: tf.Operation


class ModelState:
  """Changes of the model's own variables by the steps of a worker's graph.

  Attributes:
    local_variables: what is made here on the worker.
  """

  def __init__(self, cluster: wire.ClusterView, is_lock_step: bool) -> None:
    """
    Args:
      is_lock_step: see strategy.Strategy.
    """
    self._cluster = cluster
    self._is_in_rounds = is_lock_step and cluster.num_ps > 0
    self._copies = {}
    self.local_variables = []
    self._changes = {}
    self._left = {}
    self._taken = None

  def activate(self) -> None:
    """Makes models built in the default graph from now on use this object."""
    graph_record.current().model_state = self

  def copy(self, variable: tf.Variable) -> tf.Variable:
    """Returns the worker's copy of `variable`, or `variable` without a ps."""
    if not self._cluster.num_ps:
      return variable
    name = variable.op.name
    if name not in self._copies:
      self._copies[name] = self._make_local(
        variable.read_value(), f'local_copy/{name}'
      )
    return self._copies[name]

  def read(self, variable: tf.Variable) -> tf.Tensor:
    """Returns the value to compute with; see `begin_slice`."""
    left = self._left.get(variable.op.name)
    return tf.convert_to_tensor(self.copy(variable)) if left is None else left

  def begin_slice(self) -> None:
    """Makes the next slice of a batch start from what the last one left."""
    for name, (variable, values) in self._changes.items():
      with tf.device(self.copy(variable).device):
        self._left[name] = _build_mean(values)
    self._changes = {}

  def change(self, variable: tf.Variable, value: tf.Tensor) -> None:
    """Makes a step leave `value` in the copy of `variable`.

    Args:
      variable: of the center.
      value: each of several towers may give one, and their mean counts.
    """
    self._changes.setdefault(variable.op.name, (variable, []))[1].append(value)

  def take_changes(self) -> list[Change]:
    """Returns the Changes of this step, which a round takes to the center.

    A list, the same whenever it is called; empty where no round is to do this.
    """
    if not self._is_in_rounds:
      return []
    if self._taken is None:
      self._taken = [
        self._leave(variable, values)
        for variable, values in self._changes.values()
      ]
    return self._taken

  def build_updates(self) -> None:
    """Adds the updates given to `change` to the collection UPDATE_OPS.

    Raises:
      NotImplementedError: a lock-step rule has made no round.
    """
    if self._is_in_rounds and self._changes and self._taken is None:
      raise NotImplementedError(
        'a lock-step rule without a sync_round.Round: the center would not get '
        f'the changes of {", ".join(self._changes)}'
      )
    if self._is_in_rounds:
      updates = [change.left for change in self.take_changes()]
    else:
      updates = self._build_own_updates()
    for update in updates:
      tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)

  def _leave(
    self, variable: tf.Variable, values: Sequence[tf.Tensor]
  ) -> Change:
    """Returns the Change that leaves the mean of `values` in the copy."""
    copy = self.copy(variable)
    pulled = self._make_local(copy.initial_value, f'pulled/{variable.op.name}')
    with tf.device(copy.device):
      left = copy.assign(_build_mean(values), read_value=False)
    return Change(variable, copy, pulled, left)

  def _build_own_updates(self) -> list[tf.Operation]:
    """Returns the updates of a step that is in no round."""
    updates, groups = [], {}
    for variable, values in self._changes.values():
      copy = self.copy(variable)
      with tf.device(copy.device):
        new = _build_mean(values)
        if copy is variable:
          updates.append(variable.assign(new, read_value=False))
          continue
      each = variable, copy, new
      if new.dtype.is_floating:
        groups.setdefault((variable.device, new.dtype), []).append(each)
      else:
        updates.append(_exchange_one(*each))
    return updates + [_exchange_floats(x) for x in groups.values()]

  def _make_local(self, value: tf.Tensor, name: str) -> tf.Variable:
    with tf.device(self._cluster.compute_device):
      variable = tf.Variable(
        value,
        trainable=False,
        collections=[tf.GraphKeys.LOCAL_VARIABLES],
        name=name,
        use_resource=True,
      )
    self.local_variables.append(variable)
    return variable


def _exchange_floats(
  group: Sequence[tuple[tf.Variable, tf.Variable, tf.Tensor]],
) -> tf.Operation:
  """Returns the op that moves centers and copies, as the top of this file says.

  Args:
    group: (variable, copy, new value), the variables of one dtype and on one
      device.
  """
  variables = [variable for variable, _, _ in group]
  worker, place = group[0][1].device, variables[0].device
  with tf.device(worker):
    kept = [_build_kept(new, copy) for _, copy, new in group]
    gained = [
      new - copy.read_value() + (1 - share) * copy.read_value()
      for (_, copy, new), share in zip(group, kept, strict=True)
    ]
    sent = packing.flatten([*kept, *gained])
  with tf.device(place):
    sent = tf.identity(sent)
    parts = packing.split_like(sent, variables * 2)
    # Without an edge the reads would run at the start of the step.
    with tf.control_dependencies([sent]):
      moved = [
        v.assign_add(gain - (1 - share) * v.read_value(), read_value=False)
        for v, share, gain in zip(
          variables, parts[: len(group)], parts[len(group) :], strict=True
        )
      ]
    with tf.control_dependencies(moved):
      now = packing.flatten([v.read_value() for v in variables])
  with tf.device(worker):
    values = packing.split_like(tf.identity(now), variables)
    return tf.group(
      *(
        copy.assign(value, read_value=False)
        for (_, copy, _), value in zip(group, values, strict=True)
      )
    )


def _exchange_one(
  variable: tf.Variable, copy: tf.Variable, new: tf.Tensor
) -> tf.Operation:
  """Returns the op that moves the center of a number that is no float."""
  send = _send_bool if new.dtype.is_bool else _send
  sent = send(variable, new, copy)
  with tf.device(variable.device), tf.control_dependencies([sent]):
    now = variable.read_value()
  # `sent` must see the copy's old value.
  with tf.control_dependencies([sent]):
    return copy.assign(now, read_value=False)


def _send(
  variable: tf.Variable, new: tf.Tensor, copy: tf.Variable
) -> tf.Operation:
  """Returns the op that moves the center by b - a."""
  with tf.device(copy.device):
    change = new - copy.read_value()
  with tf.device(variable.device):
    return variable.assign_add(change, read_value=False)


def _send_bool(
  variable: tf.Variable, new: tf.Tensor, copy: tf.Variable
) -> tf.Operation:
  """Returns the op by which the center becomes b where that differs from a."""
  with tf.device(copy.device):
    differs = tf.not_equal(new, copy.read_value())
  with tf.device(variable.device):
    new, differs = tf.identity(new), tf.identity(differs)
    with tf.control_dependencies([new, differs]):
      now = variable.read_value()
    return variable.assign(tf.where(differs, new, now), read_value=False)


def _build_kept(new: tf.Tensor, copy: tf.Variable) -> tf.Tensor:
  """Returns db/da by entry, from 0 to 1; see the top of this file.

  Args:
    new: b.
    copy: a, of the same shape and dtype.
  """
  [kept] = tf.gradients(new, copy)
  if kept is None:
    return tf.zeros_like(new)
  return tf.clip_by_value(kept, 0, 1)


def _build_mean(values: Sequence[tf.Tensor]) -> tf.Tensor:
  """Returns the mean of the towers' values; of whole numbers, the first."""
  if len(values) > 1 and values[0].dtype.is_floating:
    return sums.build_mean(values)
  return values[0]


def read(variable: tf.Variable) -> tf.Tensor:
  """Returns the value of `variable` that a model computes with.

  In a training graph that is the worker's copy, elsewhere the variable.
  """
  found = graph_record.current().model_state
  return found.read(variable) if found else tf.convert_to_tensor(variable)


def change(variable: tf.Variable, value: tf.Tensor) -> None:
  """Makes a training step leave `value` in the place of `variable`.

  Does nothing outside a training graph.
  """
  if state := graph_record.current().model_state:
    state.change(variable, value)


def take_changes() -> list[Change]:
  """Returns the Changes of the default graph, see ModelState.take_changes."""
  found = graph_record.current().model_state
  return found.take_changes() if found else []
