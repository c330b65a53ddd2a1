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

from distmnist.common import cli
from distmnist.spark import executors, spark_job


def predict(dataframe, export_dir: str, columns=None, batch_size: int = 256):
  """Returns the DataFrame with a column for each output of a model.

  It is lazy, like any DataFrame. An output [n] becomes a column of its type, an
  output of several numbers per row a column of flat arrays. Floats of 16 bits
  become float, uint64 becomes decimal(20,0).

  Args:
    dataframe: pyspark.sql.DataFrame.
    export_dir: str, the SavedModel, at the same path on each executor.
    columns: {name of an input: column, or a list of columns of numbers}. By
      default each input reads the column of its own name; a model of images
      reads the column `image`.
    batch_size: int, rows per run of the model.

  Raises:
    cli.UsageError: it cannot work with this DataFrame or this path.
    cli.RunError: an executor cannot load the model.
  """
  executors.check_path('export_dir', export_dir)
  from pyspark.sql import types

  session = dataframe.sparkSession
  executors.ship_package(session.sparkContext)
  inputs, outputs = _describe_model(session.sparkContext, export_dir)
  columns = choose_columns(inputs, outputs, columns or {}, dataframe.columns)
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
      columns=columns,
      batch_size=batch_size,
    )
  )
  return session.createDataFrame(rows, schema, verifySchema=False)


def choose_columns(
  inputs: list[str],
  outputs: list[tuple[int | str, ...]],
  columns: dict[str, list[str] | str],
  known: list[str],
) -> dict[str, list[str] | str] | None:
  """Returns {name of an input: column, or list of columns}.

  Args:
    inputs: list of str.
    outputs: list of (name, dtype, rank).
    columns: dict, see `predict`.
    known: list of str, the DataFrame's columns.

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


def _make_field(types, name, dtype, rank):
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
  sc, export_dir: str
) -> tuple[list[str], list[tuple]] | None:
  """Has one executor load the model; raises cli.RunError if it cannot.

  Returns:
    (inputs, outputs): list of str, and list of (name, dtype, rank).
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


def describe(export_dir: str) -> str | tuple[list[str], list[tuple]]:
  """Returns a model's inputs and outputs, or why it cannot be loaded (str)."""
  try:
    model = _load(export_dir)
  except cli.RunError as error:
    return str(error)
  return [*model.inputs], [
    (name, spec.dtype.name, spec.shape.rank or 2)
    for name, spec in model.outputs.items()
  ]


def predict_rows(
  rows, export_dir: str, columns: dict[str, str], batch_size: int
):
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


def _read(row, column: list[str] | str, name: str, spec):
  """Returns the array of one input for one row.

  Raises:
    ValueError: the row's value does not fit the input.
  """
  import numpy as np

  if isinstance(column, list):
    value = [row[each] for each in column]
  else:
    value = row[column]
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
  is_exact = spec.dtype.is_floating or np.array_equal(converted, array)
  if converted is None or not is_exact:
    raise ValueError(f'{name} is {value!r:.80}: expected {spec.dtype.name}')
  shape = spec.shape[1:].as_list()
  if None in shape:
    return converted
  if converted.size != np.prod(shape, dtype=int):
    raise ValueError(f'{name} has {converted.size} values, expected {shape}')
  return converted.reshape(shape)


def _as_values(array) -> list[int | list[float]]:
  """Returns the values of an output in Spark's types, one for each row."""
  if array.dtype.name == 'bfloat16':  # Not one of NumPy's own.
    array = array.astype('f')
  values = array.reshape(len(array), -1).tolist()
  if array.dtype.name == 'uint64':
    values = [[decimal.Decimal(number) for number in v] for v in values]
  if array.dtype.kind == 'O':
    values = [[text.decode('utf-8', 'replace') for text in v] for v in values]
  return [v[0] for v in values] if array.ndim == 1 else values


@functools.lru_cache(maxsize=1)
def _load(export_dir: str):
  # Imported first: it makes TensorFlow quiet.
  import distmnist.runtime  # noqa: F401

  # isort: split
  from distmnist.serving import saved_model

  return saved_model.Model(os.path.expanduser(export_dir))
