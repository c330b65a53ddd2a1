"""A ps, a worker and the chief die amid the saves of large sparse tables.

The table is larger than a slice of a save (partial_names.SLICE_BYTES), so under
an asynchronous rule its saves go on beside the steps.
"""

import pytest

from distmnist.logdir import checkpoint_reader, checkpoints
from tests.support.runner import import_benchmark
from tests.system.every_image_with_kills_test import kill

training = import_benchmark('lib.fault_training')
fault_run = import_benchmark('lib.fault_run')

pytestmark = pytest.mark.usefixtures('forked_launches')

# 64 MB, and as much for Adagrad.
PROBLEM = """
import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.nn import layers

ROWS = 2_000_000


def load(split):
  n = {'train': 20_000, 'test': 1000}.get(split)
  if n:
    ids = np.random.default_rng(n).integers(0, ROWS, [n, 4])
    return ids, (ids[:, 0] % 2).astype(np.float32)


def build(x, is_training):
  bias = tf.get_variable('bias', [], initializer=tf.zeros_initializer())
  return tf.reduce_sum(layers.embedding(x, ROWS, 8, 'ads'), [1, 2]) + bias


def loss(y, outputs):
  return tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=outputs)
"""


class Run(fault_run.Run):
  common = ()


def start(folder, rule, steps, words):
  """Returns the Run, with one ps and two workers."""
  problem = folder / 'ads.py'
  problem.write_text(PROBLEM)
  flags = [
    *(f'--strategy={rule}', f'--problem={problem}', '--optimizer=adagrad'),
    *('--learning_rate=0.1', '--batch_size=64', '--save_secs=1', '--history'),
    *('--log_secs=0', '--stall_warn_secs=3', f'--train_steps={steps}'),
    *words,
  ]
  return Run(folder, flags, 1, 2)


@pytest.mark.daily(but=['async_sgd-3000-victims0-words0'])
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
  ('rule', 'steps', 'victims', 'words'),
  [
    ('async_sgd', 3000, ['ps 0', 'worker 0', 'worker 1'], []),
    # The chief waits for its saves, as ever: one loss of each.
    ('sync_sgd', 100, ['ps 0', 'worker 0'], []),
    ('easgd', 300, ['ps 0', 'worker 1'], ['--table_strategy=async_sgd']),
    ('sync_sgd', 1000, ['ps 0', 'worker 0'], ['--table_strategy=async_sgd']),
  ],
)
def test_a_kill_amid_a_save_breaks_nothing(
  tmp_path, rule, steps, victims, words
):
  run = start(tmp_path, rule, steps, words)
  try:
    assert run.wait_until(lambda: all(log.step for log in run.workers))
    for task in victims:
      run.read_new_events()
      assert run.wait_for_event('saving')
      kill(run, task)
    problem, report = run.finish(120)
  finally:
    run.close()
  assert not problem
  assert training.find_violations(run, report, rule) == []
  assert sum(len(log.recoveries) for log in run.workers) >= victims.count(
    'ps 0'
  )


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_comes_back_from_rows_that_were_touched(tmp_path):
  def find_base():
    path = checkpoints.find_latest(str(run.logdir))
    return path and checkpoint_reader.find_base(path)

  run = start(tmp_path, 'async_sgd', 3000, ['--save_tables=touched'])
  try:
    for task in ('ps 0', 'worker 0'):
      assert run.wait_until(find_base, 120)
      run.read_new_events()
      assert run.wait_for_event('saving')
      kill(run, task)
      assert run.wait_until(lambda: run.workers[0].recoveries, 120)
      chief = '\n'.join(run.workers[0].texts)
      assert 'has the rows touched since' in chief
    problem, report = run.finish(120)
  finally:
    run.close()
  assert not problem
  assert training.find_violations(run, report, 'async_sgd') == []
  # What is left at the end is what TensorFlow reads.
  assert find_base() is None
