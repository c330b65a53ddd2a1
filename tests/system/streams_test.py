"""Examples that are read as they are needed: real clusters, files and kills."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.readers.tfrecord_test import make_record
from tests.system.examples_test import run

pytestmark = pytest.mark.slow

# The same curve by arrays, by a reader of one's own, and by a tf.data.Dataset.
_CURVE = """
import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

AS = flags.DEFINE_enum('as', 'arrays', ['arrays', 'reader', 'stream'], 'How.')
best = '-loss'
num_examples = 900

def make(split):
  n = num_examples if split == 'train' else 100
  x = np.random.default_rng(len(split)).uniform(-2, 2, [n, 2])
  return x.astype(np.float32), np.sin(x[:, 0]) * x[:, 1]

class Reader:
  def __init__(self, x, y):
    self.x, self.y, self.num_examples = x, y, len(x)

  def read(self, indices):
    return self.x[indices], self.y[indices]

def load(split):
  if split == 'validation':
    return None
  x, y = make(split)
  return Reader(x, y) if AS.value == 'reader' else (x, y)

def build(x, is_training):
  w = tf.get_variable('w', [2, 16])
  v = tf.get_variable('v', [16, 1])
  return (tf.nn.elu(x @ w) @ v)[:, 0]

def loss(y, outputs):
  return (y - outputs) ** 2
"""
_STREAM = """
def stream(indices):
  x, y = (tf.constant(part, tf.float32) for part in make('train'))
  return indices.map(lambda i: (x[i], y[i]), num_parallel_calls=2)
"""


def train(tmp_path, name, problem, *words, num_ps=2, num_workers=2, code=0):
  """Trains by `launch`; returns (output, report)."""
  logdir = tmp_path / name
  output = run(
    'launch',
    *(f'--num_ps={num_ps}', f'--num_workers={num_workers}', '--'),
    *(f'--problem={problem}', f'--logdir={logdir}', '--optimizer=adam'),
    *('--learning_rate=0.01', '--batch_size=20', *words),
    code=code,
  )
  report = logdir / 'report.json'
  return output, json.loads(report.read_text()) if report.exists() else None


@pytest.mark.daily
@pytest.mark.parametrize(
  'how', ['--steps_per_run=4', '--gradient_accumulation=3']
)
def test_a_stream_trains_as_the_arrays_do(tmp_path, how):
  losses = {}
  for name in 'arrays', 'reader', 'stream':
    path = tmp_path / f'{name}.py'
    path.write_text(_CURVE + _STREAM * (name == 'stream'))
    flags = f'--as={name}', '--strategy=sync_sgd', '--epochs=2', how
    _, report = train(tmp_path, name, path, *flags, num_ps=1)
    losses[name] = report['test_metrics']['loss']
  assert losses['reader'] == pytest.approx(losses['arrays'], rel=1e-6)
  assert losses['stream'] == pytest.approx(losses['arrays'], rel=1e-6)


# Rules with leases, a warm-up, lock-step, and rounds of their own.
@pytest.mark.daily
@pytest.mark.parametrize('rule', ['async_sgd', 'easgd', 'bmuf', 'sync_sgd'])
def test_the_example_learns_from_its_files(tmp_path, rule):
  problem = 'examples/streamed.py'
  files = f'--files={tmp_path}/curve'
  run('train', f'--problem={problem}', files, '--download_only')
  output, report = train(
    tmp_path,
    'run',
    problem,
    *(files, f'--strategy={rule}', '--epochs=5', '--read_threads=2'),
  )
  assert '3000 training examples here' in output
  assert report['test_metrics']['loss'] < 0.7
  evaluated = run('evaluate', f'--logdir={tmp_path}/run')
  assert f'test loss {report["test_metrics"]["loss"]:.4f}' in evaluated


# Each time that row i of `seen` is in a batch of 10 it loses a tenth. Worker 1
# kills itself once, in the middle of its reads.
_COUNTED = """
import os
import signal
import sys
import tensorflow.compat.v1 as tf
from distmnist.readers import csv

HERE = os.path.dirname(__file__)

class Reader(csv.Reader):
  num_reads = 0

  def read(self, indices):
    self.num_reads += 1
    mark = f'{HERE}/killed'
    is_second = '--task_index=1' in sys.argv
    if is_second and self.num_reads > 60 and not os.path.exists(mark):
      open(mark, 'w').close()
      os.kill(os.getpid(), signal.SIGKILL)
    return super().read(indices)

def load(split):
  if split != 'validation':
    return Reader(f'{HERE}/rows.csv', x='x', y='y', window=1)

def build(x, is_training):
  seen = tf.get_variable('seen', [600], initializer=tf.zeros_initializer())
  return tf.gather(seen, x)

def loss(y, outputs):
  return outputs + 0. * tf.cast(y, tf.float32)
