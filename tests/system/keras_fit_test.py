"""A Keras model under CosineDecay, with weighted examples: model.fit's weights.

`fit` trains each net of keras_nets.py here, its workers threads of this process
and its servers real; Keras itself makes the same steps with the same examples.
"""

import contextlib
import functools
import types

import keras
import numpy as np
import pytest
from absl import flags

import distmnist
from distmnist import runtime
from distmnist.api import training as api_training
from distmnist.problems import fitted  # noqa: F401  Its flag, for set_flags.
from distmnist.training.problems import keras_problem, problem, problem_module
from tests.support import keras_nets, keras_reference, training

pytestmark = pytest.mark.slow

NETS = (
  *('mlp', 'cnn', 'residual', 'text', 'masked_text', 'transformer'),
  'towers',
)
HAVE_BATCH_NORM = 'cnn', 'residual', 'masked_text'
NUM = 40
# It rises, falls, and then stays.
RATE = keras.optimizers.schedules.CosineDecay(
  *(0.02, 5), alpha=0.2, warmup_target=0.1, warmup_steps=3
)
# XLA, Keras's default, compiles for seconds.
by_fit = functools.partial(keras_reference.by_fit, jit_compile=False)
# Keras takes either, and so do we.
WEIGHTS = {
  'sample': {
    'sample_weight': np.random.default_rng(9).choice([0, 0.3, 1, 2.5], NUM)
  },
  'class': {'class_weight': {0: 0.5, 1: 3.0, 3: 0.0}},
}


@pytest.fixture
def fit(make_cluster, set_flags, monkeypatch):
  """Returns run(model, x, y, num_ps, num_workers, **settings), as fit does."""

  def run(model, x, y, num_ps, num_workers, **settings):
    cluster = make_cluster(num_ps, num_workers)

    @contextlib.contextmanager
    def start(words, *how):
      del how
      problem_module.import_named(words)
      set_flags(*words)
      _, values, _ = cluster.run_workers(
        lambda i: training.train(cluster.worker(i), cluster.servers[i])
      )[0]
      path = f'{flags.FLAGS.logdir}/model.keras'
      problem.from_flags().save_model(values, path)
      yield types.SimpleNamespace(result=lambda: None)

    monkeypatch.setattr(keras_problem, '_adapted', {})  # Another call's model.
    monkeypatch.setattr(api_training, 'start_words', start)
    return distmnist.fit(model, x, y, **settings)[0]

  return run


@pytest.fixture
def check(fit, set_flags):
  """Returns run(how, net, drops, weights, rule, num_ps, num_workers).

  how is by_fit or by_worker, drops whether dropout is on.
  """

  def run(how, net, drops, weights, rule, num_ps, num_workers):
    set_flags(f'--net={net}', f'--examples={NUM}', f'--drops={drops}')
    with runtime.eagerly():
      ours, theirs = keras_reference.make_model(), keras_reference.make_model()
      how(theirs, num_workers, RATE, training.SEED, **weights)
      ours.compile(keras.optimizers.SGD(RATE), keras_nets.loss)
      fit(
        *(ours, *keras_nets.load('train'), num_ps, num_workers),
        strategy=rule,
        batch_size=keras_reference.BATCH,
        train_steps=keras_reference.STEPS,
        **weights,
      )
      largest = keras_reference.compare(ours, theirs)
    print(f'{net}: {largest:.1e}')
    assert largest < 1e-6

  return run


@pytest.mark.daily(but=['transformer-class'])
@pytest.mark.parametrize('kind', WEIGHTS)
@pytest.mark.parametrize('net', NETS)
def test_one_worker_computes_what_fit_does(check, net, kind):
  weights = WEIGHTS[kind]
  check(by_fit, net, True, weights, 'sync_sgd', 2, 1)


# Batch norm is of each worker's own batch, and so is what dropout draws: with
# batch norm, Keras's steps are by the mean of two gradients; without, fit has
# both batches as one, and dropout is off. Without a ps each worker has averages
# of its own batches.
@pytest.mark.daily(but=['cnn-sync_sgd-2'])
@pytest.mark.parametrize(
  'net, rule, num_ps',
  [
    ('mlp', 'sync_sgd', 1),
    ('cnn', 'sync_sgd', 2),
    ('residual', 'sync_sgd', 2),
    ('text', 'sync_sgd', 2),
    ('masked_text', 'sync_sgd', 1),
    ('transformer', 'ring_allreduce', 0),
    ('towers', 'ring_allreduce', 0),
  ],
)
def test_two_workers_compute_what_one_process_does(check, net, rule, num_ps):
  if net in HAVE_BATCH_NORM:
    how = keras_reference.by_worker, net, True, WEIGHTS['sample']
  else:
    how = by_fit, net, False, WEIGHTS['class']
  check(*how, rule, num_ps, 2)
