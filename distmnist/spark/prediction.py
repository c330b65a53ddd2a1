"""Predictions for a DataFrame of Spark, from a model that export has written.

  from distmnist import spark

  spark.predict(images, '/shared/model').select('class').show()

Each Python process of an executor loads the model once, and keeps it. One does
so at once, so that a wrong path is a line and not a job that fails.
"""

import functools
import itertools
import os

from distmnist.common import cli
from distmnist.spark import barrier_job, executors


def predict(dataframe, export_dir, image_column='image', batch_size=256):
  """Returns the DataFrame with two more columns; like others it is lazy.

  `class` is a bigint, the most probable class; `probabilities` an array of
  float, one for each class.

  Args:
    dataframe: pyspark.sql.DataFrame.
    export_dir: str, the SavedModel, at the same path on each executor.
    image_column: str, the column with the images: bytes, or numbers from 0 to
      255, as many as the model's images have.
    batch_size: int, images in one run of the model.

  Raises:
    cli.UsageError: it cannot work with this DataFrame or this path.
    cli.RunError: an executor cannot load the model.
  """
  columns = dataframe.columns
  if image_column not in columns:
    raise cli.UsageError(
      f'the DataFrame has no column {image_column!r} but {", ".join(columns)}:'
      ' name that of the images by image_column'
    )
  taken = {'class', 'probabilities'} & {*columns}
  if taken:
    raise cli.UsageError(
      f'the DataFrame has a column {sorted(taken)[0]!r} already: rename it'
    )
  executors.check_path('export_dir', export_dir)
  from pyspark.sql import types

  schema = types.StructType(
    [
      *dataframe.schema.fields,
      types.StructField('class', types.LongType()),
      types.StructField('probabilities', types.ArrayType(types.FloatType())),
    ]
  )
  session = dataframe.sparkSession
  executors.ship_package(session.sparkContext)
  _check_model(session.sparkContext, export_dir)
  rows = dataframe.rdd.mapPartitions(
    functools.partial(
      predict_rows,
      export_dir=export_dir,
      image_column=image_column,
      batch_size=batch_size,
    )
  )
  return session.createDataFrame(rows, schema, verifySchema=False)


def _check_model(sc, export_dir):
  """Has one executor load the model; raises cli.RunError if it cannot."""
  try:
    (mistake,) = sc.parallelize([export_dir], 1).map(find_mistake).collect()
  except Exception as error:
    raise cli.RunError(
      f'Spark cannot load the model: {barrier_job.explain(error)}'
    ) from error
  if mistake:
    raise cli.RunError(f'on an executor: {mistake}')


def find_mistake(export_dir):
  """Returns why the model cannot be loaded here (str), or None."""
  try:
    _load(export_dir)
  except cli.RunError as error:
    return str(error)
  return None


def predict_rows(rows, export_dir, image_column, batch_size):
  """Yields each row (pyspark.sql.Row) with class and probabilities added."""
  import numpy as np

  from distmnist.spark import rdd_input

  while batch := list(itertools.islice(rows, batch_size)):
    model = _load(export_dir)
    images = b''.join(
      rdd_input.pack_image(row[image_column], model.image_shape)
      for row in batch
    )
    classes, probabilities = model.predict(
      np.frombuffer(images, np.uint8).reshape(-1, *model.image_shape)
    )
    for row, number, each in zip(batch, classes, probabilities, strict=True):
      yield (*row, int(number), each.tolist())


@functools.lru_cache(maxsize=1)
def _load(export_dir):
  # In this order: it is what makes TensorFlow quiet.
  import distmnist.runtime  # noqa: F401

  # isort: split
  from distmnist.serving import saved_model

  return saved_model.Model(os.path.expanduser(export_dir))
