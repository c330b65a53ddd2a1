"""Whole launches as a user starts them: to their end, again and again."""

import contextlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import jsonschema
import pytest

from distmnist.watching import metrics_file
from tests.support import programs
from tests.support.runner import REPO, SMALL, read_report


def launch(tmp_path, *flags):
  """Runs a launch of 1 ps and 2 workers to its end.

  Returns:
    (exit code, stdout, stderr, seconds from the last step on the screen to
    the end).
  """
  command = [sys.executable, '-m', 'distmnist.launch', '--num_ps=1']
  command += ['--num_workers=2', f'--logs_dir={tmp_path}/logs', '--']
  with open(tmp_path / 'stderr', 'w+') as stderr:
    lines, last_step = [], None
    with subprocess.Popen(
      [*command, *SMALL, *flags],
      cwd=REPO,
      stdout=subprocess.PIPE,
      stderr=stderr,
      text=True,
    ) as process:
      for line in process.stdout:
        lines.append(line)
        if line.startswith('step '):
          last_step = time.monotonic()
    end_secs = time.monotonic() - last_step
    stderr.seek(0)
    return process.returncode, ''.join(lines), stderr.read(), end_secs


def find_tasks(folder):
  """Returns the pids of all processes that write into `folder`."""
  found = set()
  for stdout in pathlib.Path('/proc').glob('[0-9]*/fd/1'):
    with contextlib.suppress(OSError):
      if os.readlink(stdout).startswith(f'{folder}/'):
        found.add(int(stdout.parts[2]))
  return found


def check_metrics(logdir):
  """What each task has said of itself is as the schema says, to the end."""
  path = REPO / 'distmnist' / 'watching' / 'metrics.schema.json'
  validator = jsonschema.Draft202012Validator(json.loads(path.read_text()))
  tasks = {}
  for line in metrics_file.iterate(str(logdir)):
    validator.validate(line)
    tasks.setdefault(line['task'], []).append(line)
  assert tasks.keys() >= {'ps 0', 'worker 0', 'worker 1'}
  for lines in tasks.values():
    assert (lines[0]['kind'], lines[-1]['kind']) == ('start', 'end')
    assert lines[-1]['ok']
  assert tasks['ps 0'][-2]['received_bytes'] > 0
  assert tasks['worker 0'][-2]['step'] >= 60


@pytest.mark.daily
@pytest.mark.slow
def test_workers_start_one_after_the_other(tmp_path):
  programs.run_forked(
    *('launch', '--num_ps=1', '--num_workers=3', '--', *SMALL),
    *('--train_steps=1000', '--startup_delay_steps=300'),
    f'--logdir={tmp_path}/run',
  )
  for number, start in (1, 300), (2, 600):
    text = (tmp_path / 'run' / 'logs' / f'worker_{number}.log').read_text()
    [waits, *_] = re.findall(r'^(?:waits for global|step) .*', text, re.M)
    assert waits.startswith(f'waits for global step {start} to start ')
  steps = [w['local_steps'] for w in read_report(tmp_path / 'run')['workers']]
  assert sum(steps) == 1000 and steps[0] >= 300
  assert steps[1] <= 700 and steps[2] <= 400


@pytest.mark.slow
def test_a_launch_ends_with_the_accuracy_and_nothing_else(tmp_path):
  code, out, err, end_secs = launch(
    tmp_path, '--train_steps=60', f'--logdir={tmp_path}/run'
  )
  assert code == 0, out + err
  assert re.search(r'^test accuracy +0\.\d{4}$', out, re.M)
  assert 'sent no final' not in out
  assert end_secs < 25  # The chief would wait for 30 s.
  check_metrics(tmp_path / 'run')
  isolated, tasks, pids = err.splitlines()
  assert pids.startswith('distmnist.launch: pids on this machine: fork ')
  assert re.match(
    'distmnist.launch: the tasks are (isolated: they alone can reach their '
    r'ports$|not isolated \()',
    isolated,
  )
  assert tasks == (
    'distmnist.launch: 1 ps and 2 workers on this machine, logs in '
    f'{tmp_path}/logs'
  )
  assert sorted(os.listdir(tmp_path / 'logs')) == [
    'ps_0.log',
    'worker_0.log',
    'worker_1.log',
  ]
  assert not find_tasks(tmp_path)


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_launches_in_a_row_end_at_once(tmp_path):
  slow = []
  for i in range(4):
    flags = ['--train_steps=100'] + ['--sync_replicas'] * (i % 2)
    code, out, err, end_secs = launch(tmp_path, *flags)
    assert code == 0, out + err
    if end_secs >= 5 or 'waiting at the end' in out:
      slow.append(f'{end_secs:.1f} s:\n{out}')
  # Where the machine is busy it may be slow once.
  assert len(slow) <= 1, '\n'.join(slow)
