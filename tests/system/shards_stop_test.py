"""A run by shards that is stopped, and goes on, ends as one that was not.

That shards are ahead when the stop comes is forced in
tests/exchange/rounds/shard_barrier_test.py.
"""

import shutil
import signal

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.logdir import checkpoints
from tests.support.runner import SMALL, import_benchmark

fault_run = import_benchmark('lib.fault_run')

pytestmark = pytest.mark.usefixtures('forked_launches')

NUM_STEPS, STOP = 80, 31
FLAGS = [
  *('--strategy=sync_sgd', '--sync_barrier=shard', '--max_shard_mib=0.01'),
  *(*SMALL, '--batch_size=20', '--seed=5', f'--train_steps={NUM_STEPS}'),
  *('--validation_steps=0', '--early_stopping_patience=0'),
]


def read_checkpoint(logdir):
  """Returns {name: array} of the newest checkpoint."""
  reader = tf.train.load_checkpoint(checkpoints.find_latest(str(logdir)))
  names = reader.get_variable_to_shape_map()
  # How the batches were dealt depends on the parts of a training.
  return {name: reader.get_tensor(name) for name in names if name != 'stream'}


def stop_amid_a_step(run):
  """Stops all while worker 1 stands still, wherever it is in its step."""
  assert run.signal('worker 1', signal.SIGSTOP)
  run.wait_until(lambda: False, 0.5)
  run.group.signal(run._launch, signal.SIGTERM)
  run.wait_until(lambda: False, 0.5)
  run.signal('worker 1', signal.SIGCONT)
  run.wait_until(lambda: False)
  assert run.code == 128 + signal.SIGTERM, run.screen


def train(folder, stop_at=None):
  """Runs a training, or a part of it; returns its checkpoint."""
  # What an earlier part logged of its steps is over.
  shutil.rmtree(folder / 'logs', ignore_errors=True)
  folder.mkdir(exist_ok=True)
  run = fault_run.Run(folder, FLAGS, num_ps=2, num_workers=2)
  try:
    if stop_at is None:
      problem, _ = run.finish(240)
      assert not problem
    else:
      assert run.wait_until(lambda: run.step >= stop_at, 240)
      stop_amid_a_step(run)
  finally:
    run.close()
  return read_checkpoint(run.logdir)


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_stopped_ends_with_the_same_bits(tmp_path):
  expected = train(tmp_path / 'whole')
  center = train(tmp_path / 'stopped', STOP)
  assert STOP <= center['global_step'] < NUM_STEPS
  found = train(tmp_path / 'stopped')
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_array_equal(found[name], value, err_msg=name)
