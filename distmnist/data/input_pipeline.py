"""Input inside the graph: a worker is told which examples to take.

All examples stay in local variables of the worker, filled once by py_funcs, in
the type in which they were loaded: none is fed in the training loop, and the
GraphDef has no 47 MB constant. Or a reader reads them on demand, and a py_func
takes what it has read (streamed.py). Only a row of numbers is fed per batch,
the indices of its examples (training/batches/batch_source.py). Through tf.data,
even these would cost a small net a tenth of its time, because of its threads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.data import seeds, step_rows, streamed
from distmnist.data.split import Split
from distmnist.data.streamed import Streamed


class _Warmup(Protocol):
  """A run of the graph in which nothing is read; see exchange/steps."""

  def hold_back(self, row: tf.Tensor, /) -> tf.Tensor:
    """Returns `row`, which waits until nothing is warmed up."""
    ...


class Slice(NamedTuple):
  """A part of the batch of a step, as large as --batch_size.

  Attributes:
    batch: tensors [n, ...], x and y as `preprocess` returns them; a Split, or
      (x, y).
    place: int64 [], see seeds.set_place; None for a whole batch.
    gate: what the slice comes from; None for a whole batch.
  """

  batch: Any
  place: tf.Tensor | None = None
  gate: tf.Operation | None = None


def build_batches(
  split: Split | Streamed,
  preprocess: Callable[..., tuple[Any, Any]],
  batch_size: int,
  device: str,
  warmup: _Warmup | None = None,
) -> Split:
  """Builds the batch of a step; it is fed through step_rows.StepRows.

  Args:
    split: split.Split or streamed.Streamed.
    preprocess: callable(x, y, is_training) -> (x, y), of one batch.
    device: this worker's CPU.
    warmup: a run in which nothing is read, or None.

  Returns:
    split.Split of tensors [batch_size, ...], x and y as `preprocess` returns
    them.
  """
  with tf.name_scope('input'), tf.device(device):
    arrays, row = _build_inputs(split, batch_size, warmup)
    seeds.set_place(row[0])
    chosen = _choose(split, arrays, row, 0, batch_size)
    return chosen.preprocess(preprocess, is_training=True)


def build_slices(
  split: Split | Streamed,
  preprocess: Callable[..., tuple[Any, Any]],
  slice_size: int,
  num_slices: int,
  device: str,
  warmup: _Warmup | None,
) -> list[Slice]:
  """Builds the slices of the batch of a step, which is fed as a whole.

  Args:
    split, preprocess, device, warmup: see `build_batches`; `preprocess` is
      given one slice at a time.

  Returns:
    list of Slice, in the order of the examples.
  """
  batch_size = slice_size * num_slices
  if num_slices == 1:
    whole = build_batches(split, preprocess, batch_size, device, warmup)
    return [Slice(whole)]
  slices = []
  with tf.name_scope('input'), tf.device(device):
    arrays, row = _build_inputs(split, batch_size, warmup)
    for start in range(0, batch_size, slice_size):
      # Each slice has its own op, as each waits for something of its own.
      part = tf.identity(row, 'slice')
      place = part[0] + start
      seeds.set_place(place)
      chosen = _choose(split, arrays, part, start, slice_size)
      batch = chosen.preprocess(preprocess, is_training=True)
      slices.append(Slice(batch, place, part.op))
  return slices


def _build_inputs(
  split: Split | Streamed, batch_size: int, warmup: _Warmup | None
) -> tuple[list[tf.Tensor], tf.Tensor]:
  """Returns (arrays to choose from, what a step is fed with) as tensors."""
  is_streamed = isinstance(split, Streamed)
  resident = [] if is_streamed else _build_resident(split.arrays())
  row = step_rows.build(batch_size).row
  if warmup:
    row = warmup.hold_back(row)
  return streamed.build_batch(split, row) if is_streamed else resident, row


def _choose(
  split: Split | Streamed,
  arrays: Iterable[tf.Tensor],
  row: tf.Tensor,
  start: int,
  size: int,
) -> Split:
  """Returns `size` examples of a batch, computed after `row`."""
  if isinstance(split, Streamed):  # Its arrays are the batch.
    with tf.control_dependencies([row.op]):
      return split.pack(array[start : start + size] for array in arrays)
  chosen = row[1 + start : 1 + start + size]
  return split.pack(tf.gather(array, chosen) for array in arrays)


def build_chunks(
  split: Split | Streamed,
  preprocess: Callable[..., tuple[Any, Any]],
  chunk_size: int,
) -> tuple[Split, tf.Operation]:
  """Builds one pass over a split in order, in chunks; the last may be smaller.

  Args:
    split: split.Split or streamed.Streamed.
    preprocess: as in `build_batches`.

  Returns:
    (split.Split of tensors [n, ...], the op that starts the pass); at its end
    tf.errors.OutOfRangeError is raised.
  """
  leaves = split.spec.arrays()

  def generate() -> Iterator[tuple]:
    for start in range(0, split.num_examples, chunk_size):
      yield tuple(split.slice(start, start + chunk_size).arrays())

  with tf.name_scope('chunks'), tf.device('/device:CPU:0'):
    dataset = tf.data.Dataset.from_generator(
      generate,
      tuple(leaf.dtype for leaf in leaves),
      tuple(tf.TensorShape([None, *leaf.shape]) for leaf in leaves),
    )
    iterator = tf.data.make_initializable_iterator(
      dataset.with_options(make_dataset_options())
    )
    chunk = split.pack(iterator.get_next())
    return chunk.preprocess(preprocess, is_training=False), iterator.initializer


def _build_resident(arrays: Iterable[np.ndarray]) -> list[tf.Variable]:
  return [
    tf.get_local_variable(
      f'array_{i}',
      initializer=functools.partial(_build_constant_by_call, array),
      use_resource=True,
    )
    for i, array in enumerate(arrays)
  ]


def _build_constant_by_call(array: np.ndarray) -> tf.Tensor:
  tensor = tf.py_func(lambda: array, [], tf.as_dtype(array.dtype))
  tensor.set_shape(array.shape)
  return tensor


def make_dataset_options() -> tf.data.Options:
  """Returns the options of a data set that ends when told to.

  Nothing here is worth tuning, and closing a session waits for the tuner's
  thread, which sleeps for up to a minute at a time.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  return options