"""


@pytest.mark.daily(but=['sync_sgd-2'])
@pytest.mark.parametrize(
  'rule, num_workers', [('async_sgd', 2), ('sync_sgd', 2), ('async_sgd', 3)]
)
def test_each_example_is_read_once_an_epoch_through_a_kill(
  tmp_path, rule, num_workers
):
  rows = ''.join(f'{i},{i % 2}\n' for i in range(600))
  (tmp_path / 'rows.csv').write_text(f'x,y\n{rows}')
  (tmp_path / 'counted.py').write_text(_COUNTED)
  output = run(
    'launch',
    *('--num_ps=2', f'--num_workers={num_workers}', '--max_restarts=3', '--'),
    *(f'--problem={tmp_path}/counted.py', f'--logdir={tmp_path}/run'),
    *(f'--strategy={rule}', '--epochs=10', '--batch_size=10'),
    *('--optimizer=sgd', '--learning_rate=1', f'--data_cache={tmp_path}/cache'),
  )
  assert (tmp_path / 'killed').exists()
  assert 'worker 1 ended' in output or 'restart' in output, output
  path = tf.train.latest_checkpoint(str(tmp_path / 'run'))
  seen = tf.train.load_checkpoint(path).get_tensor('seen')
  a_read = 0.1 / num_workers if rule == 'sync_sgd' else 0.1
  assert np.round(seen / -a_read, 3).tolist() == [10] * 600


_KILL = 'os.kill(os.getpid(), signal.SIGKILL)'
_COLUMNS = "f'{HERE}/rows.csv', x='x', y='y'"
_PARSE = """
def parse(records):
  numbers = tf.strings.to_number(records, tf.int64)
  return numbers, numbers
"""
_TRUNCATE = "os.truncate(f'{HERE}/rows', 9)"


@pytest.mark.daily
def test_records_that_change_in_a_training_are_named(tmp_path):
  with tf.io.TFRecordWriter(f'{tmp_path}/rows') as writer:
    for _ in range(600):
      writer.write(b'0')
  text = _COUNTED.replace(_COLUMNS, "f'{HERE}/rows', parse") + _PARSE
  text = text.replace('csv', 'tfrecord').replace(_KILL, _TRUNCATE)
  (tmp_path / 'counted.py').write_text(text)
  output = run(
    'launch',
    *('--num_ps=1', '--num_workers=2', '--', '--batch_size=10', '--epochs=10'),
    f'--problem={tmp_path}/counted.py',
    code=1,
  )
  assert 'Traceback' not in output
  said = 'rows has changed since the training began'
  assert said in output.splitlines()[-1]


@pytest.mark.daily
def test_a_table_that_changes_in_a_training_is_what_it_was(tmp_path):
  (tmp_path / 'rows').write_text('x,y\n' + '0,1\n' * 600)
  text = _COUNTED.replace('rows.csv', 'rows').replace(_KILL, _TRUNCATE)
  (tmp_path / 'counted.py').write_text(text)
  output = run(
    'launch',
    *('--num_ps=1', '--num_workers=2', '--', '--batch_size=10', '--epochs=10'),
    *(f'--problem={tmp_path}/counted.py', f'--data_cache={tmp_path}/cache'),
    f'--logdir={tmp_path}/run',
  )
  assert (tmp_path / 'rows').stat().st_size == 9
  assert 'step 600/600' in output
  assert len([*(tmp_path / 'cache').glob('*.rows')]) == 1


# One process builds graphs so large once; the other tests have clusters.
@pytest.mark.daily
@pytest.mark.timeout(600)
def test_the_nets_of_imagenet_take_jpegs_in_records(tmp_path):
  rng = np.random.default_rng(0)
  with tf.Graph().as_default(), tf.Session() as session:
    fed = tf.placeholder(tf.uint8, [None, None, 3])
    jpeg = tf.io.encode_jpeg(fed)
    for part in ('train-0', 'train-1', 'validation-0'):
      with tf.io.TFRecordWriter(str(tmp_path / part)) as writer:
        for label in (1, 2, 3, 4):
          pixels = rng.integers(0, 256, [40, 50, 3], np.uint8)
          image = session.run(jpeg, {fed: pixels})
          values = {'image/encoded': image, 'image/class/label': label}
          writer.write(make_record(values))
  flags = f'--records={tmp_path}', '--classes=4', '--batch_size=2'
  output = run(
    *('train', '--flagfile=configs/imagenet_resnet50.flags', *flags),
    *('--side=32', '--train_steps=2', '--smoothing=0.1'),
  )
  assert '8 training examples here' in output
  assert 'test accuracy' in output
  planned = run(
    *('plan', '--flagfile=configs/imagenet_inception_v3.flags', *flags),
    '--side=75',
  )
  assert 'examples/imagenet.py' in planned
