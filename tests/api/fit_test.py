"""fit: a Keras model of the caller's, trained by a cluster."""

import os
import tempfile

import keras
import pytest

from distmnist import runtime
from distmnist.api import fit, process


@pytest.mark.parametrize(
  'optimizer, settings',
  [
    (lambda: 'adam', {'optimizer': 'adam', 'learning_rate': 0.001}),
    (
      lambda: keras.optimizers.SGD(0.5, momentum=0.75, nesterov=True),
      {'optimizer': 'nesterov', 'learning_rate': 0.5, 'momentum': 0.75},
    ),
    (
      lambda: keras.optimizers.RMSprop(0.25, momentum=0.5),
      {'optimizer': 'rmsprop', 'learning_rate': 0.25, 'momentum': 0.5},
    ),
    (
      lambda: keras.optimizers.AdamW(0.25, weight_decay=0.5),
      {'optimizer': 'adamw', 'learning_rate': 0.25, 'weight_decay': 0.5},
    ),
    (
      lambda: keras.optimizers.Adam(0.25, global_clipnorm=2.0),
      {'optimizer': 'adam', 'learning_rate': 0.25, 'clip_norm': 2.0},
    ),
    (lambda: 'sgd', {'optimizer': 'sgd', 'learning_rate': 0.01}),
  ],
)
def test_the_optimizer_is_the_one_that_is_compiled(optimizer, settings):
  with runtime.eagerly():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer(), 'mse')
    found = fit._read_optimizer(model)
  assert found == pytest.approx(settings)


def test_one_that_is_not_known_and_none_are_refused():
  with runtime.eagerly():
    model = keras.Sequential([keras.layers.Dense(1)])
    with pytest.raises(ValueError, match='the model is not compiled'):
      fit.fit(model, None, None)
    model.compile('lion', 'mse')
    with pytest.raises(ValueError, match='compiled with Lion: expected one of'):
      fit.fit(model, None, None)


@pytest.mark.parametrize(
  'optimizer, message',
  [
    (
      lambda: keras.optimizers.Adam(beta_1=0.5),
      r'Adam\(beta_1=0.5\), which no',
    ),
    (lambda: keras.optimizers.SGD(clipnorm=1.0), r'SGD\(clipnorm=1.0\), which'),
    (lambda: keras.optimizers.Adam(weight_decay=0.1), 'weight_decay=0.1'),
    (
      lambda: keras.optimizers.Adam(
        keras.optimizers.schedules.CosineDecay(0.1, 9)
      ),
      'learning rate CosineDecay: expected a number, or learning_rate= and lr_',
    ),
  ],
)
def test_what_no_flag_says_is_refused(optimizer, message):
  with runtime.eagerly():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer(), 'mse')
    with pytest.raises(ValueError, match=message):
      fit.fit(model, None, None)


def test_validation_data_are_a_pair():
  with runtime.eagerly():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
    with pytest.raises(ValueError, match=r'expected \(x, y\), without weights'):
      fit.fit(model, None, None, validation_data=(None, None, None))


@pytest.mark.parametrize('resume, is_resumed', [(None, True), ('never', False)])
def test_a_run_that_begins_anew_has_the_model_of_its_call(
  tmp_path, monkeypatch, resume, is_resumed
):
  found = []

  def fill(*args):
    found.append(args[-1])
    raise InterruptedError

  monkeypatch.setattr('distmnist.problems.fitted.fill', fill)
  (tmp_path / 'model.ckpt-7.index').touch()
  with runtime.eagerly():
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile('sgd', 'mse')
    with pytest.raises(InterruptedError):
      fit.fit(model, None, None, logdir=str(tmp_path), resume=resume)
  assert found == [is_resumed]


def test_a_store_is_refused_in_one_line():
  with pytest.raises(ValueError, match='is in a store, but fit passes') as why:
    fit.fit(None, None, None, logdir='s3://bucket/run')
  assert '\n' not in str(why.value)


@pytest.mark.parametrize(
  'error, left', [(process.Error('x', 1, []), ['logs']), (KeyError, None)]
)
def test_of_a_temporary_folder_the_logs_that_an_error_names_stay(
  monkeypatch, tmp_path, error, left
):
  monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))

  def fail(model, folder, splits, settings):
    for name in 'logs', 'fitted', 'lives':
      os.makedirs(os.path.join(settings['logdir'], name))
    with open(os.path.join(settings['logdir'], 'train.flags'), 'w'):
      pass
    raise error

  monkeypatch.setattr(fit, '_train', fail)
  with pytest.raises(type(error) if left else error):
    fit.fit(None, 0, 0, optimizer='sgd')
  assert [os.listdir(f) for f in tmp_path.iterdir()] == ([left] if left else [])
