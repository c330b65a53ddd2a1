"""fit: a Keras model of the caller's, trained by a cluster."""

import os
import subprocess
import sys

import keras
import pytest

from distmnist import runtime
from distmnist.api import fit
from tests.support.paths import REPO

_SCRIPT = """
import keras
import numpy as np
import distmnist

x = np.random.default_rng(0).normal(size=[2000, 4]).astype('float32')
y = x[:, 0] * x[:, 1]
layers = keras.layers
model = keras.Sequential([layers.Dense(32, 'relu'), layers.Dense(1)])
model.compile(keras.optimizers.Adam(0.01), 'mse', metrics=['mae'])
model, report = distmnist.fit(
  model, x, y, epochs=10, strategy='sync_sgd', num_ps=1, num_workers=2)
loss, mae = model.evaluate(x, y, verbose=0)
print('found', loss, mae, report.test_metrics['loss'], report.logdir is None)
"""


@pytest.mark.slow
def test_a_script_of_its_own_trains_its_model(tmp_path):
  done = subprocess.run(
    [sys.executable, '-c', _SCRIPT],
    cwd=tmp_path,
    capture_output=True,
    text=True,
    timeout=300,
    env={**os.environ, 'PYTHONPATH': str(REPO)},
  )
  assert done.returncode == 0, done.stdout + done.stderr
  loss, mae, reported = map(float, done.stdout.split('found')[1].split()[:3])
  assert 'Skipping variable loading' not in done.stderr
  assert loss < 0.1 and mae < 0.3
  assert loss == pytest.approx(reported, rel=1e-4)


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
