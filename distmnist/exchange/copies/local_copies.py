"""A worker's own copy of every trainable center variable.

What the model gets inside `scope()` is a variable on the worker's device, so
that a local step touches no other task. Copies, and the optimizer slots made in
`local_variables()`, are local variables: in no checkpoint, and initialised each
time the worker creates a session. So a worker always starts from the center's
values, even after a restart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.exchange.center import center as center_lib
from distmnist.transport import sums, variable_lists

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster


class LocalCopies(center_lib.Center):
  """The copies, and the transfers between them and the center.

  Lists of tensors are in the order of `variables`; lists of shards are in the
  order of `shards`.

  Attributes:
    variables: the whole copies on the worker.
  """

  _keeps_in_place = False  # All steps are taken on the copy.
  _pulls_unmoved = False  # A copy starts with the value that stays.

  def __init__(
    self, cluster: Cluster, max_bundle_bytes: int | None = None
  ) -> None:
    super().__init__(cluster, max_bundle_bytes)
    self._cpu_device = cluster.cpu_device

  def _make_view(
    self, center: tf.Variable, shards: Sequence[tf.Variable], name: str
  ) -> tf.Variable:
    # Pulled as it will be in each step, so that the first one is no exception.
    values = self._wire.to_worker(
      [center_lib.read(shard) for shard in shards],
      [shard.device for shard in shards],
    )
    with tf.device(self._device):
      copy = _make_local(
        center_lib.join(values, center.shape), f'local_copy/{name}'
      )
    graph_record.current().center_names[copy.op.name] = name
    return copy

  def _connect_views(self) -> None:
    self.rows.pull_with([], [])  # A copy has its own value.

  @property
  def variables(self) -> list[tf.Variable]:
    return self.views

  def make_zeros(self, name: str, are_sums: bool = False) -> list[tf.Variable]:
    """Returns local variables of zeros beside the copies, in their shapes.

    Args:
      name: such as 'velocity'.
      are_sums: whether they have the dtypes of sums (sums.py).
    """
    names = graph_record.current().center_names
    zeros = []
    with tf.device(self._device):
      for copy in self.variables:
        value = tf.zeros(copy.shape, _choose(copy, are_sums))
        zeros.append(_make_local(value, name))
        names[zeros[-1].op.name] = names[copy.op.name]
    return zeros

  def make_kept(self, name: str) -> list[tf.Variable]:
    """Returns local variables beside the copies, with the values as pulled.

    Args:
      name: such as 'as_pulled'.
    """
    with tf.device(self._device):
      return [_make_local(copy.initial_value, name) for copy in self.variables]

  def make_zeros_on_ps(
    self, name: str, are_sums: bool = False
  ) -> list[tf.Variable]:
    """Returns variables of zeros beside the shards, each on its shard's ps.

    In a checkpoint they are whole, like the center: it fits any number of ps.

    Args:
      name: such as 'momentum'.
      are_sums: see `make_zeros`.
    """
    variables = []
    for shard in self.shards:
      with tf.device(shard.device):
        variable = tf.Variable(
          tf.zeros(shard.shape, _choose(shard, are_sums)),
          trainable=False,
          name=f'{shard.op.name}/{name}',
        )
      variable_lists.save_as_slice_like(shard, variable)
      variables.append(variable)
    return variables

  def make_counter(
    self, initial_value: int | tf.Tensor, name: str
  ) -> tf.Variable:
    """Returns an int64 local variable on the worker's CPU."""
    with tf.device(self._cpu_device):
      return _make_local(tf.cast(initial_value, tf.int64), name)

  def count_local_step(
    self, ops: Sequence[tf.Operation | tf.Tensor]
  ) -> tf.Tensor:
    """Returns how many steps this worker has done once all `ops` have run."""
    counter = self.make_counter(0, 'local_step')
    with tf.control_dependencies(ops), tf.device(self._cpu_device):
      return tf.convert_to_tensor(counter.assign_add(1))

  def read(self) -> list[tf.Tensor]:
    """Returns the copies' values at this point."""
    with tf.device(self._device):
      return [copy.read_value() for copy in self.variables]

  def read_changes(self, kept: Sequence[tf.Variable]) -> list[tf.Tensor]:
    """Returns x^i - kept; `kept` is from `make_kept`."""
    return [
      now - before.read_value()
      for now, before in zip(self.read(), kept, strict=True)
    ]

  def assign(self, values: Sequence[tf.Tensor]) -> tf.Operation:
    """Returns the op that assigns a list of tensors to the copies."""
    return variable_lists.assign_all(self.variables, values)

  def pull(self, keep: Sequence[tf.Variable] = ()) -> tf.Operation:
    """Returns the op x^i <- x~; `keep`, from `make_kept`, gets the same."""
    values = self.read_center()
    taken = [self.assign(values)]
    if keep:
      taken.append(variable_lists.assign_all(keep, values))
    return tf.group(*taken)

  def add(self, changes: Sequence[tf.Tensor]) -> tf.Operation:
    """Returns the op x^i <- x^i + change, for a list of tensors."""
    return variable_lists.add_all(self.variables, changes)

  def count_bytes_if(self, is_due: tf.Tensor) -> tf.Tensor:
    """Returns num_bytes if bool tensor `is_due`, else 0, as int64 scalar."""
    with tf.device(self._cpu_device):
      return tf.where(is_due, tf.constant(self.num_bytes, tf.int64), 0)

  def local_step(
    self, optimizer: tf.train.Optimizer, gradients: Sequence[tf.Tensor]
  ) -> tf.Operation:
    """Returns the op x^i <- Opt(x^i, g); the slots are local as well."""
    with local_variables():
      return optimizer.apply_gradients(
        list(zip(gradients, self.variables, strict=True))
      )

  def sum_and_step(
    self, optimizer: tf.train.Optimizer, loss: tf.Tensor
  ) -> tuple[list[tf.Variable], tf.Tensor]:
    """Takes a local step and adds up its gradients.

    Args:
      optimizer: tf.train.Optimizer of this worker.
      loss: float32 scalar tensor.

    Returns:
      (totals, step): local variables like `variables`, for `read_totals`, which
      the caller clears, and an int64 scalar tensor, how many steps this worker
      has done.
    """
    gradients = self.compute_gradients(optimizer, loss)
    totals = self.make_zeros('gradient_sum', are_sums=True)
    step = self.count_local_step(
      [
        variable_lists.add_all(totals, gradients),
        self.local_step(optimizer, gradients),
      ]
    )
    return totals, step

  def read_totals(
    self, totals: Sequence[tf.Variable], period: int | None = None
  ) -> list[tf.Tensor]:
    """Returns what `sum_and_step` has added up, in the dtypes of the copies.

    Args:
      period: by which each is divided, or None.
    """
    values = [total.read_value() for total in totals]
    if period:
      values = [value / period for value in values]
    return [
      tf.cast(value, copy.dtype.base_dtype)
      for value, copy in zip(values, self.variables, strict=True)
    ]


def _choose(variable: tf.Variable, are_sums: bool) -> tf.DType:
  dtype = variable.dtype.base_dtype
  return sums.choose_dtype(dtype) if are_sums else dtype


def _make_local(initial_value: tf.Tensor, name: str) -> tf.Variable:
  variable = tf.Variable(
    initial_value,
    trainable=False,
    collections=[tf.GraphKeys.LOCAL_VARIABLES],
    name=name,
    use_resource=True,
  )
  graph_record.current().copies.append(variable)
  return variable


def get_all() -> list[tf.Variable]:
  """Returns the local variables of the rule in the default graph."""
  return list(graph_record.current().copies)


@contextlib.contextmanager
def local_variables() -> Iterator[None]:
  """Makes all variables created inside it local, whoever creates them."""

  def create(
    next_creator: Callable[..., tf.Variable], **kwargs: Any
  ) -> tf.Variable:
    kwargs['collections'] = [tf.GraphKeys.LOCAL_VARIABLES]
    return next_creator(**kwargs)

  with tf.variable_creator_scope(create):
    yield
