"""fitted: what a call of fit hands over, which split is which, what resumes."""

import os

import keras
import numpy as np
import pytest

from distmnist import runtime
from distmnist.data import array_folder
from distmnist.problems import fitted

A, B = np.arange(6).reshape(3, 2), np.array(['x', 'yy', ''])


@pytest.fixture
def folder(tmp_path, set_flags):
  set_flags(f'--fitted_dir={tmp_path}')
  return str(tmp_path)


def test_the_test_split_is_that_of_the_validation_if_there_is_one(folder):
  array_folder.write(folder, {'train': (A, B)})
  assert fitted.load('validation') is None
  assert fitted.load('test')[1].tolist() == B.tolist()
  array_folder.write(folder, {'train': (A, B), 'validation': (A[:1], B[:1])})
  assert len(fitted.load('validation')[0]) == len(fitted.load('test')[0]) == 1


X = np.arange(10, dtype='f').reshape(5, 2)
SPLITS = {'train': ({'x': X}, X[:, :1])}


@pytest.fixture(autouse=True)
def eager():
  with runtime.eagerly():
    yield


def make(units=4, activation=None, loss='mse'):
  """Returns a new model; Keras gives its layers names of their own."""
  given = keras.Input([2], name='x')
  # Named like its setting.
  hidden = keras.layers.Dense(units, activation, name=activation)(given)
  both = keras.layers.Concatenate()([keras.layers.Dropout(0.5)(hidden), given])
  model = keras.Model(given, keras.layers.Dense(1)(both))
  model.compile('adam', loss, metrics=['mae'])
  return model


def test_the_same_call_goes_on_with_the_first_ones_model(tmp_path):
  folder = str(tmp_path / 'fitted')
  fitted.fill(folder, make(), SPLITS, is_resumed=False)
  kept = (tmp_path / 'fitted' / 'model.keras').read_bytes()
  more = SPLITS | {'validation': SPLITS['train']}
  fitted.fill(folder, make(), more, is_resumed=True)
  assert (tmp_path / 'fitted' / 'model.keras').read_bytes() == kept
  assert array_folder.load(folder, 'validation')[0]['x'].tolist() == X.tolist()
  assert os.listdir(tmp_path) == ['fitted']


@pytest.mark.parametrize(
  'settings, y, said',
  [
    ({'units': 5}, X[:, :1], 'another model'),
    ({'activation': 'relu'}, X[:, :1], 'another model'),
    ({'loss': 'mae'}, X[:, :1], 'another model'),
    ({}, X[:, 1:], r'other examples \(x or y\)'),
    ({}, X[:, 0], r'other examples \(x or y\)'),
  ],
)
def test_another_call_is_refused_and_changes_nothing(
  tmp_path, settings, y, said
):
  folder = str(tmp_path / 'fitted')
  fitted.fill(folder, make(), SPLITS, is_resumed=False)
  splits = {'train': ({'x': X}, y)}
  with pytest.raises(ValueError, match=f'has the training of {said}: expected'):
    fitted.fill(folder, make(**settings), splits, is_resumed=True)
  assert array_folder.load(folder, 'train')[1].tolist() == X[:, :1].tolist()
  # Nothing was trained yet: the first call may have been a mistake.
  fitted.fill(folder, make(**settings), splits, is_resumed=False)
  assert array_folder.load(folder, 'train')[1].tolist() == y.tolist()


def test_names_of_the_users_own_count(tmp_path):
  folder = str(tmp_path / 'fitted')
  fitted.fill(folder, make(activation='tanh'), SPLITS, is_resumed=False)
  fitted.fill(folder, make(activation='tanh'), SPLITS, is_resumed=True)
  with pytest.raises(ValueError, match='has the training of another model'):
    fitted.fill(folder, make(activation='relu'), SPLITS, is_resumed=True)


def test_what_cannot_be_written_leaves_nothing(tmp_path):
  splits = {'train': ({'x': X}, np.array([None] * 5))}
  with pytest.raises(ValueError, match='an array has NoneType objects'):
    fitted.fill(str(tmp_path / 'fitted'), make(), splits, False)
  assert os.listdir(tmp_path) == []
