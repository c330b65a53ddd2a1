"""Without Spark: a real one predicts in training_test.py."""

import collections
import decimal
import itertools

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.serving import saved_model
from distmnist.spark import prediction


class Row(collections.namedtuple('Row', 'label image')):
  """A tuple with names for keys too, as a row of Spark is."""

  def __getitem__(self, key):
    return getattr(self, key)


def make_spec(dtype, *shape):
  return tf.TensorSpec([None, *shape], dtype)


class FakeModel:
  """The class of an image is its first value, as sure as its second says."""

  inputs = {'images': make_spec(tf.uint8, 1, 2, 1)}
  outputs = {
    'classes': make_spec(tf.int64),
    'probabilities': make_spec(tf.float32, 2),
  }

  def __init__(self):
    self.batches = []

  def run(self, arrays):
    images = arrays['images']
    assert images.dtype == np.uint8
    self.batches.append(images.shape)
    first, second = images.reshape(-1, 2).T
    sure = (second / 256).astype(np.float32)
    return {
      'classes': first.astype(np.int64),
      'probabilities': np.stack([sure, 1 - sure], axis=1),
    }


class FakeSparkContext:
  """Has this process do what an executor would."""

  def __init__(self, error=None):
    self._error = error

  def parallelize(self, items, num_parts):
    assert num_parts == 1
    self._items = items
    return self

  def map(self, function):
    self._items = map(function, self._items)
    return self

  def collect(self):
    if self._error:
      raise self._error
    return list(self._items)


@pytest.fixture
def model(monkeypatch):
  fake = FakeModel()
  monkeypatch.setattr(prediction, '_load', {'/shared/model': fake}.__getitem__)
  return fake


def predict_rows(rows, batch_size):
  return prediction.predict_rows(
    iter(rows), '/shared/model', {'images': 'image'}, batch_size
  )


def test_a_row_gets_its_class_and_its_probabilities(model):
  rows = [
    Row('a', b'\x07\x40'),
    Row('b', bytearray([9, 192])),
    Row('c', [3, 0]),
  ]
  found = list(predict_rows(rows, 256))
  assert found == [
    ('a', b'\x07\x40', 7, [0.25, 0.75]),
    ('b', bytearray([9, 192]), 9, [0.75, 0.25]),
    ('c', [3, 0], 3, [0.0, 1.0]),
  ]
  # Spark takes no NumPy numbers.
  assert {type(row[2]) for row in found} == {int}
  assert {type(value) for row in found for value in row[3]} == {float}


def test_the_model_runs_on_batches_and_the_last_may_be_smaller(model):
  rows = [Row(i, bytes([i, 0])) for i in range(7)]
  assert [row[2] for row in predict_rows(rows, 3)] == [0, 1, 2, 3, 4, 5, 6]
  assert model.batches == [(3, 1, 2, 1), (3, 1, 2, 1), (1, 1, 2, 1)]


def test_rows_are_read_as_they_are_needed(model):
  endless = (Row(i, bytes([i % 256, 0])) for i in itertools.count())
  assert next(predict_rows(endless, 4)) == (0, b'\0\0', 0, [0.0, 1.0])
  assert next(endless).label == 4


def test_a_partition_without_rows_needs_no_model(monkeypatch):
  monkeypatch.setattr(prediction, '_load', None)
  assert list(predict_rows([], 4)) == []


def test_an_image_of_another_size_is_refused(model):
  rows = [Row('a', b'123')]
  with pytest.raises(
    ValueError, match=r'images has 3 values, expected \[1, 2, 1\]'
  ):
    list(predict_rows(rows, 4))


def test_a_process_loads_the_model_once(monkeypatch):
  loaded = []
  monkeypatch.setattr(saved_model, 'Model', lambda path: loaded.append(path))
  monkeypatch.setenv('HOME', '/home/me')
  prediction._load.cache_clear()
  try:
    for path in ('~/model', '~/model', '/other', '/other'):
      prediction._load(path)
  finally:
    prediction._load.cache_clear()
  assert loaded == ['/home/me/model', '/other']


