"""Random numbers that depend on --seed and on what they are for.

The first value of a variable depends on (seed, its name): neither the number of
ps nor other variables or random ops change it. What is drawn in a step, such as
the units that dropout leaves out, depends on (seed, op, place of the batch in
the stream of images): a batch that is read again, by a resumed run or by
another worker, is treated the same.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from distmnist import graph_record


def derive(*parts: object) -> int:
  """Returns an int of 63 bits that depends on all of `parts`."""
  digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'little') >> 1


def set_seed(seed: int, worker: int = 0) -> None:
  """Sets what all draws of the default graph depend on.

  Args:
    worker: the worker, for random ops from outside this module.
  """
  tf.set_random_seed(derive('ops', seed, worker) % 2**31)
  graph_record.current().seed = seed


def set_place(place: tf.Tensor) -> None:
  """Sets what the draws built from now on depend on besides the seed.

  Args:
    place: int64 [], different for each batch.
  """
  graph_record.current().place = place


def make_key(name: str) -> tf.Tensor:
  """Returns the seed of a stateless op of a step, int64 [2].

  Args:
    name: different for each op of the graph.
  """
  key = tf.constant(derive('step', _find_seed(), name))
  return tf.stack([key, find_place()])


def find_place() -> tf.Tensor:
  """Returns the place of the step's batch, int64 [].

  Where no batches are dealt, it is a random number each time.
  """
  place = graph_record.current().place
  if place is not None:
    return place
  return tf.random.uniform([], maxval=2**31, dtype=tf.int64)


def make_initializer(
  name: str, draw: Callable[[list[int], list[int]], tf.Tensor]
) -> Callable[..., tf.Tensor]:
  """Returns an initializer for tf.get_variable.

  A variable is drawn once as a whole, and each shard takes its part: values
  drawn in parts would depend on the number of parts.

  Args:
    name: of the variable.
    draw: draws a tensor of a shape by a stateless op,
      from a key, int64 [2].
  """

  drawn: dict[tf.Graph, tf.Tensor] = {}

  def initialize(
    shape: Sequence[int],
    dtype: tf.DType = tf.float32,
    partition_info: Any = None,
  ) -> tf.Tensor:
    key = [derive_first(name), 0]
    if partition_info is None:
      return tf.cast(draw(list(shape), key), dtype)
    graph = tf.get_default_graph()
    if graph not in drawn:
      drawn[graph] = tf.cast(draw(list(partition_info.full_shape), key), dtype)
    return tf.slice(drawn[graph], partition_info.var_offset, shape)

  return initialize


def derive_first(name: str) -> int:
  """Returns the seed of the initial values of what the model calls `name`.

  Returns:
    int of 63 bits.
  """
  return derive('variable', _find_seed(), name)


def _find_seed() -> int:
  record = graph_record.current()
  if record.seed is None:
    graph_seed = tf.get_default_graph().seed
    if graph_seed is None:  # Nobody asked for repeatable numbers.
      graph_seed = int.from_bytes(os.urandom(7), 'little')
    record.seed = graph_seed
  return record.seed
