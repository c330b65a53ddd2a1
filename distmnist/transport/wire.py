"""What crosses the network between a worker and the ps: few tensors, cast.

TensorFlow sends each tensor in its own call, as soon as an op of another task
needs it. A call costs more than the bytes of a bias, so all small tensors that
go from one task to the same other task travel as one. With --wire_dtype=float16
or bfloat16 the sender casts what it sends and the receiver casts it back: the
center itself stays float32.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.transport import nonfinite, packing

# From this size on, a copy into a joint tensor costs more than a call.
_SMALL_BYTES = 1 << 20
# Up to this size, what travels with rows may wait for them.
_RIDER_BYTES = 64 << 10


class ClusterView(Protocol):
  """What transport has to know of a cluster.Cluster and this task in it."""

  @property
  def num_ps(self) -> int: ...
  @property
  def num_workers(self) -> int: ...
  @property
  def task_index(self) -> int: ...
  @property
  def compute_device(self) -> str: ...
  @property
  def wire_dtype(self) -> str: ...


class Wire:
  """Carries this worker's tensors to the ps and back."""

  def __init__(
    self, cluster: ClusterView, max_bundle_bytes: int | None = None
  ) -> None:
    """
    Args:
      cluster: without a ps nothing is sent.
      max_bundle_bytes: small tensors are joined up to this many bytes; None
        joins all.
    """
    self._max_bundle_bytes = max_bundle_bytes
    self._worker = cluster.compute_device
    self._dtype = tf.as_dtype(cluster.wire_dtype)
    self._has_ps = cluster.num_ps > 0
    self._task_index = cluster.task_index

  def count_bytes(self, variables: Iterable[tf.Variable]) -> int:
    """Returns the bytes of the values of `variables` on the wire."""
    return sum(
      v.shape.num_elements() * self._cast_dtype(v.dtype.base_dtype).size
      for v in variables
    )

  def to_worker(
    self, tensors: Sequence[tf.Tensor], devices: Sequence[str]
  ) -> list[tf.Tensor]:
    """Returns `tensors`, tensors[i] from devices[i], on the worker."""
    routes = [(device, self._worker) for device in devices]
    return self._send(tensors, routes)

  def to_ps(
    self,
    tensors: Sequence[tf.Tensor],
    devices: Sequence[str],
    begins: dict[int, tf.Operation] | None = None,
    unless: tf.Tensor | None = None,
  ) -> list[tf.Tensor]:
    """Returns the worker's `tensors`, tensors[i] on devices[i].

    Args:
      begins: gets i -> the op before which tensors[i] is not sent: what it has
        to wait for can be added later. None if it is never to wait.
      unless: bool scalar tensor: nothing of a known shape is sent, and zeros
        are made on the ps; None if all is always sent.
    """
    routes = [(self._worker, device) for device in devices]
    return self._send(tensors, routes, True, begins, unless)

  def size_of(self, dtype: tf.DType) -> int:
    """Returns the bytes of a number of `dtype` on the wire."""
    return self._cast_dtype(dtype).size

  def round(self, tensor: tf.Tensor) -> tf.Tensor:
    """Returns `tensor` as it would arrive if sent, on its own device."""
    dtype = self._cast_dtype(tensor.dtype)
    if not self._has_ps or dtype == tensor.dtype:
      return tensor
    with tf.device(tensor.device):
      return tf.cast(tf.cast(tensor, dtype), tensor.dtype)

  def _cast_dtype(self, dtype: tf.DType) -> tf.DType:
    return self._dtype if dtype == tf.float32 else dtype

  def guard(self, tensor: tf.Tensor) -> tf.Tensor:
    """Returns `tensor`, or zeros if it is not finite: see nonfinite.py."""
    return nonfinite.guard(tensor, self._task_index)

  def _send(
    self,
    tensors: Sequence[tf.Tensor],
    routes: Sequence[tuple[str, str]],
    is_guarded: bool = False,
    begins: dict[int, tf.Operation] | None = None,
    unless: tf.Tensor | None = None,
  ) -> list[tf.Tensor]:
    if not self._has_ps:
      return list(tensors)
    arrived = [None] * len(tensors)
    with tf.name_scope('wire'):
      for indices in self.bundle(tensors, routes):
        route, begin = routes[indices[0]], None
        if begins is not None:
          with tf.device(route[0]):
            begin = tf.no_op('begin')
          begins |= dict.fromkeys(indices, begin)
        parts = [tensors[i] for i in indices]
        packed = self._send_packed(parts, route, is_guarded, begin, unless)
        with tf.device(route[1]):
          split = packing.unpack(packed, parts)
        for i, part in zip(indices, split, strict=True):
          arrived[i] = part
    return arrived

  def bundle(
    self,
    tensors: Sequence[tf.Tensor | tf.Variable],
    routes: Sequence[Hashable],
  ) -> list[list[int]]:
    """Returns lists of the indices of tensors that travel as one message.

    Args:
      tensors: those of rows, [n, width], and of keys, [n], have no known n.
      routes: different routes share no message.
    """
    bundles, joined, rows = [], {}, {}
    for i, (tensor, route) in enumerate(zip(tensors, routes, strict=True)):
      if not tensor.shape.is_fully_defined():
        rows.setdefault((route, tensor.dtype), []).append(i)
        continue
      size = tensor.shape.num_elements() * tensor.dtype.size
      if size >= _SMALL_BYTES:
        bundles.append([i])
        continue
      key = route, tensor.dtype
      indices, held = joined.get(key, (None, 0))
      limit = self._max_bundle_bytes
      if indices is None or (limit and held + size > limit):
        indices, held = [], 0
        bundles.append(indices)
      indices.append(i)
      joined[key] = indices, held + size
    for key, (first, *others) in rows.items():
      indices, held = joined.get(key, ([], 0))
      if held <= _RIDER_BYTES and indices:
        indices.append(first)
      else:
        bundles.append([first])
      bundles += [[i] for i in others]
    return bundles

  def _send_packed(
    self,
    tensors: Sequence[tf.Tensor],
    route: tuple[str, str],
    is_guarded: bool,
    begin: tf.Operation | None = None,
    unless: tf.Tensor | None = None,
  ) -> tf.Tensor:
    """Sends tensors of one dtype as one, after the op `begin` if there is one.

    Returns:
      The one tensor, at the end of the route.
    """
    source, target = route
    dtype = tensors[0].dtype
    cast_dtype = self._cast_dtype(dtype)
    with tf.device(source):
      packed = packing.pack(tensors)
      if cast_dtype != dtype:
        packed = tf.cast(packed, cast_dtype)
      if is_guarded and dtype.is_floating:
        packed = self.guard(packed)
      if begin:
        with tf.control_dependencies([begin]):
          packed = tf.identity(packed)
    if unless is not None and packed.shape.is_fully_defined():
      packed = _send_unless(unless, packed, source, target)
    with tf.device(target):
      # Without an op here it would be sent to each op that needs it.
      if cast_dtype != dtype:
        return tf.cast(packed, dtype)
      return tf.identity(packed)


