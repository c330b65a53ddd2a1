"""Without Spark: a real one predicts in training_test.py."""

import collections
import itertools

import numpy as np
import pytest

from distmnist.common import cli
from distmnist.serving import saved_model
from distmnist.spark import prediction

DataFrame = collections.namedtuple('DataFrame', 'columns')


class Row(collections.namedtuple('Row', 'label image')):
  """A tuple with names for keys too, as a row of Spark is."""

  def __getitem__(self, key):
    return getattr(self, key)


class FakeModel:
  """The class of an image is its first value, as sure as its second says."""

  image_shape = 1, 2, 1

  def __init__(self):
    self.batches = []

  def predict(self, images):
    assert images.dtype == np.uint8
    self.batches.append(images.shape)
    first, second = images.reshape(-1, 2).T
    sure = (second / 256).astype(np.float32)
    return first.astype(np.int64), np.stack([sure, 1 - sure], axis=1)


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
    iter(rows), '/shared/model', 'image', batch_size
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
  # Spark takes no number of NumPy.
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
  with pytest.raises(ValueError, match='an image of 3 values, expected 2'):
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


@pytest.mark.parametrize(
  ('columns', 'export_dir', 'said'),
  [
    (
      ['png', 'label'],
      '/shared/model',
      "the DataFrame has no column 'image' but png, label: name that of the"
      ' images by image_column',
    ),
    (
      ['image', 'probabilities', 'class'],
      '/shared/model',
      "the DataFrame has a column 'class' already: rename it",
    ),
    (
      ['image', 'probabilities'],
      '/shared/model',
      "the DataFrame has a column 'probabilities' already: rename it",
    ),
    (
      ['image'],
      'model',
      '--export_dir=model is relative, and would be another place on each'
      ' executor: give an absolute path that all of them share',
    ),
  ],
)
def test_what_does_not_fit_is_refused_before_spark_is_asked(
  columns, export_dir, said
):
  with pytest.raises(cli.UsageError) as caught:
    prediction.predict(DataFrame(columns), export_dir)
  assert str(caught.value) == said


def test_another_column_may_have_the_images():
  with pytest.raises(cli.UsageError, match='--export_dir=model is relative'):
    prediction.predict(DataFrame(['png']), 'model', image_column='png')


def test_a_model_that_an_executor_cannot_load_is_one_line(tmp_path):
  path = str(tmp_path / 'none')
  mistake = prediction.find_mistake(path)
  assert mistake.startswith(f'--export_dir={path} was not found')
  assert '\n' not in mistake
  with pytest.raises(cli.RunError) as caught:
    prediction._check_model(FakeSparkContext(), path)
  assert str(caught.value) == f'on an executor: {mistake}'


def test_a_model_that_is_there_is_no_mistake(model):
  assert prediction.find_mistake('/shared/model') is None
  prediction._check_model(FakeSparkContext(), '/shared/model')


def test_spark_that_fails_at_it_is_one_line():
  error = OSError('the executors are gone\n\tat Foo.java')
  with pytest.raises(cli.RunError) as caught:
    prediction._check_model(FakeSparkContext(error), '/shared/model')
  assert str(caught.value) == (
    'Spark cannot load the model: the executors are gone'
  )
