"""The command line of one process: what it prints, and how it refuses."""

import collections
import json
import re

import pytest
import tensorflow.compat.v1 as tf

from tests.support.runner import SMALL, read_report


def read_histograms(folder):
  """Returns the HistogramProtos called 'staleness' of an event file."""
  [path] = folder.glob('events.out.tfevents.*')
  return [
    value.histo
    for event in tf.train.summary_iterator(str(path))
    for value in event.summary.value
    if value.tag == 'staleness'
  ]


def read_tags(folder):
  """Returns {tag: [(step, value), ...]} of the event files in `folder`."""
  found = {}
  for path in sorted(folder.glob('events.*')):
    for event in tf.train.summary_iterator(str(path)):
      for value in event.summary.value:
        found.setdefault(value.tag, []).append((event.step, value.simple_value))
  return found


@pytest.mark.slow
def test_one_process_trains_and_reports(tasks, tmp_path):
  logdir = tmp_path / 'run'
  task = tasks.run(
    tmp_path / 'log',
    *SMALL,
    '--epochs=6',
    '--batch_size=50',
    '--summary_steps=20',
    f'--logdir={logdir}',
  )
  assert task.code == 0, task.output
  report = read_report(logdir)
  # 2,500 of the 3,000 images are for training: 50 batches of 50 a pass.
  assert report['global_step'] == 300
  assert report['examples'] == 15000
  assert report['local_steps'] == 300
  assert report['staleness_max'] == 0
  assert report['test_examples'] == 500
  assert report['flags']['model'] == 'softmax'
  assert report['test_accuracy'] > 0.5
  assert f'test accuracy       {report["test_accuracy"]:.4f}' in task.output
  for label in (
    'total time',
    'final loss',
    'images/s',
    'work',
    'traffic',
    'staleness',
    'worker 0',
  ):
    assert re.search(f'^{label} +', task.output, re.M), label
  assert re.search(r'^step 300/300  epoch 6\.00  loss \d', task.output, re.M)


@pytest.fixture(scope='module')
def observed(_runner, tmp_path_factory):
  """A run that tells all it can: (task, logdir)."""
  folder = tmp_path_factory.mktemp('observed')
  task = _runner.run(
    *(folder / 'log', *SMALL, '--train_steps=100', '--log_secs=0'),
    *('--summary_steps=20', '--validation_steps=50'),
    f'--logdir={folder}/run',
  )
  assert task.code == 0, task.output
  return task, folder / 'run'


@pytest.mark.slow
def test_summaries_are_one_run_a_worker_with_plain_tags(observed):
  _, logdir = observed
  tags = read_tags(logdir / 'metrics' / 'worker_0')
  assert set(tags) == {
    'loss',
    'accuracy',
    'learning_rate',
    'examples_per_sec',
    'local_steps',
    'examples',
    'bytes_pulled',
    'bytes_pushed',
    'staleness',
    'staleness_mean',
  }
  assert tags['local_steps'] == [(n, n) for n in (1, 20, 40, 60, 80, 100)]
  assert tags['examples'][-1][1] == 100 * tags['local_steps'][-1][1]
  assert tags['bytes_pushed'] == [
    (n, n * tags['bytes_pushed'][0][1]) for n in (1, 20, 40, 60, 80, 100)
  ]
  assert [step for step, _ in tags['loss']] == [1, 20, 40, 60, 80, 100]
  assert tags['learning_rate'][0][1] == pytest.approx(0.01)
  assert tags['loss'][-1][1] < tags['loss'][0][1]
  # The same charts as those of the workers.
  for split, steps in ('validation', [50, 100]), ('test', [100]):
    tags = read_tags(logdir / 'metrics' / split)
    assert {
      tag: [step for step, _ in points] for tag, points in tags.items()
    } == dict.fromkeys(['loss', 'accuracy'], steps)


@pytest.mark.daily
@pytest.mark.slow
def test_the_histogram_of_staleness_is_that_of_the_report(
  tasks, make_real_cluster, tmp_path
):
  logdir = tmp_path / 'run'
  ps, workers = make_real_cluster(1, 3).start_all(
    *SMALL,
    '--strategy=dynsgd',
    '--communication_period=2',
    '--train_steps=60',
    '--summary_steps=7',
    f'--logdir={logdir}',
  )
  assert tasks.wait(*ps, *workers) == [0] * 4
  report = read_report(logdir)
  for row in report['workers']:
    if not row['local_steps']:
      continue  # It came when the others had done everything.
    found = collections.Counter()
    for histogram in read_histograms(
      logdir / 'metrics' / f'worker_{row["worker"]}'
    ):
      # Each number has a bucket that ends 0.5 above it.
      for limit, count in zip(
        histogram.bucket_limit, histogram.bucket, strict=True
      ):
        found[int(limit - 0.5)] += int(count)
    expected = {int(s): n for s, n in row['staleness'].items()}
    assert {s: n for s, n in found.items() if n} == expected
    # Every second step is a push, and has a staleness.
    assert row['pushes'] == sum(expected.values()) == row['local_steps'] // 2
  assert report['pushes'] >= 60
  assert report['local_steps'] > report['global_step'] >= 60
  assert report['examples'] == 100 * report['local_steps']