def _send_unless(
  is_late: tf.Tensor, packed: tf.Tensor, source: str, target: str
) -> tf.Tensor:
  """Returns `packed` on the target, or zeros made there if bool `is_late`."""
  # Not tf.cond: it has its switch take a copy of the bool from the target.
  with tf.device(source):
    sent, _ = tf.raw_ops.Switch(data=packed, pred=is_late)
  with tf.device(target):
    _, late = tf.raw_ops.Switch(data=is_late, pred=is_late)
    # The switch itself always runs; what takes its output only if late.
    with tf.control_dependencies([tf.identity(late)]):
      zeros = tf.zeros(packed.shape, packed.dtype)
    arrived, _ = tf.raw_ops.Merge(inputs=[tf.identity(sent), zeros])
    return arrived


def bring_scalars(
  tensors: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
  """Returns scalar `tensors`; those on a ps come to this worker together."""
  brought = list(tensors)
  for place, indices in _group_by_place(tensors):
    if place:
      packed = _pack([tensors[i] for i in indices], place)
      parts = tf.unstack(packed) if len(indices) > 1 else [packed]
      for i, part in zip(indices, parts, strict=True):
        brought[i] = part
  return brought


class PackedScalars:
  """Scalars of a session.run, fetched as few vectors.

  Fetching a tensor costs the session some 20 us, most of it in Python: a run of
  ten steps of a small net would spend a tenth of its time on its metrics.

  Attributes:
    fetches: on this worker, each a vector or the only scalar of its dtype and
      place.
  """

  def __init__(self, tensors: Sequence[tf.Tensor]) -> None:
    """
    Args:
      tensors: scalar tensors, on this worker or on any ps.
    """
    groups = _group_by_place(tensors)
    self._groups = [indices for _, indices in groups]
    self._size = len(tensors)
    self.fetches = [
      _pack([tensors[i] for i in indices], place) for place, indices in groups
    ]

  def unpack(self, values: Sequence[np.ndarray]) -> list[Any]:
    """Returns the scalars that were fetched, int and float."""
    scalars: list[Any] = [None] * self._size
    for indices, value in zip(self._groups, values, strict=True):
      for i, scalar in zip(indices, np.ravel(value).tolist(), strict=True):
        scalars[i] = scalar
    return scalars


def _group_by_place(
  tensors: Sequence[tf.Tensor],
) -> list[tuple[str | None, list[int]]]:
  """Returns [(device of a ps or None, indices)], one per place and dtype."""
  groups = {}
  for i, tensor in enumerate(tensors):
    place = tensor.device if is_on_ps(tensor) else None
    groups.setdefault((place, tensor.dtype), []).append(i)
  return [(place, indices) for (place, _), indices in groups.items()]


def _pack(scalars: Sequence[tf.Tensor], place: str | None) -> tf.Tensor:
  """Returns `scalars` of one place as one tensor on this worker."""
  packed = scalars[0]
  if len(scalars) > 1:
    with tf.device(place):
      packed = tf.stack(scalars)
  return tf.identity(packed) if place else packed


def is_on_ps(x: tf.Tensor | tf.Operation | tf.Variable) -> bool:
  """Whether a tensor or an op is on a ps."""
  return tf.DeviceSpec.from_string(x.device).job == 'ps'
