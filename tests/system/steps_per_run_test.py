"""--steps_per_run=auto: many steps at a time, and what is due on its step."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.steps import run_length
from distmnist.logdir import checkpoints, history
from tests.support import long_runs
from tests.support.runner import SMALL, read_report
from tests.training.worker_loop_test import train  # noqa: F401

MODULE = 'tests.support.long_runs'
# Neither divides the other, nor any length of a run.
DUE = '--save_steps=131', '--validation_steps=173', '--summary_steps=97'
STEPS = 600


def read_lengths(logdir, worker):
  """Returns the number of steps in each run of a worker, a list."""
  return [
    len(event['tickets'])
    for event in history.read(logdir)
    if (event['event'], event['worker']) == ('ran', worker)
  ]


def read_steps(logdir, name):
  """Returns the global steps of an event, a list."""
  return [e['step'] for e in history.read(logdir) if e['event'] == name]


def read_all(logdir):
  """Returns {name: bytes} of the newest checkpoint."""
  reader = tf.train.load_checkpoint(checkpoints.find_latest(logdir))
  return {
    name: reader.get_tensor(name).tobytes()
    for name in reader.get_variable_to_shape_map()
  }


def read_summaries(folder):
  """Returns the steps with a loss, a list, of the events in a folder."""
  return [
    event.step
    for path in sorted(folder.glob('events*'))
    for event in tf.train.summary_iterator(str(path))
    if any(value.tag == 'loss' for value in event.summary.value)
  ]


@pytest.mark.slow
def test_a_training_has_the_bits_of_one_with_single_steps_and_its_files(
  train,  # noqa: F811
  tmp_path,
  monkeypatch,
):
  for name in 'RUN_SECS', 'PREPARE_SECS', 'MAX_STEPS':
    monkeypatch.setattr(run_length, name, getattr(long_runs, name))
  words = *DUE, '--history', '--optimizer=adam', '--random_shift=1'
  for name in 'auto', '1':
    train(
      *(*words, f'--train_steps={STEPS}', '--keep_checkpoints=100'),
      *(f'--steps_per_run={name}', f'--logdir={tmp_path}/{name}'),
    )
  assert read_all(tmp_path / 'auto') == read_all(tmp_path / '1')
  assert set(read_lengths(str(tmp_path / '1'), 0)) == {1}
  lengths = read_lengths(str(tmp_path / 'auto'), 0)
  assert set(lengths) == {1, 10}
  assert sum(lengths) == STEPS
  for name in 'auto', '1':
    logdir = tmp_path / name
    saved = read_steps(str(logdir), 'saved')
    assert saved == [0, *range(131, STEPS, 131), STEPS]
    evaluated = read_steps(str(logdir), 'evaluated')
    assert evaluated == list(range(173, STEPS, 173))
    summaries = read_summaries(logdir / 'metrics' / 'worker_0')
    assert summaries == [1, *range(97, STEPS, 97)]


@pytest.mark.daily
@pytest.mark.slow
def test_workers_of_a_ring_make_the_same_runs_whatever_each_has_due(
  tasks, make_real_cluster, tmp_path
):
  logdir = tmp_path / 'run'
  flags = (
    *(*SMALL, '--strategy=ring_allreduce', f'--train_steps={STEPS}'),
    *(f'--logdir={logdir}', '--history'),
  )
  own = ['--save_steps=131'], ['--summary_steps=97']
  cluster = make_real_cluster(0, 2)
  workers = [
    cluster.start('worker', i, *flags, *words, module=MODULE)
    for i, words in enumerate(own)
  ]
  assert tasks.wait(*workers) == [0, 0]
  first, second = (read_lengths(str(logdir), i) for i in range(2))
  assert first == second
  assert set(first) == {1, 10}
  saved = read_steps(str(logdir), 'saved')
  assert saved == [0, *range(131, STEPS, 131), STEPS]


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize(
  'rule, steps',
  [('sync_sgd', 300), ('async_sgd', 600), ('sagn', 300), ('dc_asgd', 600)],
)
def test_workers_learn_with_runs_of_their_own(
  tasks, make_real_cluster, tmp_path, rule, steps
):
  logdir = tmp_path / 'run'
  flags = (
    *(*SMALL, f'--strategy={rule}', f'--train_steps={steps}'),
    *(f'--logdir={logdir}', '--history'),
  )
  cluster = make_real_cluster(1, 2)
  everybody = [
    cluster.start('ps', 0, *flags, module=MODULE),
    *(cluster.start('worker', i, *flags, module=MODULE) for i in range(2)),
  ]
  assert tasks.wait(*everybody) == [0, 0, 0]
  report = read_report(logdir)
  # A worker that was held up may start a last run too late.
  assert steps <= report['global_step'] <= steps + 25
  assert report['test_accuracy'] > 0.5
  lengths = [n for i in range(2) for n in read_lengths(str(logdir), i)]
  assert max(lengths) == 10
