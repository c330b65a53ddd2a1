"""The problems in examples/, as a user trains them: a whole cluster a rule."""

import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest
from absl.testing import flagsaver

from distmnist.common import registry
from distmnist.common.names import STRATEGIES
from tests.support import programs
from tests.support.paths import REPO
from tests.system import keras_test

RULES = registry.names(STRATEGIES)


def run(program, *words, code=0):
  """Runs a program in the checkout; returns what it prints."""
  return ''.join(programs.run_forked(program, *words, code=code))


def train(logdir, problem, rule, *words, num_ps=2, num_workers=2):
  """Trains by `launch`; returns (output, report)."""
  num_ps = 0 if rule == 'ring_allreduce' else num_ps
  output = run(
    'launch',
    *(f'--num_ps={num_ps}', f'--num_workers={num_workers}', '--'),
    *(f'--problem=examples/{problem}.py', f'--logdir={logdir}'),
    *('--optimizer=adam', '--learning_rate=0.01', f'--strategy={rule}'),
    *words,
  )
  return output, json.loads((logdir / 'report.json').read_text())


def test_an_example_fits_on_a_screen():
  for path in (REPO / 'examples').glob('*.py'):
    if path.stem == 'to_mlflow':  # A tool, and no problem to read.
      continue
    assert len(path.read_text().splitlines()) <= 50, path


@pytest.mark.parametrize(
  'page, name',
  [
    ('your_own_model', 'regression'),
    ('your_own_data', 'streamed'),
    ('own_loop', 'own_loop'),
    ('keras', 'recommender'),
    ('sparse_tables', 'ranking'),
  ],
)
def test_a_page_shows_the_example_as_it_is(page, name):
  text = (REPO / 'docs' / f'{page}.md').read_text()
  shown = [part.split('```')[0] for part in text.split('```python\n')[1:]]
  assert (REPO / 'examples' / f'{name}.py').read_text().endswith(tuple(shown))


# A loop, an embedding and a mask; rules that warm their graphs up run them with
# a dead batch first. Under the other rules keras_test.py trains such a net.
@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('rule', sorted({*RULES} - {*keras_test.RULES}))
def test_text_is_learnt_under_every_other_rule(tmp_path, rule):
  _, report = train(tmp_path, 'sentiment', rule, '--epochs=4')
  assert report['test_metrics'].keys() == {'accuracy', 'auc', 'loss'}
  assert report['test_accuracy'] == report['test_metrics']['accuracy'] > 0.7


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('problem', ['sentiment', 'recommender'])
def test_workers_in_lock_step_reach_the_loss_of_one_process(tmp_path, problem):
  found = [
    train(tmp_path / f'{rule}_{workers}', problem, rule, *flags, **cluster)[1]
    for rule, workers, flags, cluster in (
      ('async_sgd', 1, ['--batch_size=100'], {'num_ps': 0, 'num_workers': 1}),
      ('sync_sgd', 2, ['--batch_size=50'], {}),
      ('ring_allreduce', 2, ['--batch_size=50'], {}),
    )
  ]
  for report in found:
    assert report['test_metrics'] == pytest.approx(
      found[0]['test_metrics'], abs=1e-5
    )


# Without penalties ftrl is adagrad, also for rows that are made.
@pytest.mark.daily
@pytest.mark.slow
def test_the_ranking_example_learns_with_ftrl_as_with_adagrad(tmp_path):
  words = '--problem=examples/ranking.py', f'--files={tmp_path}/ads'
  programs.run_forked('train', *words, '--download_only')
  found = []
  for optimizer in 'adagrad', 'ftrl':
    logdir = tmp_path / optimizer
    programs.run_forked(
      *('train', *words, f'--optimizer={optimizer}', '--learning_rate=0.02'),
      *('--epochs=2', f'--logdir={logdir}'),
    )
    report = json.loads((logdir / 'report.json').read_text())
    found.append(report['test_metrics']['loss'])
  assert found[0] < 0.66  # A guess has log 2.
  assert found[1] == pytest.approx(found[0], abs=1e-4)


# The loss is well below that of a guess; under a rule with copies, too.
@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'problem, rule, epochs, largest_loss',
  [
    ('transformer', 'sync_sgd', 4, 2.3),
    ('recommender', 'sync_sgd', 10, 2.5),
    ('recommender', 'easgd', 10, 2.5),
    ('resnet20', 'sync_sgd', 6, 2.0),
    # A graph so large takes long to build: one worker, and the rules are above.
    ('mobilenet', 'sync_sgd', 2, 1.6),
  ],
)
def test_nets_of_keras_are_learnt(
  tmp_path, problem, rule, epochs, largest_loss
):
  flags = f'--epochs={epochs}', '--batch_size=50'
  flags += ('--width=4',) * (problem == 'resnet20')
  shape = {'num_ps': 1, 'num_workers': 1} if problem == 'mobilenet' else {}
  _, report = train(tmp_path, problem, rule, *flags, **shape)
  assert report['test_metrics']['loss'] < largest_loss
  assert (tmp_path / 'model.keras').exists()


