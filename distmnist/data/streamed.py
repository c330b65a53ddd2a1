"""Examples that are read on demand, so that memory holds only a few.

A reader reads them: one from readers/, or an object of the user's with

  num_examples         int
  read(indices)        int64 [k], numbers of examples -> (x, y) or (x, y, w),
                       nests of arrays [k, ...], always of the same types and
                       shapes; w, the weights, [k]
  block_sizes, window  if the examples lie in blocks: the size of each, and how
                       many blocks are mixed; see data_order.py
  identify()           bytes that tell these examples from others
"""

from __future__ import annotations

import collections
import contextlib
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import signals
from distmnist.common.names import PACKAGE
from distmnist.data import data_order
from distmnist.data import split as split_lib

_READ_THREADS = flags.DEFINE_integer(
  'read_threads',
  1,
  'Threads of a worker that read the batches of the next runs in advance, if a '
  "problem's examples come from a reader. More than one needs a reader that "
  'may be called from several threads at once, as the ones in '
  'distmnist.readers may.',
  lower_bound=1,
  upper_bound=64,
)
# Where what a reader raises goes: one list for each `noted_failures`.
_failures: list[list[BaseException]] = []
# What is waited for now: one for each thread that waits.
_waits: list[str] = []


class ReadError(Exception):
  """A reader has failed; `__cause__` says how.

  TensorFlow would give the reader's own error a meaning: StopIteration ends a
  training as if it were done.
  """


def is_reader(found: Any) -> bool:
  """Whether an object that `load` returned reads examples."""
  return hasattr(found, 'num_examples') and hasattr(found, 'read')


@contextlib.contextmanager
def noted_failures() -> Iterator[list[BaseException]]:
  """Yields a list, which grows by what readers raise meanwhile.

  In any thread: TensorFlow hides it in an error of its own if a reader reads in
  a graph.
  """
  global _failures
  found: list[BaseException] = []
  _failures = [*_failures, found]
  try:
    yield found
  finally:
    # Two that are empty are equal.
    _failures = [other for other in _failures if other is not found]


def find_wait() -> str | None:
  """Returns what a reader is to give, such as 'the next batch of mine.py'.

  None if nothing waits for a reader at this moment.
  """
  return next(iter(_waits), None)


@contextlib.contextmanager
def _waiting(what: str) -> Iterator[None]:
  _waits.append(what)
  try:
    yield
  finally:
    _waits.remove(what)


@contextlib.contextmanager
def _noting() -> Iterator[None]:
  """Notes what the reader raises in `noted_failures`; raises ReadError."""
  try:
    yield
  except BaseException as error:
    if signals.is_signal(error):
      raise
    for found in _failures:
      found.append(error)
    raise ReadError(f'{type(error).__name__}: {error}') from error


class Streamed:
  """Examples of a reader, used in place of a split.Split.

  Attributes:
    num_examples: all that the reader has.
    spec: the tf.TensorSpec of one example.
    blocks: None if all examples are mixed.
    class_names: if the reader knows what its labels stand for.
    num_threads: how many runs are read ahead.
  """

  def __init__(self, reader: Any) -> None:
    """Reads the first example.

    Args:
      reader: see above.

    Raises:
      Exception: whatever the reader raises.
      ValueError: it has no examples, or no whole number of them, its blocks
        have more or fewer, or its window has no block.
    """
    self._reader = reader
    self._file = _find_file(reader)
    # Ours give new arrays each time; a subclass may not.
    self._is_ours = type(reader).__module__.startswith(f'{PACKAGE}.readers.')
    try:
      self.num_examples = operator.index(reader.num_examples)
    except TypeError as error:
      raise ValueError(
        f'num_examples of the reader is {reader.num_examples!r}: expected an '
        'int'
      ) from error
    self.class_names: list[str] | None = getattr(reader, 'class_names', None)
    if self.num_examples < 1:
      raise ValueError('the reader has no examples')
    self.blocks: data_order.Blocks | None = None
    sizes = getattr(reader, 'block_sizes', None)
    if sizes is not None:
      self.blocks = data_order.Blocks(sizes, reader.window)
      if reader.window < 1:
        raise ValueError(
          f'the window of the reader is {reader.window}: expected how many '
          'blocks are mixed, 1 or more'
        )
      if sum(sizes) != self.num_examples or min(sizes) < 1:
        raise ValueError(
          f'the blocks of the reader have {sum(sizes)} examples, but the '
          f'reader has {self.num_examples}'
        )
    self.spec = self._read_any(np.zeros(1, np.int64)).spec
    self.num_threads = _READ_THREADS.value
    self._ahead = ReadAhead(self._read_copy, self.num_threads)

  def pack(self, values: Iterable[Any]) -> split_lib.Split:
    """Returns a Split with values in place of its arrays."""
    return self.spec.pack(values)

  def slice(self, start: int, stop: int) -> split_lib.Split:
    """Returns the examples from start to stop - 1, read now.

    Raises:
      ReadError: the reader fails.
    """
    indices = np.arange(start, min(stop, self.num_examples))
    if len(indices):
      with _waiting(f'examples of {self._file}'), _noting():
        return self._read(indices)
    return self.pack(
      np.zeros([0, *leaf.shape], leaf.dtype.as_numpy_dtype)
      for leaf in self.spec.arrays()
    )

  def announce(self, rows: np.ndarray) -> None:
    """Starts to read batches in the background; see ReadAhead."""
    self._ahead.announce(rows)

  def take(self, row: np.ndarray) -> list[np.ndarray]:
    """Returns the arrays of a batch, [batch_size, ...] each.

    Args:
      row: int64 [1 + batch_size], see step_rows.StepRows.

    Raises:
      ReadError: the reader fails.
    """
    with _waiting(f'the next batch of {self._file}'), _noting():
      return self._ahead.take(row)

  def identify(self) -> Iterator[bytes | np.ndarray]:
    """Yields bytes or arrays that tell these examples from others.

    Raises:
      ReadError: the reader fails, or gives something else.
    """
    yield repr((self.num_examples, self.spec)).encode()
    yield from self.slice(0, 1).identify()
    if hasattr(self._reader, 'identify'):
      with _noting():
        found = self._reader.identify()
        if not isinstance(found, bytes):
          raise ValueError(
            f'identify() gave {type(found).__name__}: expected bytes'
          )
      yield found

  def _read_copy(self, indices: np.ndarray) -> list[np.ndarray]:
    """Returns the arrays of some examples, which nobody else will change.

    A reader may give the same memory each time, with other values, while
    batches that were read ahead still wait for their steps.
    """
    arrays = self._read(indices).arrays()
    return arrays if self._is_ours else [array.copy() for array in arrays]

  def _read(self, indices: np.ndarray) -> split_lib.Split:
    """Returns some examples; checks that they are like the first."""
    found = self._read_any(indices)
    if found.spec != self.spec:
      raise ValueError(
        f'read() gave {_format(found.spec)} where example 0 is '
        f'{_format(self.spec)}: pad all examples to one shape'
      )
    return found

  def _read_any(self, indices: np.ndarray) -> split_lib.Split:
    """Returns some examples of any shape; checks what was read."""
    found = self._reader.read(indices)
    if not isinstance(found, tuple) or len(found) not in (2, 3):
      raise ValueError(
        f'read() gave {type(found).__name__}: expected (x, y), nests of '
        'arrays, or (x, y, weights)'
      )
    examples = split_lib.make(*found, numbers=indices)
    if examples.num_examples != len(indices):
      raise ValueError(
        f'read() gave {examples.num_examples} examples for {len(indices)} '
        'numbers'
      )
    return examples


