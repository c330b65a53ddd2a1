"""A disk that takes no more: a FIFO that is full and that nobody reads."""

import fcntl
import os
import re
import subprocess
import sys
import time

import pytest

from tests.support.paths import REPO
from tests.support.runner import (
  DEADLINE_SECS,
  SMALL,
  read_report,
  wait_for_line,
)

FLAGS = (
  *SMALL,
  '--log_secs=0.5',
  '--stall_warn_secs=1',
  '--stall_fail_secs=6',
  '--stop_grace_secs=2',  # What hangs is not saved.
)
PIPE_BYTES = 4096


@pytest.fixture
def hang():
  """Returns hang(path, num_free): a FIFO there for so many bytes more."""
  opened = []

  def hang(path, num_free=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    opened.append(os.open(path, os.O_RDWR | os.O_NONBLOCK))
    fcntl.fcntl(opened[-1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    os.write(opened[-1], bytes(PIPE_BYTES - num_free))

  yield hang
  for fd in opened:
    os.close(fd)


@pytest.mark.daily
@pytest.mark.slow
def test_a_wait_for_a_ps_ends_though_no_metrics_can_be_written(
  tasks, make_real_cluster, tmp_path, hang
):
  logdir = tmp_path / 'run'
  hang(logdir / 'metrics' / 'worker_0' / 'metrics.jsonl')
  flags = *FLAGS, '--train_steps=10000000', f'--logdir={logdir}'
  [ps], [worker] = make_real_cluster(1, 1).start_all(*flags)
  wait_for_line(worker, 'step ')
  tasks.suspend(ps)
  assert tasks.wait(worker) == [3]
  # In a step, or in what follows one.
  said = re.findall(r'no step for \d+ s|has taken \d+ s', worker.output)
  assert len(said) > 2
  assert 'given up (--stall_fail_secs=6)' in worker.last_line


@pytest.mark.slow
def test_a_run_ends_though_no_metrics_can_be_written(tasks, tmp_path, hang):
  logdir = tmp_path / 'run'
  hang(logdir / 'metrics' / 'worker_0' / 'metrics.jsonl')
  flags = *FLAGS, '--train_steps=100', f'--logdir={logdir}'
  # Its last lines are waited for 10 s.
  task = tasks.run(tmp_path / 'log', *flags, '--stall_fail_secs=100')
  assert task.code == 0, task.output
  assert read_report(logdir)['global_step'] == 100
  assert 'metrics.jsonl takes no lines, as its disk does not' in task.output


@pytest.mark.daily
@pytest.mark.slow
def test_a_task_whose_log_takes_no_more_ends(tmp_path, hang):
  hang(tmp_path / 'log', num_free=2000)
  flags = *FLAGS, '--train_steps=10000000', '--log_secs=0'
  with open(tmp_path / 'log', 'wb', buffering=0) as log:
    task = subprocess.run(
      [sys.executable, '-m', 'distmnist.train', *flags],
      stdout=log,
      stderr=log,
      cwd=REPO,
      timeout=DEADLINE_SECS,
    )
  assert task.returncode == 3


PROBLEM = """
import threading
import numpy as np
import tensorflow.compat.v1 as tf

class Hung:
  num_examples = 9
  def read(self, indices):
    if len(indices) > 1:
      threading.Event().wait()
    return np.ones([len(indices), 2]), np.ones(len(indices))

def load(split):
  if split == 'test':
    return Hung()
  return (np.ones([9, 2]), np.ones(9)) if split == 'train' else None

def build(x, is_training):
  return (x @ tf.get_variable('w', [2, 1]))[:, 0]

def loss(y, outputs):
  return (y - outputs) ** 2
"""


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('num_ps', [0, 1])
def test_what_hangs_after_the_last_step_is_named_and_ends(
  tasks, make_real_cluster, tmp_path, num_ps
):
  problem = tmp_path / 'endless.py'
  problem.write_text(PROBLEM)
  flags = (
    *(f'--problem={problem}', '--train_steps=20', '--batch_size=3'),
    *('--stall_warn_secs=1', '--stall_fail_secs=6'),
  )
  if num_ps:
    _, [worker] = make_real_cluster(num_ps, 1).start_all(*flags)
  else:
    worker = tasks.start(tmp_path / 'log', *flags)
  begin = time.monotonic()
  assert tasks.wait(worker) == [3], worker.output
  assert time.monotonic() - begin > 6
  assert 'so far: it waits for examples of endless.py' in worker.output
  assert 'given up (--stall_fail_secs=6)' in worker.last_line
