"""The center as one worker sees it: its shards, and transfers both ways.

Inside `scope()` a model's `tf.get_variable` makes a center variable on the
ps, in shards as usual, and hands the model a view of the whole variable on the
worker's device. Here a view is the value that this step has pulled; in
exchange/copies/local_copies.py it is the worker's own variable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist import graph_record, tf_internals
from distmnist.tables import sparse_table, table_rows, tables_apart
from distmnist.transport import gradients as gradients_lib
from distmnist.transport import variable_lists
from distmnist.transport import wire as wire_lib

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.tables.table_rows import Rows


class ModelVariables:
  """What `tf.get_variable` gives a model that is built inside `scope()`: views.

  A trained variable is made on the ps, in shards as usual; what the model gets
  in its place is up to the subclass. Untrained variables stay as they are. So
  do those in the collection variable_lists.IN_PLACE: the model computes with
  them where they are (hidden.split_dense).

  Attributes:
    views: what the model gets in place of the center's variables; the shards
      that stay in place come last, each its own view.
    shards: on the ps.
    rows: of the sparse tables.
  """

  _keeps_in_place = True
  # Whether a step pulls what it does not push.
  _pulls_unmoved = True

  def __init__(self, rows: Rows) -> None:
    self.rows = rows
    self._names = []
    self._given = []
    self._pulled = []
    self._in_place = []
    self._pulled_only = []

  def _make_view(
    self, center: tf.Variable, shards: Sequence[tf.Variable], name: str
  ) -> tf.Tensor | tf.Variable:
    """Returns what the model gets in place of a variable.

    Args:
      center: tf.Variable or PartitionedVariable, the whole variable.
      shards: its parts.
    """
    raise NotImplementedError

  def _connect_views(self) -> None:
    """Gives views and rows their values, at the end of the scope."""
    raise NotImplementedError

  @contextlib.contextmanager
  def scope(self) -> Iterator[None]:
    """The variable scope in which the model is built."""
    with tf.variable_scope(
      tf.get_variable_scope(), custom_getter=self._get_variable
    ):
      yield
    self._connect_views()

  def _get_variable(
    self,
    getter: Callable[..., tf.Variable],
    name: str,
    *args: Any,
    **kwargs: Any,
  ) -> tf.Tensor | tf.Variable:
    collections = list(kwargs.get('collections') or ())
    if sparse_table.TABLES in collections:
      return self.rows.get(getter, name, *args, **kwargs)
    stays = self._keeps_in_place and variable_lists.IN_PLACE in collections
    if variable_lists.IN_PLACE in collections and not stays:
      collections.remove(variable_lists.IN_PLACE)
      kwargs['collections'] = collections
    if not kwargs.get('trainable', True):
      # Its updates need it whole; see transport/model_state.py.
      return getter(name, *args, **{**kwargs, 'partitioner': None})
    center = getter(name, *args, **kwargs)
    if name in self._names:  # Another tower: it shares the first's view.
      return self._given[self._names.index(name)]
    given, shards = center, [center] if tf.is_tensor(center) else list(center)
    if stays:
      self._in_place += shards
    else:
      given = self._make_view(center, shards, name)
      self._pulled.append((given, shards))
    self._names.append(name)
    self._given.append(given)
    return given

  def _leave_out(self, views: Sequence[tf.Tensor | tf.Variable]) -> None:
    """Takes `views`, a list that nothing moves, and their shards out of all."""
    ids = {id(view) for view in views}
    whole = [shards for view, shards in self._pulled if id(view) in ids]
    unmoved = [shard for shards in whole for shard in shards]
    self._pulled = [x for x in self._pulled if id(x[0]) not in ids]
    self._in_place = [x for x in self._in_place if id(x) not in ids]
    if self._pulls_unmoved:
      self._pulled_only = unmoved
    for shard in unmoved:
      graph_record.current().not_pushed.append(shard)
      if not self._pulls_unmoved:
        graph_record.current().not_pulled.append(shard)

  @property
  def views(self) -> list[tf.Tensor | tf.Variable]:
    return [view for view, _ in self._pulled] + self._in_place

  @property
  def shards(self) -> list[tf.Variable]:
    return self._pulled_shards + self._in_place

  @property
  def _pulled_shards(self) -> list[tf.Variable]:
    return [shard for _, shards in self._pulled for shard in shards]


class Center(ModelVariables):
  """Every trainable center variable, pulled anew in each step.

  Lists of tensors are in the order of `views`; lists of shards are in the
  order of `shards`. `compute_gradients` takes the variables that the loss does
  not reach out of both: what is built from them is to be built after it.
  """

  def __init__(
    self, cluster: Cluster, max_bundle_bytes: int | None = None
  ) -> None:
    """
    Args:
      max_bundle_bytes: see transport.Wire.
    """
    wire = wire_lib.Wire(cluster, max_bundle_bytes)
    super().__init__(table_rows.Rows(cluster, wire))
    self._device = cluster.compute_device
    self._has_ps = cluster.num_ps > 0
    self._wire, self._begins = wire, None  # See transport.Wire.to_ps.
    self._has_towers = len(cluster.tower_devices) > 1
    self._reads = []

  def _make_view(
    self, center: tf.Variable, shards: Sequence[tf.Variable], name: str
  ) -> tf.Tensor | tf.Variable:
    del shards
    if not self._has_ps:
      return center
    # Small tensors are pulled together, and only at the end of the scope are
    # all of them known: until then the view has no value.
    with tf.device(self._device):
      return tf.identity(
        tf.placeholder(center.dtype.base_dtype, center.shape), f'pulled/{name}'
      )

  def _connect_views(self) -> None:
    self._reads = self.read_shards()
    parts = self.rows.pull_with(self._reads, self._devices)
    if self._has_ps:
      values = self._join_parts(parts)
      for (view, _), value in zip(self._pulled, values, strict=True):
        tf_internals.set_input(view.op, 0, value)

  @property
  def _devices(self) -> list[str]:
    return [shard.device for shard in self._pulled_shards]

  @property
  def num_bytes(self) -> int:
    """The bytes on the wire of what is pulled whole and moves."""
    return self._wire.count_bytes(self._pulled_shards)

  def count_bytes(self) -> tuple[int | tf.Tensor, int | tf.Tensor]:
    """Returns the bytes (pulled, pushed) of a step, see strategy.Update."""
    pulled, pushed = (0, 0) if self.rows.is_apart else self.rows.count_bytes()
    pulled += self._wire.count_bytes(self._pulled_only)
    return pulled + self.num_bytes, pushed + self.num_bytes

  def read_step(self, global_step: tf.Variable) -> tf.Tensor:
    """Returns the global_step of the views, an int64 scalar tensor.

    All updates that it counts are in what is pulled from its ps, and in what is
    pulled from others but for those that land as the pulls start.

    Args:
      global_step: int64 scalar variable.
    """
    with tf.device(global_step.device):
      step = global_step.read_value()
    read_after(step, self._reads)
    return step

  def take_next(self, tensors: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    """Ends a step: returns `tensors` once the next one may begin.

    Args:
      tensors: scalar tensors, which come once the push is applied.
    """
    return tensors

  def read_shards(self) -> list[tf.Tensor]:
    """Returns the values of the pulled shards, a list of tensors on the ps."""
    return [read(shard) for shard in self._pulled_shards]

  def read_center(self) -> list[tf.Tensor]:
    """Pulls the shards; returns a list of whole tensors on the worker."""
    return self.from_shards(self.read_shards())

  def from_shards(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Pulls tensors like those of `read_shards`; returns whole ones."""
    return self._join_parts(self._wire.to_worker(parts, self._devices))

  def _join_parts(self, parts: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    with tf.device(self._device):
      return join_all(parts, self._pulled)

  def round_as_sent(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns `tensors` as they would arrive if sent, on their own devices."""
    return [self._wire.round(tensor) for tensor in tensors]

  def to_shards(
    self, tensors: Sequence[tf.Tensor], unless: tf.Tensor | None = None
  ) -> list[tuple[tf.Tensor, tf.Variable]]:
    """Cuts whole tensors as the center is cut and pushes the parts.

    Args:
      tensors: list like `views`, and then like `rows.views` unless the rows are
        apart; the tensor for a shard that stays in place is beside it.
      unless: see transport.Wire.to_ps.

    Returns:
      The list of (part on its shard's ps, shard) for `apply_gradients`.
    """
    parts = []
    end = len(self._pulled) + len(self._in_place)
    there = map(self._wire.guard, tensors[len(self._pulled) : end])
    with tf.device(self._device):
      for tensor, (_, shards) in zip(tensors, self._pulled, strict=False):
        parts += cut(tensor, shards)
    arrived, of_rows = self.rows.push_with(
      parts, self._devices, list(tensors[end:]), self._begins, unless
    )
    dense = zip([*arrived, *there], self.shards, strict=True)
    return [*dense, *of_rows]

  def find_units(self) -> list[list[int]]:
    """Returns lists of indices into `shards`: each list arrives at once."""
    num_pushed = len(self._pulled_shards)
    routes = [(s.device, i < num_pushed) for i, s in enumerate(self.shards)]
    return self._wire.bundle(self.shards, routes)

  def compute_gradients(
    self, optimizer: tf.train.Optimizer, loss: tf.Tensor
  ) -> list[tf.Tensor]:
    """Computes g^i, and leaves out the views that the loss does not reach.

    Nothing moves those: the decay of an optimizer would, if it were given
    gradients of 0 for them.

    Args:
      optimizer: tf.train.Optimizer whose gradients are tensors; see
        nn/optimizer.py.
      loss: float32 scalar tensor.

    Returns:
      The list of tensors for the views that are left, and for rows that are not
      apart.

    Raises:
      cli.UsageError: the loss reaches nothing that is trained.
    """
    views = self.views + self.rows.views
    # A gradient is computed where its tower's loss was.
    is_spread = self._has_towers or bool(self._in_place)
    pairs = optimizer.compute_gradients(
      loss, views, colocate_gradients_with_ops=is_spread
    )
    num_dense = len(self.views)
    dense, of_rows = pairs[:num_dense], pairs[num_dense:]
    gradients_lib.find_moved(dense if self.rows.is_apart else pairs)
    self._leave_out([v for g, v in dense if g is None])
    gradients = [g for g, _ in dense if g is not None]
    # Rows that are not in a batch do not move, nor those that it does not use.
    of_rows = [tf.zeros_like(v) if g is None else g for g, v in of_rows]
    if self.rows.is_apart:
      tables_apart.keep(self.rows, of_rows)
      return gradients
    return gradients + of_rows


def read_after(step: tf.Tensor, reads: Sequence[tf.Tensor]) -> None:
  """Lets the shards on the ps of the global step be read after it.

  Those on others start with it: an edge would cost a round trip per step.

  Args:
    step: as read_value() of the variable returns it.
    reads: as of `Center.read_shards`.
  """
  for value in reads:
    if value.device == step.device:
      # read_value() is an identity of the value that was read.
      tf_internals.add_control_inputs(value.op.inputs[0].op, [step.op])


def read(shard: tf.Variable) -> tf.Tensor:
  """Returns the value of `shard` where it is."""
  with tf.device(shard.device):
    return shard.read_value()


def join(values: Sequence[tf.Tensor], shape: tf.TensorShape) -> tf.Tensor:
  """Returns the whole tensor of `shape` whose shards are `values`."""
  if len(values) == 1:
    return values[0]
  return tf.concat(values, find_cut(values[0], shape))


def join_all(
  parts: Sequence[tf.Tensor],
  wholes: Iterable[tuple[tf.Tensor | tf.Variable, Sequence[tf.Variable]]],
) -> list[tf.Tensor]:
  """Returns the whole tensors of `parts`.

  Args:
    parts: those of one whole after those of another.
    wholes: (what has its shape, the shards of a whole).
  """
  left = iter(parts)
  return [
    join([next(left) for _ in shards], whole.shape) for whole, shards in wholes
  ]


def cut(tensor: tf.Tensor, shards: Sequence[tf.Variable]) -> list[tf.Tensor]:
  """Returns the parts of a whole tensor for `shards`."""
  if len(shards) == 1:
    return [tf.convert_to_tensor(tensor)]
  axis = find_cut(shards[0], tensor.shape)
  return tf.split(tensor, [s.shape[axis] for s in shards], axis)


def find_cut(
  shard: tf.Tensor | tf.Variable, shape: Sequence[int] | tf.TensorShape
) -> int:
  """Returns the axis along which the first shard was cut from `shape`."""
  return next(i for i, n in enumerate(shard.shape) if n != shape[i])
