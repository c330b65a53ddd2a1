"""Models of Keras: the weights that model.fit gives, under every rule."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

import distmnist
from distmnist import runtime
from tests.support import programs
from tests.support.paths import REPO

NETS = (
  *('mlp', 'cnn', 'residual', 'text', 'masked_text', 'transformer'),
  'towers',
)
# One of each kind; tests/system/examples_test.py has the others.
RULES = 'async_sgd', 'drop_stale', 'sync_sgd', 'easgd', 'ring_allreduce'


def train(logdir, net, rule, *words, num_workers=2):
  num_ps = 0 if rule == 'ring_allreduce' else 2
  programs.run_forked(
    'launch',
    *(f'--num_ps={num_ps}', f'--num_workers={num_workers}', '--'),
    *('--problem=tests/support/keras_nets.py', f'--net={net}'),
    *(f'--strategy={rule}', '--batch_size=20', f'--logdir={logdir}'),
    *words,
  )


# One worker trains as model.fit does, and so do two in lock-step, with a net
# without dropout and batch norm, where each example counts by itself.
COMPARED = {
  'text': [('by_fit', 'text', 2)],
  'others': [
    *(('by_fit', net, 1) for net in ('cnn', 'masked_text')),
    ('by_fit', 'towers', 2),
    *(('by_worker', net, 2) for net in NETS),
  ],
}


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize('compared', COMPARED.values(), ids=COMPARED)
def test_workers_in_lock_step_compute_what_fit_does(tmp_path, compared):
  nets = sorted({words[1:] for words in compared})
  for net, num_workers in nets:
    # An embedding that is a table; that of masked_text is a variable.
    tables = 'all' if net == 'text' else 'auto'
    train(
      *(tmp_path / f'{net}_{num_workers}', net, 'sync_sgd'),
      *('--learning_rate=0.1', '--train_steps=10'),
      f'--sparse_tables={tables}',
      num_workers=num_workers,
    )
  if ('text', 2) in nets:
    report = json.loads((tmp_path / 'text_2' / 'report.json').read_text())
    [name] = report['rows']['bytes_by_table']
    assert name == 'sequential/embedding/embeddings'
  # One process for all, which imports TensorFlow once.
  output, _ = programs.run(
    *('tests.support.keras_reference', str(tmp_path)),
    *(f'{how},{net},{num_workers}' for how, net, num_workers in compared),
  )
  for line in output.splitlines()[-len(compared) :]:
    assert json.loads(line)['largest'] < 1e-6, output


# A net with an embedding, a mask, dropout within a loop, and batch norm.
@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('rule', RULES)
def test_each_rule_trains_it_and_it_can_be_evaluated(tmp_path, rule):
  train(
    *(tmp_path, 'masked_text', rule, '--epochs=50', '--optimizer=adam'),
    '--learning_rate=0.01',
  )
  output, _ = programs.run_forked(
    'evaluate', f'--logdir={tmp_path}', '--split=train'
  )
  assert float(output.split('accuracy')[1].split()[0].rstrip(',')) > 0.5
  report = json.loads((tmp_path / 'report.json').read_text())
  assert report['test_metrics'].keys() == {'accuracy', 'loss'}


ONE_WORKER = {'strategy': 'sync_sgd', 'num_workers': 1}


# Rows that are in no batch decay, too.
@pytest.mark.daily
@pytest.mark.slow
def test_fit_moves_all_rows_of_a_large_embedding_as_keras_does():
  x = np.arange(64)[:, np.newaxis]
  y = np.sin(x).astype(np.float32)
  found = []
  with runtime.eagerly():
    for fit, cluster in (keras.Model.fit, {}), (distmnist.fit, ONE_WORKER):
      keras.utils.set_random_seed(1)
      model = keras.Sequential(
        [
          keras.Input([1], dtype='int64'),
          keras.layers.Embedding(100_000, 10),
          keras.layers.Flatten(),
          keras.layers.Dense(1),
        ]
      )
      optimizer = keras.optimizers.AdamW(0.01, weight_decay=1.0)
      model.compile(optimizer, 'mse')
      fit(model, x, y, batch_size=64, epochs=3, **cluster)
      found.append(model.get_weights())
  for ours, theirs in zip(*found, strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)


@pytest.mark.daily
@pytest.mark.slow
def test_the_page_s_example_runs(tmp_path):
  page = (REPO / 'docs' / 'keras.md').read_text()
  done = subprocess.run(
    [sys.executable, '-c', page.split('```python\n')[1].split('```')[0]],
    cwd=tmp_path,
    env=os.environ | {'PYTHONPATH': str(REPO)},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  auc, history = re.findall(r'^([\d.]+) \[(.*)\]$', done.stdout, re.M)[-1]
  assert float(auc) == pytest.approx(max(map(float, history.split(','))))
  assert float(auc) > 0.9
  assert [path.name for path in tmp_path.iterdir()] == ['trained.keras']


class Killer:
  """Kills a task of a fit whenever a step is said, one after the other."""

  def __init__(self, *tasks):
    self.tasks, self.lines = [*tasks], []
    self._pids = {}

  def take(self, line):
    """For on_line."""
    self.lines.append(line)
    if 'pid' in line:
      found = re.findall(r'((?:ps|worker) \d)(?: is pid)? (\d+)', line)
      self._pids |= {name: int(pid) for name, pid in found}
    if line.startswith('step ') and self.tasks:
      pid = self._pids[self.tasks.pop(0)]
      with contextlib.suppress(FileNotFoundError):
        title = pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
        if title.startswith(b'distmnist'):
          os.kill(pid, signal.SIGKILL)


# All examples are in each worker's batch, whichever it takes over.
@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_weights_are_those_of_keras_though_any_task_is_killed():
  rng = np.random.default_rng(0)
  x = rng.normal(size=[32, 5]).astype('float32')
  y, steps = np.abs(x).argmax(1), 200

  def make_model():
    keras.utils.set_random_seed(1)
    hidden = keras.layers.Dense(16, 'relu')
    model = keras.Sequential([keras.Input([5]), hidden, keras.layers.Dense(5)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = keras.optimizers.schedules.CosineDecay(0.1, steps)
    model.compile(keras.optimizers.SGD(rate), loss)
    return model

  killer = Killer('worker 1', 'ps 1', 'worker 0')
  with runtime.eagerly():
    theirs, ours = make_model(), make_model()
    repeated = np.tile(x, [steps, 1]), np.tile(y, steps)
    theirs.fit(*repeated, batch_size=32, shuffle=False, verbose=0)
    distmnist.fit(
      *(ours, x, y),
      strategy='sync_sgd',
      num_ps=2,
      max_restarts=9,
      train_steps=steps,
      log_secs=0.1,
      on_line=killer.take,
    )
    found = [model.get_weights() for model in (ours, theirs)]
  assert not killer.tasks, killer.lines
  for a, b in zip(*found, strict=True):
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
