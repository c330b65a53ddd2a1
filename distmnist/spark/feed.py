"""The examples of an RDD or a DataFrame, brought to the workers by Spark.

Training needs its examples again and again, in a different order for each pass,
and keeps them in the worker's memory. So they are not streamed: before the
first step each worker gets the whole of its own part.

  driver      deals out the records one by one, and has Spark shuffle them to
              one partition per worker; the test examples go to the chief
  executor    a worker's barrier task writes its partition to NumPy files as it
              arrives, then starts the worker with their folder

Spark's shuffle keeps on disk what has not been read yet: a slow worker delays
no other and fills no queue (back-pressure), and no second job could be left
waiting for a dead worker. Spark recomputes what is lost with an executor. The
driver limits the time of the whole transfer. All workers get the same number of
examples: that of the worker with the fewest, which has at most one less for
each partition of the input.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from distmnist.common import cli, command_line
from distmnist.data import array_folder, mixed_columns
from distmnist.spark import layouts, spark_job

if TYPE_CHECKING:
  import pyspark

  from distmnist.spark import program as program_lib


# What becomes x, or y, of a row of a DataFrame; see Feed.
Side = str | list[str] | dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Feed:
  """Examples from Spark to train on, instead of examples from files.

  Attributes:
    data: RDD of (x, y), or DataFrame. x and y are numbers, text, arrays, or
      dicts or tuples of these; the first example sets their shapes and types.
      For images without a --problem, x is bytes, a uint8 array, or numbers
      from 0 to 255.
    test_data: likewise, for the chief's report.
    x, y: the columns of a DataFrame: a name; a list of names of number
      columns, which become an array; or {name: one of these}.
    image_shape: (height, width, channels), for images without a --problem.
    num_classes: the labels of such images are less than this.
    timeout_secs: the time in which the workers must get all examples.
    limit_mb: the most that one worker accepts.
  """

  data: Any
  test_data: Any = None
  x: Side = 'image'
  y: Side = 'label'
  image_shape: tuple[int, ...] = (28, 28, 1)
  num_classes: int = 10
  timeout_secs: float = 600.0
  limit_mb: float = 4096.0

  def check(
    self, train_flags: Sequence[str], needs_test_data: bool = True
  ) -> None:
    """Raises cli.UsageError if this conflicts with the flags of train."""
    if needs_test_data and self.test_data is None:
      raise cli.UsageError(
        'the feed has no test_data: give some, such as'
        ' data, test_data = rdd.randomSplit([0.9, 0.1], seed=0)'
      )
    for name in ('dataset', 'data_dir', 'epochs_over', 'fed_dir'):
      if command_line.find_value(train_flags, name) is not None:
        raise cli.UsageError(
          f'--{name} does not go with a feed: leave it out, as the examples'
          ' come from its data'
        )

  def make_layout(self, is_images: bool) -> layouts.Layout:
    """Returns the layout of the examples; see spark/layouts.py.

    Args:
      is_images: whether they are images, for --model and --dataset.

    Raises:
      cli.RunError: a first example cannot be used, or Spark cannot compute it.
    """
    layout = None
    if is_images:
      layout = layouts.make_of_images(self.image_shape, self.num_classes)
    for name, data in (('data', self.data), ('test_data', self.test_data)):
      if data is None:
        continue
      try:
        pairs = get_pairs(data, self.x, self.y)
        layout = check_first(pairs, layout)
      except Exception as error:
        raise cli.RunError(f'{name}: {spark_job.explain(error)}') from error
    return layout

  def bring(
    self,
    sc: pyspark.SparkContext,
    program: program_lib.Program,
    num_ps: int,
    num_workers: int,
  ) -> tuple[pyspark.RDD, dict[str, Any]]:
    """Has the workers train on these examples, which `check` has accepted.

    Args:
      program: it gets the flags with which train uses them.
      num_ps, num_workers: the shape of the cluster.

    Returns:
      (RDD with one partition per task, holding its examples; dict, what each
      task must know about them).
    """
    is_images = program.is_of_images
    layout = self.make_layout(is_images)
    pairs, test_pairs = (
      get_pairs(data, self.x, self.y) for data in (self.data, self.test_data)
    )
    rdd = make_rdd(sc, pairs, test_pairs, num_ps, num_workers, layout)
    if not program.main:
      program.flags.extend(self.make_flags(program.flags, is_images))
    flag = 'data_dir' if is_images else 'fed_dir'
    return rdd, {'layout': layout, 'limit_mb': self.limit_mb, 'flag': flag}

  def make_flags(
    self, train_flags: Sequence[str], is_images: bool
  ) -> list[str]:
    """Returns what to add to the flags of train for these examples."""
    # A worker's own files: no other worker has these examples.
    added = ['--epochs_over=dataset']
    if not is_images:
      return added
    if command_line.find_value(train_flags, 'validation_images') is None:
      added.append('--validation_images=0')
    return [
      *added,
      '--dataset=npy',
      f'--npy_image_shape={",".join(map(str, self.image_shape))}',
      f'--npy_classes={self.num_classes}',
    ]


def check_first(
  pairs: pyspark.RDD, layout: layouts.Layout | None
) -> layouts.Layout:
  """Checks an example here, before Spark would try a bad one four times.

  Args:
    pairs: (x, y) of each example.
    layout: None for that of the first example.

  Returns:
    The layout.

  Raises:
    ValueError: the example does not fit, or there is none.
    Exception: Spark cannot compute it.
  """
  first = pairs.take(1)
  if not first:
    raise ValueError('it has no example')
  layout = layout or layouts.make(first[0])
  layouts.pack(first[0], layout)
  return layout


def get_pairs(data: Any, x: Side, y: Side) -> pyspark.RDD:
  """Returns an RDD of (x, y) from an RDD, DataFrame or None; see Feed."""
  if not hasattr(data, 'select'):
    return data
  wanted = list(dict.fromkeys([*_columns_of(x), *_columns_of(y)]))
  pick = functools.partial(_pick_row, x=x, y=y)
  return data.select(*wanted).rdd.map(pick)


def make_rdd(
  sc: pyspark.SparkContext,
  pairs: pyspark.RDD,
  test_pairs: pyspark.RDD | None,
  num_ps: int,
  num_workers: int,
  layout: layouts.Layout,
) -> pyspark.RDD:
  """Returns an RDD with a partition per task: its examples, none for a ps.

  Args:
    pairs, test_pairs: (x, y) of each example.
    layout: see spark/layouts.py.
  """
  deal = functools.partial(_deal, num_ps=num_ps, num_workers=num_workers)
  pack_one = functools.partial(layouts.pack, layout=layout)
  parts = [pairs.map(pack_one).mapPartitionsWithIndex(deal)]
  if test_pairs is not None:
    chief = num_ps
    parts.append(test_pairs.map(lambda pair: (chief, (True, pack_one(pair)))))
  return sc.union(parts).partitionBy(num_ps + num_workers, int)


def spool(
  records: Iterable[tuple[int, tuple[bool, list[bytes]]]],
  folder: str,
  layout: layouts.Layout,
  limit_mb: float,
) -> int:
  """Writes a partition's examples; returns the number of training examples.

  Args:
    records: (partition, (is_test, packed)) of each example.
    folder: where to write.
    layout: see spark/layouts.py.
    limit_mb: the most that is accepted.

  Raises:
    ValueError: there is more.
  """
  left = limit_mb * 1e6
  num_examples = 0
  with contextlib.ExitStack() as stack:
    writers = {
      is_test: [
        stack.enter_context(_make_writer(folder, split, leaf))
        for leaf in layout['leaves']
      ]
      for is_test, split in ((False, 'train'), (True, 'test'))
    }
    for _, (is_test, packed) in records:
      left -= sum(map(len, packed))
      if left < 0:
        raise ValueError(
          f'more than {limit_mb:g} MB of examples for one worker: use more'
          ' workers, or raise limit_mb of the feed'
        )
      for writer, content in zip(writers[is_test], packed, strict=True):
        writer.write(content)
      num_examples += not is_test
  if layout['nests'] is not None:
    array_folder.write_nests(folder, layout['nests'])
  return num_examples


def cut(
  folder: str,
  layout: layouts.Layout,
  num_examples: int,
) -> None:
  """Keeps the first `num_examples` of the training examples."""
  for leaf in layout['leaves']:
    path = _path_of(folder, 'train', leaf)
    array = np.load(path, mmap_mode='r', allow_pickle=False)
    if len(array) != num_examples:
      with open(path, 'r+b') as file:
        _write_header(file, array.dtype, (num_examples, *array.shape[1:]))


class _Writer:
  """A NumPy file that grows by rows; `close` writes their number to it."""

  def __init__(self, path: str, dtype: str, row_shape: Sequence[int]) -> None:
    self._num_rows = 0
    self._dtype, self._row_shape = dtype, row_shape
    self._file = open(path, 'wb')  # noqa: SIM115 (until close)
    self._write_header()

  def write(self, row: bytes) -> None:
    self._file.write(row)
    self._num_rows += 1

  def close(self) -> None:
    with self._file:
      self._write_header()

  def _write_header(self) -> None:
    shape = (self._num_rows, *self._row_shape)
    _write_header(self._file, self._dtype, shape)


class _TextWriter:
  """A NumPy file of texts, each stored as wide as the longest of them."""

  def __init__(self, path: str) -> None:
    self._path = path
    self._texts: list[bytes] = []

  def write(self, text: bytes) -> None:
    self._texts.append(text)

  def close(self) -> None:
    np.save(self._path, np.array(self._texts, np.bytes_))


def _make_writer(
  folder: str, split: str, leaf: layouts.Leaf
) -> contextlib.AbstractContextManager[_Writer | _TextWriter]:
  path, dtype = _path_of(folder, split, leaf), leaf['dtype']
  if dtype == layouts.TEXT:
    return contextlib.closing(_TextWriter(path))
  return contextlib.closing(_Writer(path, dtype, leaf['shape']))


def _path_of(folder: str, split: str, leaf: layouts.Leaf) -> str:
  return os.path.join(folder, f'{split}_{leaf["name"]}.npy')


def _write_header(
  file: IO[bytes], dtype: np.dtype | str, shape: tuple[int, ...]
) -> None:
  # NumPy leaves room for any first dimension: the header keeps its length.
  file.seek(0)
  descr = np.lib.format.dtype_to_descr(np.dtype(dtype))
  np.lib.format.write_array_header_1_0(
    file, {'descr': descr, 'fortran_order': False, 'shape': shape}
  )


def _columns_of(side: Side) -> list[str]:
  if isinstance(side, str):
    return [side]
  parts = side.values() if isinstance(side, dict) else side
  return list(itertools.chain.from_iterable(map(_columns_of, parts)))


def _pick_row(row: Any, x: Side, y: Side) -> tuple[Any, Any]:
  return _pick_side(row, x), _pick_side(row, y)


def _pick_side(row: Any, side: Side) -> Any:
  if isinstance(side, dict):
    return {name: _pick_side(row, part) for name, part in side.items()}
  if isinstance(side, (list, tuple)):
    values = [row[column] for column in side]
    found = np.array(values)
    mixed_columns.check(side, values, found)
    return found
  return row[side]


def _deal(
  split: int, examples: Iterable[list[bytes]], num_ps: int, num_workers: int
) -> Iterator[tuple[int, tuple[bool, list[bytes]]]]:
  # Partitions begin with different workers: none gets all the first examples.
  for number, packed in enumerate(examples, split):
    yield num_ps + number % num_workers, (False, packed)