@pytest.mark.slow
def test_a_run_resumes_and_its_report_is_of_all_of_it(tasks, tmp_path):
  flags = *SMALL, f'--logdir={tmp_path}'
  first = tasks.run(tmp_path / '1', *flags, '--train_steps=100')
  assert first.code == 0
  assert ' lives' not in first.output
  second = tasks.run(tmp_path / '2', *flags, '--train_steps=110')
  assert second.code == 0
  assert f'restored {tmp_path}/model.ckpt-100' in second.output
  report = read_report(tmp_path)
  assert (report['examples'], report['local_steps']) == (11000, 110)
  assert report['first_step'] == report['steps_lost'] == 0
  lives = report['workers'][0]['lives']
  assert [x['sessions'] for x in lives] == [[[0, 100]], [[100, 110]]]
  assert [x['examples'] for x in lives] == [10000, 1000]
  assert [x['has_ended'] for x in lives] == [True, True]
  # Nothing is left to do the third time, but the accuracy is still reported.
  third = tasks.run(tmp_path / '3', *flags, '--train_steps=110')
  assert third.code == 0 and 'restored' in third.output
  of_worker = re.compile(r'^worker 0 +110 local .*, in 2 lives$', re.M)
  assert of_worker.search(second.output) and of_worker.search(third.output)
  accuracy = re.compile(r'^test accuracy.*$', re.M)
  assert accuracy.findall(third.output) == accuracy.findall(second.output)
  # Another training begins in the folder.
  anew = *flags, '--train_steps=5', '--resume=never'
  assert tasks.run(tmp_path / '4', *anew).code == 0
  report = read_report(tmp_path)
  assert (report['examples'], report['earlier_lives_unknown']) == (500, [])


@pytest.mark.slow
def test_divergence_stops_with_advice(tasks, tmp_path):
  task = tasks.run(
    tmp_path / 'log',
    *SMALL,
    '--optimizer=sgd',
    '--learning_rate=1e38',
    '--save_steps=1',
    '--train_steps=500',
    f'--logdir={tmp_path / "run"}',
  )
  assert task.code == 1
  assert (
    'the training has diverged; try a lower --learning_rate' in task.last_line
  )
  assert 'Traceback' not in task.output
  # The next one does not begin with what was saved before a loss showed it.
  task = tasks.run(
    tmp_path / 'again',
    *SMALL,
    '--optimizer=sgd',
    '--train_steps=5',
    f'--logdir={tmp_path / "run"}',
  )
  assert task.code == 0, task.output
  assert 'model.ckpt-1 is of a training that has diverged' in task.output
  assert f'restored {tmp_path}/run/model.ckpt-0\n' in task.output


@pytest.mark.slow
def test_progress_is_a_line_every_log_secs(observed):
  task, _ = observed
  assert len(re.findall(r'^step \d+/100 ', task.output, re.M)) >= 100


@pytest.mark.slow
def test_placement_is_printed_if_asked_for(tasks, tmp_path):
  task = tasks.run(
    tmp_path / 'log', *SMALL, '--train_steps=1', '--log_device_placement'
  )
  assert re.search(
    r'^softmax/weights \(VarHandleOp\): /device:CPU:0', task.output, re.M
  )
  # A step is fed the numbers of its images, and not the images.
  fed = re.findall(r'^(\S+) \(Placeholder\)', task.output, re.M)
  assert sorted(fed) == ['input/batches', 'known_step', 'new_stream']


@pytest.mark.slow
def test_the_graph_holds_no_images(observed):
  _, logdir = observed
  # The graph is in the events of the chief, for TensorBoard.
  [events] = (logdir / 'metrics' / 'graph').glob('events.*')
  assert 10_000 < events.stat().st_size < 300_000


def test_download_only_says_where_the_data_is(tasks, tmp_path, mnist_dir):
  task = tasks.run(
    tmp_path / 'log', '--download_only', f'--data_dir={mnist_dir}'
  )
  assert task.code == 0
  assert task.output == f'mnist is in {mnist_dir}\n'


def test_print_cluster_says_who_is_who_and_starts_nothing(tasks, tmp_path):
  cluster = {'chief': ['c:1'], 'worker': ['w:1'], 'ps': ['p:1']}
  config = {'cluster': cluster, 'task': {'type': 'worker', 'index': 0}}
  task = tasks.run(
    tmp_path / 'log',
    '--print_cluster',
    '--num_gpus=0',
    f'--logdir={tmp_path}/run',
    TF_CONFIG=json.dumps(config),
  )
  assert task.code == 0
  assert task.output == (
    'read from  TF_CONFIG\n'
    'ps 0       p:1\n'
    'worker 0   c:1, the chief, chief 0 of TF_CONFIG\n'
    'worker 1   w:1, worker 0 of TF_CONFIG\n'
    'this task  worker 1\n'
  )
  assert not (tmp_path / 'run').exists()


WEIGHTED = """
import numpy as np
import tensorflow.compat.v1 as tf


def load(split):
  rng = np.random.default_rng(1)
  x, weight = rng.normal(size=[400, 2]), 1.0 * (rng.random(400) < 0.1)
  return x, {'label': (x[:, 0] > 0).astype(np.float32), 'weight': weight}


def build(x, is_training):
  return (x @ tf.get_variable('w', [2, 1]))[:, 0]


def loss(y, outputs):
  losses = tf.nn.sigmoid_cross_entropy_with_logits(
    labels=y['label'], logits=outputs
  )
  return tf.reduce_sum(y['weight'] * losses) / tf.reduce_sum(y['weight'])
"""


@pytest.mark.slow
def test_a_batch_that_the_loss_cannot_take_is_named(tasks, tmp_path):
  (tmp_path / 'weighted.py').write_text(WEIGHTED)
  problem = f'--problem={tmp_path}/weighted.py'
  task = tasks.run(tmp_path / 'log', problem, '--batch_size=4')
  assert task.code == 1
  assert re.search(
    r'error: the loss of worker 0 is nan at step \d+, and is not finite '
    r'at the first weights either, .* \(examples \d+, \d+, \d+, \d+ of the '
    r'training data\)',
    task.last_line,
  ), task.output
  assert 'diverged' not in task.output
