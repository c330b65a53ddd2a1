"""A chief that resumes has no table, nor half of one, in its memory."""

import os
import re
import subprocess
import sys
import time

import pytest

from distmnist.common import partial_names, ports
from tests.support.paths import PYTHONPATH

# 256 MB on the ps, and as much for Adagrad.
ROWS, WIDTH = 4_000_000, 16
PROBLEM = f"""
import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.nn import layers

def load(split):
  n = {{'train': 2000, 'test': 100}}.get(split)
  if n:
    ids = np.random.default_rng(n).integers(0, {ROWS}, [n, 4])
    return ids, (ids[:, 0] % 2).astype(np.float32)

def build(x, is_training):
  rows = layers.embedding(x, NUM_ROWS, {WIDTH}, 'ads')
  return tf.reduce_sum(rows, [1, 2])

def loss(y, outputs):
  return tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=outputs)
"""


def start(role, words, log):
  argv = [sys.executable, '-m', 'distmnist.train', f'--job_name={role}']
  with open(log, 'w') as file:
    return subprocess.Popen(
      [*argv, '--task_index=0', *words],
      stdout=file,
      stderr=subprocess.STDOUT,
      env={**os.environ, 'PYTHONPATH': PYTHONPATH},
    )


def read_peak(pid):
  """Returns the most bytes that a process has had, None if it has ended."""
  try:
    with open(f'/proc/{pid}/status') as file:
      found = re.search(r'VmHWM:\s*(\d+) kB', file.read())
  except OSError:
    return None
  return found and int(found[1]) * 1024


def train(folder, steps):
  """Trains by a ps and a chief; returns the most bytes of the chief's."""
  held = ports.hold_ports(2)
  hosts = [f'127.0.0.1:{x.getsockname()[1]}' for x in held]
  for each in held:
    each.close()
  words = [
    *(f'--ps_hosts={hosts[0]}', f'--worker_hosts={hosts[1]}'),
    *(f'--problem={folder}/problem.py', f'--logdir={folder}/run'),
    *('--optimizer=adagrad', '--learning_rate=0.1', '--batch_size=20'),
    f'--train_steps={steps}',
  ]
  log = folder / f'chief_{steps}.log'
  with (
    start('ps', words, folder / f'ps_{steps}.log') as ps,
    start('worker', words, log) as chief,
  ):
    try:
      peak = 0
      while chief.poll() is None:
        peak = read_peak(chief.pid) or peak
        time.sleep(0.01)
      assert chief.returncode == 0, log.read_text()
      ps.wait(60)
    finally:
      ps.kill()
      chief.kill()
  return peak


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize('rows', [f'{ROWS}', f'layers.NewRows({ROWS})'])
def test_a_chief_that_resumes_takes_a_slice_more_than_one_that_begins(
  tmp_path, rows
):
  problem = PROBLEM.replace('NUM_ROWS', rows)
  (tmp_path / 'problem.py').write_text(problem)
  begun = train(tmp_path, 10)
  resumed = train(tmp_path, 20)
  assert 'resum' in (tmp_path / 'chief_20.log').read_text()
  # One is read while the one before it is still there; half a table are four.
  assert resumed < begun + 3 * partial_names.SLICE_BYTES
