"""python -m distmnist.stop, without a run and with one."""

import os
import re
import signal
import sys
import time

import pytest

from distmnist import stop
from distmnist.common import cli
from distmnist.storage import paths
from distmnist.watching import metrics_file, stop_file, watched_run
from tests.support import programs
from tests.support.background import Running
from tests.support.runner import SMALL, wait_for_line


@pytest.fixture
def ps(tmp_path, set_flags):
  set_flags(f'--logdir={tmp_path}', '--timeout_secs=0.01')
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a', host='h', pid=1)
  ps.write('sample', state='serving')
  return ps


@pytest.mark.slow
def test_of_a_run_in_a_store_nobody_is_asked(store, set_flags):
  paths.write(f'{store.url}/run/train.flags', b'')
  set_flags(f'--logdir={store.url}/run')
  with pytest.raises(cli.RunError, match=r'no run in --logdir=s3:'):
    stop.main()
  assert paths.list_names(f'{store.url}/run') == ['train.flags']


def test_a_run_that_does_not_end_is_told(ps, tmp_path, capsys):
  with pytest.raises(cli.RunError, match='ps 0 still there 0.01 s after'):
    stop.main()
  assert capsys.readouterr().out.startswith('asked the run in ')
  assert stop_file.read(str(tmp_path))['token']


def test_of_a_run_that_has_ended_nothing_is_asked(ps, tmp_path, capsys):
  ps.write('end', ok=True, text='')
  stop.main()
  assert capsys.readouterr().out == f'{tmp_path}: ended\n'
  assert stop_file.read(str(tmp_path)) == {}


def test_a_run_that_may_be_in_a_queue_is_not_called_stopped(
  set_flags, tmp_path
):
  set_flags(f'--logdir={tmp_path}')
  launcher = metrics_file.Writer(
    *(str(tmp_path), 'launcher', 'x'),
    **{'host': 'h', 'pid': 1, 'launcher': 'slurm', 'tasks': ['worker 0']},
  )
  launcher.write('event', event='left')
  with pytest.raises(
    cli.RunError, match='cancel it where it waits .slurm., or'
  ):
    stop.main()


def test_a_run_that_says_nothing_is_asked_as_well(ps, tmp_path, capsys):
  an_hour_ago = (time.time() - 3600,) * 2
  os.utime(metrics_file.path_of(str(tmp_path), 'ps 0'), an_hour_ago)
  stop.main()
  assert capsys.readouterr().out == (
    f'asked the run in {tmp_path} to save and end\n{tmp_path}: silent 60 min\n'
  )
  assert stop_file.read(str(tmp_path))['token']


def test_it_need_not_wait(ps, set_flags, tmp_path):
  set_flags(f'--logdir={tmp_path}', '--timeout_secs=0')
  stop.main()
  assert stop_file.read(str(tmp_path))['token']


@pytest.mark.slow
@pytest.mark.usefixtures('heed_signals')
def test_a_launch_is_seen_and_stopped_from_another_shell(tmp_path):
  logdir = f'--logdir={tmp_path}/run'
  command = [sys.executable, '-m', 'distmnist.launch', '--num_workers=1']
  command += ['--max_restarts=1', '--', *SMALL, '--train_steps=1000000']
  found = watched_run.WatchedRun(f'{tmp_path}/run')
  with Running(tmp_path, [*command, logdir, '--log_secs=0.5']) as running:

    def wait_for(**wanted):
      def is_so():
        found.look()
        rows = {row.task: row for row in found.state.make_rows()}
        row = rows.get('worker 0')
        return row and all(getattr(row, k) == v for k, v in wanted.items())

      running.wait_until(is_so)

    wait_for(state='training', restarts=0)
    pid = found.state.tasks['worker 0'].start['pid']
    os.kill(pid, signal.SIGKILL)
    wait_for(state='training', restarts=1)
    table = programs.run_forked('status', logdir)[0]
    assert '2 of 2 tasks run; step ' in table
    assert re.search(r'^ps 0 +serving ', table, re.M)
    assert re.search(r'^worker 0 +training +\d+ .* 1$', table, re.M)
    assert 'restart 1 of 1' in programs.run_forked('logs', logdir)[0]
    told = programs.run_forked('stop', logdir)[0]
    assert told.splitlines()[1].startswith(f'{tmp_path}/run: stopped; step ')
    assert running.process.wait(60) == 130
    assert 'stopped by distmnist.stop' in running.stderr.read_text()
  assert 'asks this run to stop' in running.stderr.read_text()
  assert list((tmp_path / 'run').glob('model.ckpt-*.index'))


@pytest.mark.slow
def test_where_no_launcher_waits_the_task_itself_stops_with_0(tasks, tmp_path):
  logdir = f'--logdir={tmp_path}/run'
  task = tasks.start(
    tmp_path / 'log', *SMALL, '--train_steps=1000000', logdir, '--log_secs=0.5'
  )
  wait_for_line(task, 'step ')
  assert 'asked the run' in programs.run_forked('stop', logdir)[0]
  assert tasks.wait(task) == [0]
  assert 'asks this run to stop' in task.output
  assert list((tmp_path / 'run').glob('model.ckpt-*.index'))
