"""fit: a Keras model of the caller's, trained by a cluster."""

import keras
import pytest

from distmnist import runtime
from distmnist.api import fit


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


def test_a_store_is_refused_in_one_line():
  with pytest.raises(ValueError, match='is in a store, but fit passes') as why:
    fit.fit(None, None, None, logdir='s3://bucket/run')
  assert '\n' not in str(why.value)