def _find_file(reader: Any) -> str:
  """Returns the name of the file that a reader's class is in."""
  module = sys.modules.get(type(reader).__module__)
  file = getattr(module, '__file__', None) or type(reader).__name__
  return os.path.basename(file)


def _format(spec: split_lib.Split) -> str:
  return ', '.join(
    f'{leaf.dtype.name} {leaf.shape.as_list()}' for leaf in spec.arrays()
  )


def build_batch(examples: Streamed, row: tf.Tensor) -> list[tf.Tensor]:
  """Returns the arrays of a batch, [batch_size, ...] each.

  Args:
    row: int64 [1 + batch_size], see step_rows.StepRows.
  """
  leaves = examples.spec.arrays()
  tensors = tf.py_func(examples.take, [row], [leaf.dtype for leaf in leaves])
  # Set by an op, so that a copy of the step (graph_copy.py) keeps the shape.
  return [
    tf.ensure_shape(tensor, [row.shape[0] - 1, *leaf.shape])
    for tensor, leaf in zip(tensors, leaves, strict=True)
  ]


class ReadAhead:
  """Reads the batches of a whole run at once, and hands them out by their rows.

  A row is what a step is fed with: the place of its batch and the numbers of
  its examples, see step_rows.StepRows.
  """

  def __init__(
    self, read: Callable[[np.ndarray], list[np.ndarray]], num_threads: int
  ) -> None:
    """
    Args:
      read: returns arrays [len(indices), ...] of some examples.
      num_threads: threads in which runs are read.
    """
    self._read = read
    self._pool = futures.ThreadPoolExecutor(num_threads, 'read_ahead')
    # By the bytes of the first row.
    self._kept: collections.OrderedDict[bytes, _Run] = collections.OrderedDict()
    # The current run, those ahead, and one that may come again.
    self._max_kept = num_threads + 2

  def announce(self, rows: np.ndarray) -> None:
    """Starts to read batches, unless that has started already.

    Args:
      rows: int64 [num_batches, 1 + batch_size].
    """
    key = rows[0].tobytes()
    if key in self._kept and len(self._kept[key].places) >= len(rows):
      return
    future = self._pool.submit(self._read, rows[:, 1:].ravel())
    places = {row.tobytes(): i for i, row in enumerate(rows)}
    while len(self._kept) >= self._max_kept:
      self._kept.popitem(last=False)[1].future.cancel()
    self._kept[key] = _Run(places, future)

  def take(self, row: np.ndarray) -> list[np.ndarray]:
    """Returns the arrays of a batch; reads it now if it was not announced.

    Args:
      row: int64 [1 + batch_size].
    """
    key, size = row.tobytes(), len(row) - 1
    for run in list(self._kept.values()):
      number = run.places.get(key)
      if number is not None and not run.future.cancelled():
        start = number * size
        return [array[start : start + size] for array in run.future.result()]
    return self._read(row[1:])


class _Run(NamedTuple):
  """The batches of a run: the number of each by the bytes of its row."""

  places: dict[bytes, int]
  future: futures.Future[list[np.ndarray]]
