"""A chief that resumes has no table, nor half of one, in its memory."""

import os
import re
import subprocess
import sys
import time

import pytest

from distmnist.common import ports
from tests.support.paths import PYTHONPATH

WIDTH = 16
PROBLEM = f"""
import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.nn import layers

def load(split):
  n = {{'train': 2000, 'test': 100}}.get(split)
  if n:
    ids = np.random.default_rng(n).integers(0, NUM_IDS, [n, 4])
    return ids, (ids[:, 0] % 2).astype(np.float32)

def build(x, is_training):
  rows = layers.embedding(x, NUM_ROWS, {WIDTH}, 'ads')
  return tf.reduce_sum(rows, [1, 2])

def loss(y, outputs):
  return tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=outputs)
"""

PROGRAM = """
from distmnist.common import partial_names
partial_names.SLICE_BYTES = {}
from distmnist import train
train.run()
"""


def start(role, words, log, slice_bytes):
  program = PROGRAM.format(slice_bytes)
  argv = [sys.executable, '-c', program, f'--job_name={role}']
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


def train(folder, steps, slice_bytes):
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
    start('ps', words, folder / f'ps_{steps}.log', slice_bytes) as ps,
    start('worker', words, log, slice_bytes) as chief,
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


# 64 or 256 MB on the ps, and as much for Adagrad; slices of a save are 32 MB.
@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
  'num_ids, rows, slice_bytes',
  [
    (1_000_000, '1_000_000', 2**23),
    (4_000_000, '4_000_000', 2**25),
    (4_000_000, 'layers.NewRows(4_000_000)', 2**25),
  ],
  ids=['small', 'rows', 'new rows'],
)
def test_a_chief_that_resumes_takes_a_slice_more_than_one_that_begins(
  tmp_path, num_ids, rows, slice_bytes
):
  problem = PROBLEM.replace('NUM_ROWS', rows).replace('NUM_IDS', str(num_ids))
  (tmp_path / 'problem.py').write_text(problem)
  begun = train(tmp_path, 10, slice_bytes)
  resumed = train(tmp_path, 20, slice_bytes)
  assert 'resum' in (tmp_path / 'chief_20.log').read_text()
  # One is read while the one before it is still there; half a table are four.
  assert resumed < begun + 3 * slice_bytes
