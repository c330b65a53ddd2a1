"""Predictions for a Spark DataFrame, from a model that export has written.

  from distmnist import spark

  spark.predict(images, '/shared/model').select('classes').show()

Each Python process of an executor loads the model once, and keeps it. One loads
it right away, so that a wrong path gives a one-line error, not a failed job.
"""

from __future__ import annotations

import decimal
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from distmnist.common import cli
from distmnist.spark import executors, spark_job

if TYPE_CHECKING:
  import numpy as np
  import pyspark.sql

  from distmnist.serving import saved_model


# Name, dtype, rank.
Output = tuple[str, str, int]


def predict(
  dataframe: pyspark.sql.DataFrame,
  export_dir: str,
  columns: Mapping[str, str | list[str]] | None = None,
  batch_size: int = 256,
) -> pyspark.sql.DataFrame:
  """Returns the DataFrame with a column for each output of a model.

  It is lazy, like any DataFrame. An output [n] becomes a column of its type, an
  output of several numbers per row a column of flat arrays. Floats of 16 bits
  become float, uint64 becomes decimal(20,0).

  Args:
    export_dir: the SavedModel, at the same path on each executor.
    columns: {name of an input: column, or a list of columns of numbers}. By
      default each input reads the column of its own name; a model of images
      reads the column `image`.
    batch_size: rows per run of the model.

  Raises:
    cli.UsageError: it cannot work with this DataFrame or this path.
    cli.RunError: an executor cannot load the model.
  """
  executors.check_path('export_dir', export_dir)
  from pyspark.sql import types

  session = dataframe.sparkSession
  executors.ship_package(session.sparkContext)
  inputs, outputs = _describe_model(session.sparkContext, export_dir)
  chosen = choose_columns(inputs, outputs, columns or {}, dataframe.columns)
  schema = types.StructType(
    [
      *dataframe.schema.fields,
      *(_make_field(types, *output) for output in outputs),
    ]
  )
  rows = dataframe.rdd.mapPartitions(
    functools.partial(
      predict_rows,
      export_dir=export_dir,
      columns=chosen,
      batch_size=batch_size,
    )
  )
  return session.createDataFrame(rows, schema, verifySchema=False)


def choose_columns(
  inputs: Sequence[str],
  outputs: Sequence[Output],
  columns: Mapping[str, str | list[str]],
  known: Sequence[str],
) -> dict[str, str | list[str]]:
  """Returns {name of an input: column, or list of columns}.

  Args:
    columns: see `predict`.
    known: the DataFrame's columns.

  Raises:
    cli.UsageError: these do not fit together.
  """
  if unknown := {*columns} - {*inputs}:
    raise cli.UsageError(
      f'columns names {sorted(unknown)[0]!r}, but the inputs of the model are '
      f'{", ".join(inputs)}'
    )
  default = {'images': 'image'} if 'images' not in known else {}
  chosen = {n: columns.get(n, default.get(n, n)) for n in inputs}
  for name, column in chosen.items():
    for each in column if isinstance(column, list) else [column]:
      if each not in known:
        raise cli.UsageError(
          f'the DataFrame has no column {each!r}, only {", ".join(known)}: '
          f"name that of the model's {name} with columns={{{name!r}: ...}}"
        )
  for name, dtype, _ in outputs:
    if name in known:
      raise cli.UsageError(
        f'the DataFrame has a column {name!r} already: rename it'
      )
    if dtype.startswith('complex'):
      raise cli.UsageError(
        f'the model gives {name!r} as {dtype}, which Spark has not: serve its '
        'parts'
      )
  return chosen


def _make_field(
  types: ModuleType, name: str, dtype: str, rank: int
) -> pyspark.sql.types.StructField:
  kind = {
    'bool': types.BooleanType,
    'string': types.StringType,
    'float16': types.FloatType,
    'bfloat16': types.FloatType,
    'float32': types.FloatType,
    'float64': types.DoubleType,
    # Spark makes null of what a long cannot hold.
    'uint64': lambda: types.DecimalType(20, 0),
  }.get(dtype, types.LongType)()
  return types.StructField(name, types.ArrayType(kind) if rank > 1 else kind)


