"""Runs of an older version are restored and go on: old_runs.tar.xz.

It was made by commit 09476999, the last one before the engine was rebuilt: a
launch of 20 steps with 2 workers under each rule, with the optimizers, barriers
and tables that keep something else in a checkpoint. For each case it has the
launch's flags, what the next process reads of the log directory, and, where the
workers are in lock-step, the weights to which that version went on, at step 40.
"""

import json
import re
import tarfile

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.logdir import checkpoints
from tests.support import programs
from tests.support.paths import REPO

ARCHIVE = REPO / 'tests' / 'system' / 'old_runs.tar.xz'
with tarfile.open(ARCHIVE) as _archive:
  CASES = sorted({name.partition('/')[0] for name in _archive.getnames()})


@pytest.fixture(scope='session')
def old_runs(tmp_path_factory):
  """The folder of all of them; each test changes its own case."""
  folder = tmp_path_factory.mktemp('old_runs')
  with tarfile.open(ARCHIVE) as archive:
    archive.extractall(folder, filter='data')
  return folder


@pytest.mark.daily(but=['ring_allreduce'])
@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_it_is_restored_and_goes_on(case, old_runs):
  folder = old_runs / case
  logdir, words = folder / 'run', (folder / 'flags').read_text().split()
  done = programs.start_forked().run(
    'launch',
    [*words, '--train_steps=40', '--end_timeout_secs=60', f'--logdir={logdir}'],
    folder,
    timeout_secs=300,
  )
  out, err = done['out'], done['err']
  assert done['code'] == 0, out + err
  lines = (out + err).splitlines()
  assert f'restored {logdir}/model.ckpt-20' in lines
  steps = [int(x) for x in re.findall(r'^step (\d+)/40 ', out + err, re.M)]
  assert min(steps) >= 20
  report = json.loads((logdir / 'report.json').read_text())
  assert report['global_step'] >= 40
  assert report['test_metrics']['loss'] < 2  # It is 1.6 or less but with lars.
  expected = json.loads((folder / 'weights.json').read_text())
  reader = tf.train.load_checkpoint(checkpoints.find_latest(str(logdir)))
  for name, values in expected.items():
    np.testing.assert_allclose(
      reader.get_tensor(name), values, rtol=1e-5, atol=1e-6, err_msg=name
    )
