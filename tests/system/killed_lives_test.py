"""What a report sums up after kills of a whole run, as its metrics know it."""

import re
import subprocess
import sys

import psutil
import pytest

from distmnist.logdir import checkpoints
from distmnist.watching import metrics_file
from tests.support.background import DEADLINE_SECS, Running
from tests.support.paths import REPO
from tests.support.runner import SMALL, read_report

STEPS, SAVED = 6000, 3500  # Global steps of the run, and at its checkpoint.
FLAGS = (
  *(*SMALL, '--batch_size=20', f'--save_steps={SAVED}'),
  *(f'--train_steps={STEPS}', '--log_secs=0.5'),
)


def find_last(logdir):
  """Returns {(task, life): the last sample} of the workers."""
  lines = metrics_file.read_last_samples(str(logdir), 'worker', [])
  return {(line['task'], line['life']): line for line in lines}


def is_beyond_a_checkpoint(logdir):
  """Whether both workers have shown steps after the one that was saved."""
  steps = [line.get('step') or 0 for line in find_last(logdir).values()]
  saved = checkpoints.list_checkpoints(str(logdir))
  return bool(saved) and len(steps) == 2 and min(steps) > SAVED + 100


def kill_fork_server(launcher, pids):
  psutil.Process(int(re.search(r'fork server (\d+)', pids)[1])).kill()


def kill_tasks(launcher, pids):
  for pid in re.findall(r'(?:ps|worker) \d+ (\d+)', pids):
    psutil.Process(int(pid)).kill()


def kill_launcher(launcher, pids):
  launcher.kill()


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('kill', [kill_fork_server, kill_tasks, kill_launcher])
def test_a_report_sums_the_last_lines_of_all_lives(tmp_path, kill):
  logdir = tmp_path / 'run'
  command = [sys.executable, '-m', 'distmnist.launch', '--num_ps=1']
  command += ['--num_workers=2', '--max_restarts=3', '--', *FLAGS]
  command += [f'--logdir={logdir}']
  with Running(tmp_path, command, cwd=REPO) as running:
    running.wait_until(lambda: is_beyond_a_checkpoint(logdir))
    pids = running.stderr.read_text()
    tasks = psutil.Process(running.process.pid).children(recursive=True)
    kill(running.process, pids)
    if kill is kill_launcher:
      running.process.wait(DEADLINE_SECS)
      psutil.wait_procs(tasks, DEADLINE_SECS)
      killed = find_last(logdir)
      done = subprocess.run(command, cwd=REPO, timeout=2 * DEADLINE_SECS)
      assert done.returncode == 0
    else:
      assert running.process.wait(2 * DEADLINE_SECS) == 0
      begun = find_last(logdir)
      # Those of the first start of each task.
      first = {}
      for task, life in begun:
        first.setdefault(task, life)
      killed = {k: v for k, v in begun.items() if first[k[0]] == k[1]}
  last = find_last(logdir)
  report = read_report(logdir)
  assert len(killed) == 2 and len(last) == 4
  for name in 'local_steps', 'pushes', 'bytes_pushed':
    assert report[name] == sum(line[name] for line in last.values()), name
  assert report['examples'] == sum(line['examples'] for line in last.values())
  # Its tasks end in order if only the launcher is killed.
  has_ended = {line['state'] == 'ending' for line in killed.values()}
  assert has_ended == {kill is kill_launcher}
  assert report['is_complete'] == (kill is kill_launcher)
  # What was known of the steps after the checkpoint has been made once more.
  restored = min(
    line['sessions'][0][0] for key, line in last.items() if key not in killed
  )
  known = max(line['sessions'][-1][1] for line in killed.values())
  assert SAVED <= restored <= known
  assert report['steps_lost'] == known - restored
  assert kill is kill_launcher or report['steps_lost'] > 50
