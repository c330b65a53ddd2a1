"""What is left of a run, and what comes."""

import os
import time

import pytest

from distmnist.common import owner_file
from distmnist.watching import metrics_file, watched_run


def test_what_is_left_is_tasks_and_a_launcher(tmp_path):
  launcher = metrics_file.Writer(
    *(str(tmp_path), 'launcher', 'x'), host='h', pid=1, tasks=['ps 0']
  )
  launcher.write('event', event='started', about='ps 0', attempt=1)
  found = watched_run.WatchedRun(str(tmp_path))
  found.look()
  assert found.find_left() == ['the launcher']
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a', host='h', pid=1)
  ps.write('sample', state='serving')
  found.look()
  assert found.find_left() == ['ps 0', 'the launcher']
  ps.write('end', ok=True, text='')
  found.look()
  assert found.find_left() == []  # A launcher that was killed has no end.


def test_a_launcher_known_dead_leaves_only_live_tasks(tmp_path):
  dead = {**owner_file.describe_self(), 'start': 'long ago'}
  process = {name: dead[name] for name in ('pid', 'machine', 'start')}
  launcher = metrics_file.Writer(
    *(str(tmp_path), 'launcher', 'x'),
    **{'host': 'h', 'pid': 1, 'tasks': ['ps 0', 'worker 0']},
    process=process,
  )
  for about in ('ps 0', 'worker 0'):
    launcher.write('event', event='started', about=about, attempt=1)
  found = watched_run.WatchedRun(str(tmp_path))
  states = [row.state for row in found.look().make_rows()]
  assert states == ['never seen', 'never seen']
  assert found.find_left() == []
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a', host='h', pid=1)
  ps.write('sample', state='serving')
  found.look()
  assert found.find_left() == ['ps 0']


def test_a_run_that_is_moved_aside_is_forgotten(tmp_path):
  worker = metrics_file.Writer(str(tmp_path), 'worker 0', 'a', host='h', pid=1)
  worker.write('sample', state='training', step=9)
  worker.write('evaluation', split='test', step=9, metrics={'accuracy': 0.9})
  found = watched_run.WatchedRun(str(tmp_path))
  assert found.look().step == 9
  (tmp_path / 'metrics' / 'worker_0').rename(
    tmp_path.parent / f'{tmp_path.name}_aside'
  )
  assert found.look().evaluations == {}
  worker.write('sample', state='training', step=1)
  state = found.look()
  assert (state.step, state.evaluations) == (1, {})


@pytest.mark.slow
def test_a_file_server_whose_clock_is_wrong_makes_nobody_silent(
  tmp_path, monkeypatch
):
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a', host='h', pid=1)
  ps.write('sample', state='serving')
  hour_ago = time.time() - 3600
  monkeypatch.setattr(watched_run.disk, 'see_now', lambda folder: hour_ago)
  path = metrics_file.path_of(str(tmp_path), 'ps 0')
  os.utime(path, (hour_ago, hour_ago))
  found = watched_run.WatchedRun(str(tmp_path))
  found.look()
  assert found.find_left() == ['ps 0']
  os.utime(path, (hour_ago - 60, hour_ago - 60))
  found.look()
  assert found.find_left() == []