def _describe_model(
  sc: pyspark.SparkContext, export_dir: str
) -> tuple[list[str], list[Output]]:
  """Has one executor load the model; raises cli.RunError if it cannot.

  Returns:
    The names of its inputs, and its outputs.
  """
  try:
    (found,) = sc.parallelize([export_dir], 1).map(describe).collect()
  except Exception as error:
    raise cli.RunError(
      f'Spark cannot load the model: {spark_job.explain(error)}'
    ) from error
  if isinstance(found, str):
    raise cli.RunError(f'on an executor: {found}')
  return found


def describe(export_dir: str) -> str | tuple[list[str], list[Output]]:
  """Returns a model's inputs and outputs, or why it cannot be loaded."""
  try:
    model = _load(export_dir)
  except cli.RunError as error:
    return str(error)
  return [*model.inputs], [
    (name, spec.dtype.name, spec.shape.rank or 2)
    for name, spec in model.outputs.items()
  ]


def predict_rows(
  rows: Iterator[pyspark.sql.Row],
  export_dir: str,
  columns: Mapping[str, str | list[str]],
  batch_size: int,
) -> Iterator[tuple[Any, ...]]:
  """Yields a tuple for each pyspark.sql.Row, with the model's outputs added."""
  import numpy as np

  while batch := list(itertools.islice(rows, batch_size)):
    model = _load(export_dir)
    arrays = {
      name: np.stack([_read(row, columns[name], name, spec) for row in batch])
      for name, spec in model.inputs.items()
    }
    found = model.run(arrays)
    outputs = [_as_values(found[name]) for name in model.outputs]
    for row, *each in zip(batch, *outputs, strict=True):
      yield (*row, *each)


def _read(
  row: pyspark.sql.Row, column: list[str] | str, name: str, spec: Any
) -> np.ndarray:
  """Returns the array of one input for one row.

  Raises:
    ValueError: the row's value does not fit the input.
  """
  import numpy as np

  value: Any = (
    [row[each] for each in column] if isinstance(column, list) else row[column]
  )
  if spec.dtype.name == 'string':
    return np.array(value, object)
  if isinstance(value, bytes | bytearray):
    array = np.frombuffer(value, np.uint8)
  else:
    # A pyspark.ml vector has toArray.
    array = np.asarray(value.toArray() if hasattr(value, 'toArray') else value)
  wanted = spec.dtype.as_numpy_dtype
  with np.errstate(all='ignore'):
    converted = array.astype(wanted) if array.dtype.kind in 'biuf' else None
  is_exact = converted is not None and (
    spec.dtype.is_floating or np.array_equal(converted, array)
  )
  if converted is None or not is_exact:
    raise ValueError(f'{name} is {value!r:.80}: expected {spec.dtype.name}')
  shape = spec.shape[1:].as_list()
  if None in shape:
    return converted
  if converted.size != np.prod(shape, dtype=int):
    raise ValueError(f'{name} has {converted.size} values, expected {shape}')
  return converted.reshape(shape)


def _as_values(array: np.ndarray) -> list[Any]:
  """Returns the values of an output in Spark's types, one for each row."""
  if array.dtype.name == 'bfloat16':  # Not one of NumPy's own.
    array = array.astype('f')
  values: list[Any] = array.reshape(len(array), -1).tolist()
  if array.dtype.name == 'uint64':
    values = [[decimal.Decimal(number) for number in v] for v in values]
  if array.dtype.kind == 'O':
    values = [[text.decode('utf-8', 'replace') for text in v] for v in values]
  return [v[0] for v in values] if array.ndim == 1 else values


@functools.lru_cache(maxsize=1)
def _load(export_dir: str) -> saved_model.Model:
  # Imported first: it makes TensorFlow quiet.
  import distmnist.runtime  # noqa: F401

  # isort: split
  from distmnist.serving import saved_model

  return saved_model.Model(os.path.expanduser(export_dir))