IMAGES = ['images'], [('classes', 'int64', 1), ('probabilities', 'float32', 2)]
MIXED = ['kind', 'x'], [('score', 'float32', 1)]


@pytest.mark.parametrize(
  ('model', 'columns', 'known', 'named'),
  [
    (IMAGES, {}, ['png', 'label'], "'image', only png, label"),
    (IMAGES, {}, ['image', 'probabilities'], "'probabilities'"),
    (MIXED, {'x': ['a', 'b']}, ['kind', 'a'], "'b', only kind, a"),
    ((['x'], [('z', 'complex64', 1)]), {}, ['x'], "'z' as complex64"),
    (MIXED, {'y': 'a'}, ['a'], "'y'"),
  ],
)
def test_what_does_not_fit_is_refused(model, columns, known, named):
  with pytest.raises(cli.UsageError, match=named):
    prediction.choose_columns(*model, columns, known)


def test_columns_are_called_as_the_inputs_are():
  choose = prediction.choose_columns
  assert choose(*IMAGES, {}, ['image']) == {'images': 'image'}
  assert choose(*IMAGES, {}, ['images']) == {'images': 'images'}
  assert choose(*IMAGES, {'images': 'png'}, ['png']) == {'images': 'png'}
  assert choose(*MIXED, {'x': ['a', 'b']}, ['kind', 'a', 'b']) == {
    **{'kind': 'kind', 'x': ['a', 'b']}
  }


def test_a_relative_path_is_refused_before_spark_is_asked():
  with pytest.raises(cli.UsageError, match='--export_dir=model is relative'):
    prediction.predict(None, 'model')


def test_inputs_of_other_kinds_are_read():
  row = {'a': 1, 'b': 2.5, 'text': 'x', 'ids': [1, 2, 3]}
  read = prediction._read
  assert read(row, ['a', 'b'], 'x', make_spec(tf.float32, 2)).tolist() == [
    1,
    2.5,
  ]
  assert read(row, 'text', 'x', make_spec(tf.string)) == np.array('x', object)
  assert read(row, 'ids', 'x', make_spec(tf.int64, None)).tolist() == [1, 2, 3]
  with pytest.raises(ValueError, match='x is 2.5: expected int64'):
    read(row, 'b', 'x', make_spec(tf.int64))


def test_a_model_that_an_executor_cannot_load_is_one_line(tmp_path):
  path = str(tmp_path / 'none')
  mistake = prediction.describe(path)
  assert mistake.startswith(f'--export_dir={path} was not found')
  assert '\n' not in mistake
  with pytest.raises(cli.RunError) as caught:
    prediction._describe_model(FakeSparkContext(), path)
  assert str(caught.value) == f'on an executor: {mistake}'


def test_a_model_that_is_there_says_what_it_takes(model):
  found = prediction._describe_model(FakeSparkContext(), '/shared/model')
  assert found == IMAGES


def test_spark_that_fails_at_it_is_one_line():
  error = OSError('the executors are gone\n\tat Foo.java')
  with pytest.raises(cli.RunError, match='the executors are gone$'):
    prediction._describe_model(FakeSparkContext(error), '/shared/model')


@pytest.mark.parametrize(
  'dtype, kind, value',
  [
    (tf.float16, 'float', 0.5),
    (tf.bfloat16, 'float', 0.5),
    (tf.float64, 'double', 0.5),
    (tf.uint8, 'bigint', 7),
    (tf.uint64, 'decimal(20,0)', decimal.Decimal(2**64 - 1)),
    (tf.bool, 'boolean', True),
  ],
)
def test_an_output_keeps_its_value_in_a_type_of_spark(dtype, kind, value):
  types = pytest.importorskip('pyspark.sql.types')
  field = prediction._make_field(types, 'y', dtype.name, 1)
  assert field.dataType.simpleString() == kind
  found = prediction._as_values(
    np.array([int(value) or value], dtype.as_numpy_dtype)
  )
  assert (found, type(found[0])) == ([value], type(value))
