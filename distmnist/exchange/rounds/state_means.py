"""The model's own variables in a round: the center gets the mean change.

Each worker contributes b - a, the change of its copy since its pull. The chief
adds the mean to the center c before it counts the round, and the workers pull c
once they have the token of the next one:

  c <- c + (1/N) sum_i (b^i - a^i);  a^i, b^i <- c for all i

Nothing else changes c, so all workers of a round have pulled the same a, also
one that begins late: what it reads is the center at the start of the round. If
a worker dies, what it has not contributed is lost, or its successor's counts
once more, in that round alone. (Were each change added as it comes, one that
begins among the others would have read some of them already, and c would stay
off by that much for ever.)

What goes to or from a ps travels as one message per dtype, never in a dtype of
--wire_dtype: an average that is rounded in each round stops short of its goal.
Whole numbers travel as float64, exact up to 2^53. Only worker 0 counts them.
The change of a bool is whether it differs.
"""

import tensorflow.compat.v1 as tf

from distmnist.exchange import model_state, nonfinite, transport


class StateMeans:
  """The model's own variables, as a part of a round.

  Attributes:
    accumulators: list of (tf.ConditionalAccumulator, device), which take
      vectors; empty if a step changes no such variable.
  """

  def __init__(self, cluster, changes):
    """
    Args:
      cluster: cluster.Cluster.
      changes: list of model_state.Change.
    """
    self._cluster = cluster
    groups = {}
    for change in changes:
      place, dtype = change.variable.device, change.variable.dtype.base_dtype
      groups.setdefault((place, *_find_form(dtype)), []).append(change)
    self._groups = list(groups.items())
    self.accumulators = []
    for i, ((place, dtype, is_whole), group) in enumerate(self._groups):
      size = sum(c.variable.shape.num_elements() for c in group) + is_whole
      with tf.device(place):
        accumulator = tf.ConditionalAccumulator(
          dtype, [size], shared_name=f'round/state_{i}'
        )
      self.accumulators.append((accumulator, place))

  def push(self):
    """Returns b - a on the ps, a list of vectors like `accumulators`."""
    arrived = []
    for (place, dtype, is_whole), group in self._groups:
      with (
        tf.device(self._cluster.compute_device),
        tf.control_dependencies([change.left for change in group]),
      ):
        parts = [
          _find_change(c.copy.read_value(), c.pulled.read_value())
          for c in group
        ]
        if is_whole:
          # Followed by what makes the mean a mean of worker 0's alone.
          parts.append(tf.ones([1]))
          if not self._cluster.is_chief:
            parts = [tf.zeros_like(part) for part in parts]
        flat = transport.flatten(parts, dtype)
        flat = nonfinite.guard(flat, self._cluster.task_index)
      with tf.device(place):
        arrived.append(tf.identity(flat))
    return arrived

  def build_update(self):
    """Returns the ops by which the chief adds the mean changes, a list."""
    added = []
    for ((place, _, is_whole), group), (accumulator, _) in zip(
      self._groups, self.accumulators, strict=True
    ):
      with tf.device(place):
        mean = accumulator.take_grad(self._cluster.num_workers)
        if is_whole:
          mean = tf.round(tf.math.divide_no_nan(mean[:-1], mean[-1]))
        variables = [change.variable for change in group]
        for variable, part in zip(
          variables, transport.split_like(mean, variables), strict=True
        ):
          added.append(_add_change(variable, part))
    return added

  def pull(self):
    """Returns the op by which this worker's copies become the center."""
    taken = []
    for (place, dtype, _), group in self._groups:
      variables = [change.variable for change in group]
      with tf.device(place):
        flat = transport.flatten([v.read_value() for v in variables], dtype)
      with tf.device(self._cluster.compute_device):
        values = transport.split_like(tf.identity(flat), variables)
        for change, value in zip(group, values, strict=True):
          taken.append(change.copy.assign(value, read_value=False))
          taken.append(change.pulled.assign(value, read_value=False))
    return tf.group(*taken)

  def end_step(self, is_on_ps):
    """Pulls at the end of a step, once it has its token.

    Args:
      is_on_ps: bool, whether the step's result stays on the ps.

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

  def join_pull(self, pull):
    """Returns the op that also runs `pull`, an op or None; None for nothing."""
    if not self._groups:
      return pull
    return tf.group(self.pull(), *([] if pull is None else [pull]))


def make(cluster):
  """Returns the StateMeans of the default graph, whose model is built."""
  return StateMeans(cluster, model_state.take_changes())


def _find_change(new, old):
  return tf.math.logical_xor(new, old) if new.dtype.is_bool else new - old


def _add_change(variable, change):
  """Returns the op by which a variable takes what `_find_change` has found."""
  if not change.dtype.is_bool:
    return variable.assign_add(change, read_value=False)
  new = tf.math.logical_xor(variable.read_value(), change)
  return variable.assign(new, read_value=False)


def _find_form(dtype):
  """Returns (the dtype on the wire, whether `dtype` is of whole numbers)."""
  if dtype.is_floating and dtype != tf.float64:
    return tf.float32, False
  return tf.float64, not dtype.is_floating
