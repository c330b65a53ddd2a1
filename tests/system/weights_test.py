"""Weighted examples: what Keras computes of them, and a CSV file of them."""

import json

import keras
import numpy as np
import pytest

import distmnist
from distmnist import runtime
from tests.support import programs

NUM = 64


def make_data(num, seed):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=[num, 4]).astype('float32')
  y = (x[:, 0] * x[:, 1] > 0.3).astype('float32')
  return x, y, rng.uniform(0, 5, num)


def make_model():
  keras.utils.set_random_seed(3)
  model = keras.Sequential(
    [
      keras.Input([4]),
      keras.layers.Dense(8, 'relu'),
      keras.layers.Dense(1, 'sigmoid'),
    ]
  )
  metrics = {'metrics': ['AUC'], 'weighted_metrics': ['AUC', 'accuracy']}
  model.compile(keras.optimizers.SGD(0.3), 'binary_crossentropy', **metrics)
  return model


# All examples are in each update, in whatever order. The mean over workers, or
# over slices, divides by their number and not by their weights.
@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'has_classes, cluster',
  [
    (False, {'num_workers': 2, 'batch_size': NUM // 2}),
    (
      True,
      {'num_workers': 1, 'batch_size': NUM // 4, 'gradient_accumulation': 4},
    ),
  ],
)
def test_weights_are_those_of_keras(has_classes, cluster):
  x, y, w = make_data(NUM, 0)
  *test, test_w = make_data(300, 1)
  weights = {'class_weight': {1: 4.0}} if has_classes else {'sample_weight': w}
  with runtime.eagerly():
    theirs = make_model()
    theirs.fit(x, y, batch_size=NUM, epochs=8, verbose=0, **weights)
    expected = theirs.evaluate(
      *test, sample_weight=test_w, return_dict=True, verbose=0
    )
    ours, report = distmnist.fit(
      *(make_model(), x, y),
      test_data=(*test, test_w),
      epochs=8,
      strategy='sync_sgd',
      **weights,
      **cluster,
    )
    for mine, other in zip(
      ours.get_weights(), theirs.get_weights(), strict=True
    ):
      np.testing.assert_allclose(mine, other, rtol=0, atol=1e-6)
  assert report.test_metrics == pytest.approx(expected, rel=1e-6)


CHURN = """
import pathlib

import keras
import tensorflow.compat.v1 as tf
from distmnist.readers import csv

layers = keras.layers
here = pathlib.Path(__file__).parent
best = '+weighted_auc'
loss = 'binary_crossentropy'
metrics = [keras.metrics.AUC(name='auc')]
weighted_metrics = [keras.metrics.AUC(name='auc')]


def load(split):
  x = {'age': 'age', 'plan': 'plan'}
  path = str(here / f'churn_{split}.csv')
  return csv.Reader(path, x, 'churn', missing=-1, w='weight')


def preprocess(x, y, is_training):
  plan = tf.strings.to_hash_bucket_fast(x['plan'], 8)
  return {'age': tf.cast(x['age'], tf.float32) / 100, 'plan': plan}, y


def make_model():
  age = keras.Input([], name='age')
  plan = keras.Input([], dtype='int64', name='plan')
  both = [layers.Reshape([1])(age), layers.Embedding(8, 4)(plan)]
  hidden = layers.Dense(8, 'relu')(layers.Concatenate()(both))
  out = layers.Dense(1, 'sigmoid')(hidden)
  return keras.Model({'age': age, 'plan': plan}, out)
"""


def write_churn(path, num, seed):
  """Writes lines in which a missing age and a plan tell who leaves."""
  rng = np.random.default_rng(seed)
  lines = ['plan,age,churn,weight']
  for _ in range(num):
    plan, age = rng.choice(['free', 'pro', 'team']), rng.integers(18, 90)
    is_missing = rng.random() < 0.2
    churn = int(rng.random() < (0.9 if plan == 'free' or is_missing else 0.1))
    age = '' if is_missing else age
    lines.append(f'{plan},{age},{churn},{rng.choice([0.5, 1, 4])}')
  path.write_text('\n'.join(lines))


@pytest.mark.daily
@pytest.mark.slow
def test_a_csv_file_with_weights_gaps_and_text_is_learnt(tmp_path):
  pytest.importorskip('pyarrow', reason='pyarrow is not installed')
  for seed, split in enumerate(['train', 'validation', 'test']):
    write_churn(tmp_path / f'churn_{split}.csv', 600, seed)
  (tmp_path / 'churn.py').write_text(CHURN)
  run, model = tmp_path / 'run', tmp_path / 'model'
  test = tmp_path / 'churn_test.csv'
  programs.run_forked(
    *('launch', '--num_workers=2', '--', f'--problem={tmp_path}/churn.py'),
    *('--optimizer=adam', '--learning_rate=0.02', f'--logdir={run}'),
    *('--epochs=12', '--batch_size=20', '--early_stopping_patience=6'),
    f'--data_cache={tmp_path}',
  )
  report = json.loads((run / 'report.json').read_text())
  found = report['test_metrics']
  assert found['weighted_auc'] > 0.8 and found['auc'] != found['weighted_auc']
  programs.run_forked(
    'export', f'--logdir={run}', '--checkpoint=best', f'--export_dir={model}'
  )
  programs.run_forked(
    *('predict', f'--export_dir={model}', f'--inputs={test}'),
    *('--missing=-1', f'--output={tmp_path}/scores.npz'),
  )
  [scores] = np.load(tmp_path / 'scores.npz').values()
  lines = test.read_text().splitlines()[1:]
  labels, weights = np.array([x.split(',')[2:] for x in lines], float).T
  with runtime.eagerly():
    auc = keras.metrics.AUC()
    auc.update_state(labels, scores[:, 0], weights)
    expected = float(auc.result())
  assert found['weighted_auc'] == pytest.approx(expected, rel=1e-5)