@pytest.mark.daily
@pytest.mark.slow
def test_a_curve_is_learnt_evaluated_and_gone_on_with(tmp_path):
  flags = ('--epochs=4', '--units=16', '--validation_steps=20')
  output, report = train(tmp_path, 'regression', 'async_sgd', *flags)
  metrics = report['test_metrics']
  assert metrics['rmse'] == pytest.approx(metrics['mse'] ** 0.5)
  assert metrics['mse'] < 0.1 and report['test_accuracy'] is None
  assert 'validation mse' in output and '(best so far)' in output
  assert 'examples/regression.py, 4000 training examples here' in output
  assert ' examples/s' in output and ' images' not in output
  # The run knows its problem, and the problem's own flags.
  evaluated = run('evaluate', f'--logdir={tmp_path}')
  assert f'test mse {metrics["mse"]:.4f}, ' in evaluated
  best = run('evaluate', f'--logdir={tmp_path}', '--checkpoint=best')
  assert 'test mse' in best
  assert (tmp_path / 'problem.py').read_text() == (
    REPO / 'examples' / 'regression.py'
  ).read_text()
  # Another number of ps takes it on; other units do not fit.
  flags = ('--epochs=5', '--units=16')
  _, later = train(tmp_path, 'regression', 'async_sgd', *flags, num_ps=1)
  assert later['global_step'] > report['global_step']
  refused = run(
    'train',
    *('--problem=examples/regression.py', '--units=8', f'--logdir={tmp_path}'),
    code=1,
  )
  assert '--units=16, but --units=8 is given' in refused


# TensorFlow alone, with nothing of ours: what a server of models does.
_SERVE = """
import json, sys
import numpy as np
import tensorflow as tf
for folder in sys.argv[1:]:
  model = tf.saved_model.load(folder + '/model').signatures['serving_default']
  x = np.load(folder + '/x.npy')
  found = model(**{name: tf.constant(x) for name in
                   model.structured_input_signature[1]})
  print(json.dumps({name: x.numpy().tolist() for name, x in found.items()}))
"""


def export(folder, problem, *flags):
  """Trains and exports; returns the labels of the test and its metrics."""
  _, report = train(folder / 'run', problem, 'sync_sgd', '--epochs=1', *flags)
  words = f'--logdir={folder}/run', f'--export_dir={folder}/model'
  assert f'examples/{problem}.py, x ' in run('export', *words)
  spec = importlib.util.spec_from_file_location(
    f'example_{problem}', REPO / 'examples' / f'{problem}.py'
  )
  module = importlib.util.module_from_spec(spec)
  with flagsaver.flagsaver():
    spec.loader.exec_module(module)
    x, y = module.load('test')
  x = x.astype(np.float32) if x.dtype == np.float64 else x
  np.save(folder / 'x.npy', x)
  return y, report['test_metrics']


@pytest.mark.daily
@pytest.mark.slow
def test_what_is_exported_serves_as_it_was_evaluated(tmp_path):
  curve, text = tmp_path / 'curve', tmp_path / 'text'
  y, of_curve = export(curve, 'regression', '--units=8')
  labels, of_text = export(text, 'sentiment')
  done = subprocess.run(
    [sys.executable, '-c', _SERVE, str(curve), str(text)],
    cwd=tmp_path,
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stderr
  served = [
    np.reshape(*json.loads(line).values(), [-1])
    for line in done.stdout.splitlines()[-2:]
  ]
  mse = np.mean((served[0] - y) ** 2)
  assert mse == pytest.approx(of_curve['mse'], rel=1e-4)
  accuracy = np.mean((served[1] > 0) == labels)  # These are logits.
  assert accuracy == pytest.approx(of_text['accuracy'])


@pytest.mark.daily
@pytest.mark.slow
def test_its_own_flags_are_swept_and_judged_by_its_own_metric(tmp_path):
  words = (
    *('sweep', 'units=2,32', 'learning_rate=0.01', '--halving=2'),
    *(f'--sweep_dir={tmp_path}', '--num_ps=1', '--num_workers=1', '--'),
    *('--problem=examples/regression.py', '--optimizer=adam', '--epochs=4'),
  )
  output = run(*words)
  table = [line for line in output.splitlines() if line[:1] == ' ']
  header = next(x for x in output.splitlines() if x.startswith('trial '))
  best, worst = table
  assert 'validation_mse  test_mse' in header
  assert best.split()[:3] == ['02', '32', '0.01']
  assert best.endswith('done') and worst.endswith('dropped')
  assert 'best by validation mse: trial ' in output
  assert '"judged_by":"-mse"' in (tmp_path / 'journal.log').read_text()
  assert 'all have ended' in run(*words)
  other = f'--sweep_dir={tmp_path}/other'
  unknown = 'unit=2,32', *words[2:4], other, *words[5:]
  assert "'unit'. Did you mean: units" in run('sweep', *unknown, code=2)
  both = 'problem=a.py,b.py', '--', *words[-3:]
  assert 'cannot be compared' in run('sweep', *both, code=2)


@pytest.mark.slow
def test_its_shards_are_planned():
  output = run('plan', '--problem=examples/sentiment.py', '--num_ps=2')
  assert 'async_sgd, 2 ps, 2 workers; examples/sentiment.py' in output
  assert 'embedding/embeddings/part_0' in output


# An embedding of a hundred rows, and data that ask for more.
_TOO_FEW_ROWS = """
import numpy as np
import tensorflow.compat.v1 as tf

def load(split):
  return np.arange(400), np.ones(400)

def build(x, is_training):
  table = tf.get_variable('table', [100, 4])
  return tf.reduce_sum(tf.nn.embedding_lookup(table, x), 1)

def loss(y, outputs):
  return (y - outputs) ** 2
"""


@pytest.mark.slow
def test_a_step_that_fails_names_the_line_of_the_problem(tmp_path):
  path = tmp_path / 'rows.py'
  path.write_text(_TOO_FEW_ROWS)
  output = run(
    'launch',
    *('--num_ps=1', '--num_workers=2', '--'),
    *(f'--problem={path}', '--batch_size=10'),
    code=1,
  )
  assert 'Traceback' not in output
  assert 'rows.py:10, in build(): indices[' in output.splitlines()[-1]
