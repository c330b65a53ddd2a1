"""The norms of whole layers whose shards are on several ps.

LARS and LAMB scale the step of a layer by ||w|| / ||step||, over all shards of
its weights. Each ps sums the squares of its shards and sends the sums, 8 bytes
per layer in one message, to each ps with other shards of these layers. All
shards are then scaled alike, and none is updated before all are summed.

Biases and the scales of batch norm, all of rank 0 or 1, have no ratio, as in
the authors' programs: their norm is no measure of the layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import tensorflow.compat.v1 as tf

from distmnist.nn import weight_decay
from distmnist.tables import shard_slices
from distmnist.transport import sums as exchange_sums


def build_norms(
  pairs: Iterable[tuple[tf.Tensor, tf.Variable]],
) -> dict[int, tuple[tf.Tensor, tf.Tensor]]:
  """Builds the norms of whole layers.

  Args:
    pairs: (tensor, w): w is a tf.Variable or a shard of one, tensor a float
      tensor of its shape, on its device.

  Returns:
    {id(w): (||w||, ||tensor||)}, float32 scalar tensors on w's device, for each
    w that has a ratio.
  """
  pairs = [(tensor, w) for tensor, w in pairs if weight_decay.decays(w)]
  sums = {}
  for tensor, w in pairs:
    # By now this step has computed its gradient with the old w.
    with tf.device(w.device), tf.control_dependencies([tensor]):
      values = w.read_value(), tensor
      squares = [
        tf.reduce_sum(tf.square(exchange_sums.widen(value))) for value in values
      ]
      squares = tf.stack([tf.cast(square, tf.float32) for square in squares])
    there = sums.setdefault(w.device, {})
    there.setdefault(_whole_name(w), []).append(squares)
  sent = {}
  for device, there in sums.items():
    with tf.device(device):
      # One row per layer: the sums over its shards on this device.
      sent[device] = tf.stack(
        [exchange_sums.add_up(squares) for squares in there.values()]
      )
  layers = {device: list(there) for device, there in sums.items()}
  norms = {device: _add_up(device, layers, sent) for device in sums}
  return {id(w): norms[w.device][_whole_name(w)] for _, w in pairs}


def _add_up(
  device: str, layers: Mapping[str, list[str]], sent: Mapping[str, tf.Tensor]
) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
  """Returns {layer: (||w||, ||tensor||)} for the layers on `device`.

  Args:
    layers: {device: list of str}, the names of the layers on each device.
    sent: {device: float32 [layers, 2]}, their sums of squares.
  """
  found = {name: [] for name in layers[device]}
  with tf.device(device):
    for other, names in layers.items():
      shared = [name for name in names if name in found]
      if shared:
        rows = tf.unstack(tf.identity(sent[other]))
        for name in shared:
          found[name].append(rows[names.index(name)])
    return {
      name: tuple(tf.unstack(tf.sqrt(exchange_sums.add_up(rows))))
      for name, rows in found.items()
    }


def choose(ratio: tf.Tensor, norms: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
  """Returns the ratio of a layer, 1 where one of its norms is 0.

  Args:
    ratio: float32 scalar tensor; may be no number there.
    norms: (||w||, ||tensor||), see `build_norms`.
  """
  return tf.where(tf.minimum(*norms) > 0, ratio, tf.ones_like(ratio))


def scale(factor: float | tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
  """Returns `tensor` times a float or a float32 scalar tensor, in its dtype."""
  return tf.cast(factor, tensor.dtype) * tensor


def _whole_name(variable: tf.Variable) -> str:
  return shard_slices.find_place(variable)[0]
