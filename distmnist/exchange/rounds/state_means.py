"""The model's own variables in a round: the center gets the mean change.

Each worker contributes b - a, the change of its copy since its pull. The chief
adds the mean to the center c before it counts the round, and the workers pull c
once they have the token of the next one:

  c <- c + (1/N) sum_i (b^i - a^i);  a^i, b^i <- c for all i

The changes arrive before the gradients, and are added after them: a round that
is restarted, or saved, before all gradients are there has moved nothing.

Nothing else changes c, so all workers of a round have pulled the same a, also
one that begins late: what it reads is the center at the start of the round. If
a worker dies, what it has not contributed is lost, or its successor's counts
once more, in that round alone. (Were each change added as it comes, one that
begins among the others would have read some of them already, and c would stay
off by that much for ever.)

What goes to or from a ps travels as one message per dtype, never in a dtype of
--wire_dtype: an average that is rounded in each round stops short of its goal.
Complex numbers travel as two real ones each; whole numbers as float64, exact up
to 2^53. Only worker 0 counts these. Of a bool its b takes the place of b - a,
and c becomes that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist.transport import model_state, nonfinite, packing

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


class StateMeans:
  """The model's own variables, as a part of a round.

  Attributes:
    accumulators: (tf.ConditionalAccumulator, device), which take vectors; empty
      if a step changes no such variable.
  """

  def __init__(
    self, cluster: Cluster, changes: Iterable[model_state.Change]
  ) -> None:
    """
    Args:
    """
    self._cluster = cluster
    groups = {}
    for change in changes:
      place, dtype = change.variable.device, change.variable.dtype.base_dtype
      groups.setdefault((place, *_find_form(dtype)), []).append(change)
    self._groups = list(groups.items())
    self.accumulators = []
    for i, ((place, dtype, is_whole), group) in enumerate(self._groups):
      specs = [_find_spec(c.variable) for c in group]
      size = sum(x.shape.num_elements() for x in specs) + is_whole
      with tf.device(place):
        accumulator = tf.ConditionalAccumulator(
          dtype, [size], shared_name=f'round/state_{i}'
        )
      self.accumulators.append((accumulator, place))

  def push(self) -> list[tf.Tensor]:
    """Returns b - a on the ps, a list of vectors like `accumulators`."""
    arrived = []
    for (place, dtype, is_whole), group in self._groups:
      with (
        tf.device(self._cluster.compute_device),
        tf.control_dependencies([change.left for change in group]),
      ):
        parts = [_to_real(_find_part(change)) for change in group]
        if is_whole:
          # Followed by what makes the mean a mean of worker 0's alone.
          parts.append(tf.ones([1]))
          if not self._cluster.is_chief:
            parts = [tf.zeros_like(part) for part in parts]
        flat = packing.flatten(parts, dtype)
        flat = nonfinite.guard(flat, self._cluster.task_index)
      with tf.device(place):
        arrived.append(tf.identity(flat))
    return arrived

  def build_update(self, ops: list[tf.Operation]) -> list[tf.Operation]:
    """Builds what the chief adds to the center, the mean changes.

    Args:
      ops: those that apply the rest of the update, and come first.

    Returns:
      The list of ops that end the update.
    """
    if not self._groups:
      return ops
    done = tf.group(*ops)  # One message per ps, not one per op.
    added = []
    for ((place, _, is_whole), group), (accumulator, _) in zip(
      self._groups, self.accumulators, strict=True
    ):
      with tf.device(place):
        with tf.control_dependencies([done]):
          mean = accumulator.take_grad(self._cluster.num_workers)
        if is_whole:
          mean = tf.round(tf.math.divide_no_nan(mean[:-1], mean[-1]))
        variables = [change.variable for change in group]
        for variable, part in zip(
          variables, _split(mean, variables), strict=True
        ):
          is_bool = variable.dtype.is_bool
          add = variable.assign if is_bool else variable.assign_add
          added.append(add(part, read_value=False))
    return added

  def pull(self) -> tf.Operation:
    """Returns the op by which this worker's copies become the center."""
    taken = []
    for (place, dtype, _), group in self._groups:
      variables = [change.variable for change in group]
      with tf.device(place):
        values = [_to_real(v.read_value()) for v in variables]
        flat = packing.flatten(values, dtype)
      with tf.device(self._cluster.compute_device):
        values = _split(tf.identity(flat), variables)
        for change, value in zip(group, values, strict=True):
          taken.append(change.copy.assign(value, read_value=False))
          taken.append(change.pulled.assign(value, read_value=False))
    return tf.group(*taken)

  def end_step(self, is_on_ps: bool) -> list[tf.Operation]:
    """Pulls at the end of a step, once it has its token.

    Args:
      is_on_ps: whether the step's result stays on the ps.

    Returns:
      The ops that the result must wait for, a list.
    """
    if not self._groups:
      return []
    pulled = self.pull()
    if not is_on_ps:
      return [pulled]
    # Else the result would wait for a message there and back. The step itself
    # waits for all of these.
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, pulled)
    return []

  def join_pull(self, pull: tf.Operation | None) -> tf.Operation | None:
    """Returns the op that also runs `pull`, an op or None; None for nothing."""
    if not self._groups:
      return pull
    return tf.group(self.pull(), *([] if pull is None else [pull]))


def make(cluster: Cluster) -> StateMeans:
  """Returns the StateMeans of the default graph, whose model is built."""
  return StateMeans(cluster, model_state.take_changes())


def _find_part(change: model_state.Change) -> tf.Tensor:
  """Returns what a worker contributes of a model_state.Change."""
  new = change.copy.read_value()
  return new if new.dtype.is_bool else new - change.pulled.read_value()


def _find_form(dtype: tf.DType) -> tuple[tf.DType, bool]:
  """Returns (the dtype on the wire, whether `dtype` is of whole numbers)."""
  dtype = dtype.real_dtype
  if dtype.is_floating and dtype != tf.float64:
    return tf.float32, False
  return tf.float64, not dtype.is_floating


def _find_spec(variable: tf.Variable) -> tf.TensorSpec:
  """Returns the tf.TensorSpec of what `_to_real` makes of a variable."""
  shape, dtype = variable.shape, variable.dtype.base_dtype
  if dtype.is_complex:
    shape, dtype = shape + [2], dtype.real_dtype
  return tf.TensorSpec(shape, dtype)


def _to_real(tensor: tf.Tensor) -> tf.Tensor:
  """Returns a complex tensor [...] as a real one [..., 2], others as is."""
  if not tensor.dtype.is_complex:
    return tensor
  return tf.stack([tf.math.real(tensor), tf.math.imag(tensor)], -1)


def _split(
  flat: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[tf.Tensor]:
  """Returns the parts of `flat` as tensors like `variables`."""
  specs = [_find_spec(variable) for variable in variables]
  return [
    tf.complex(*tf.unstack(part, axis=-1)) if v.dtype.is_complex else part
    for part, v in zip(packing.split_like(flat, specs), variables, strict=True)
  ]
