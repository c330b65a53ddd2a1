"""Which lines a launcher shows, and whether a table is below them."""

import io
import logging
import shlex
import shutil
import subprocess
import sys

import pytest
from rich import console as console_lib

from distmnist.common import cli, refusals
from distmnist.launching import (
  cluster_flags,  # noqa: F401  --show_logs.
  jobs,
  run_record,
)
from distmnist.launching.screen import screens
from distmnist.watching import metrics_file
from tests.support.background import wait_until
from tests.support.runner import REPO, SMALL


def check(launcher, logdir, no_wait=None):
  refusals.refuse(
    screens.REFUSALS, launcher=launcher, logdir=logdir, no_wait=no_wait
  )


def append(path, text):
  with open(path, 'a') as file:
    file.write(text)


def test_the_lines_of_all_have_the_name_of_their_task(tmp_path, capsys):
  cluster = jobs.make_tasks(['a:1'], ['b:1', 'c:1'], [])
  screen = screens.make(tmp_path, cluster, 'all')
  append(tmp_path / 'worker_1.log', 'one\nstep 2\nthr')
  append(tmp_path / 'ps_0.log', 'zero\n')
  screen.update()
  assert capsys.readouterr().out == (
    '[ps 0] zero\n[worker 1] one\n[worker 1] step 2\n'
  )
  screen.finish()
  assert capsys.readouterr().out == '[worker 1] thr\n'


def test_what_is_logged_is_shown_with_the_logs_of_tasks(tmp_path, capsys):
  screen = screens.make(str(tmp_path), [], 'all')
  logging.getLogger('distmnist.launching.x').info('one')
  assert capsys.readouterr().err == 'distmnist.launch: one\n'
  screen.finish()


@pytest.mark.parametrize(
  ('wanted', 'is_terminal', 'has_table'),
  [
    ('auto', True, True),
    ('auto', False, False),
    ('on', False, True),
    ('off', True, False),
  ],
)
def test_a_table_is_for_a_terminal(
  tmp_path, set_flags, monkeypatch, wanted, is_terminal, has_table
):
  set_flags(f'--live_table={wanted}')
  monkeypatch.setattr(screens.sys.stdout, 'isatty', lambda: is_terminal)
  monkeypatch.setenv('TERM', 'xterm')
  words = (f'--logdir={tmp_path}',)
  job = jobs.Job(train_flags=words, given=words)
  with run_record.opened(job, 'local') as record:
    screen = screens.make(str(tmp_path), [], 'all', record)
    assert isinstance(screen, screens.TableScreen) == has_table
    screen.finish()


def test_a_table_needs_a_logdir(set_flags):
  set_flags('--live_table=on')
  check('local', 'run')
  with pytest.raises(cli.UsageError, match='on this file system, after the --'):
    check('local', None)
  with pytest.raises(cli.UsageError, match='on this file system, after the --'):
    check('local', 'gs://a/b')


@pytest.mark.parametrize(
  ('launcher', 'no_wait', 'message'),
  [
    ('kubernetes', None, 'leave it out .--apply shows the chief.'),
    ('slurm', '--noslurm_wait', 'and with --noslurm_wait it does not'),
  ],
)
def test_what_a_launcher_does_not_show_is_refused(
  set_flags, launcher, no_wait, message
):
  set_flags()
  check(launcher, 'run', no_wait)
  set_flags('--show_logs=all')
  with pytest.raises(cli.UsageError, match=f'--show_logs=all .*{message}'):
    check(launcher, 'run', no_wait)
  set_flags('--live_table=on')
  with pytest.raises(cli.UsageError, match=f'--live_table=on .*{message}'):
    check(launcher, 'run', no_wait)


@pytest.fixture
def out():
  return io.StringIO()


@pytest.fixture
def screen(tmp_path, out):
  ps = metrics_file.Writer(str(tmp_path), 'ps 0', 'a', host='h', pid=1)
  ps.write('sample', state='serving')
  log = tmp_path / 'worker_0.log'
  log.write_text('old\n')
  console = console_lib.Console(
    file=out, force_terminal=True, width=90, height=20
  )
  screen = screens.TableScreen({'': log}, str(tmp_path), console)
  yield screen
  screen.finish()


def test_lines_come_above_the_table_and_steps_not_at_all(screen, out, tmp_path):
  with open(tmp_path / 'worker_0.log', 'a') as log:
    log.write('bytes held: [ps 0] 954,136\nstep 1/9  loss 2\n')
  screen.update()
  text = out.getvalue()
  assert text.index('bytes held: [ps 0] 954,136') < text.index('ps 0')
  assert 'step 1/9' not in text
  assert 'serving' in text


def test_it_is_drawn_now_and_then(screen, out):
  screen.update()
  before = len(out.getvalue())
  screen.update()
  assert len(out.getvalue()) == before
  screen._next_draw = 0.0
  screen.update()
  assert len(out.getvalue()) > before


def test_lines_of_ours_go_where_errors_go(screen, capsys):
  screen.print_line('stopped by SIGINT')
  assert capsys.readouterr().err == 'distmnist.launch: stopped by SIGINT\n'


@pytest.mark.daily
@pytest.mark.slow
def test_a_terminal_shows_the_table(tmp_path):
  tmux = shutil.which('tmux')
  if not tmux:
    pytest.skip('no tmux on this machine')
  at = [tmux, '-L', f'distmnist_{tmp_path.name}', '-f', '/dev/null']
  command = [sys.executable, '-m', 'distmnist.launch', '--num_workers=1']
  command += ['--evaluator', '--', *SMALL, '--train_steps=100']
  command += [f'--logdir={tmp_path}/run']
  shell = f'{shlex.join(command)}; echo ended with $?; cat'

  def capture():
    done = subprocess.run(
      [*at, 'capture-pane', '-p'], capture_output=True, text=True
    )
    return done.stdout

  subprocess.run(
    [*at, 'new-session', '-d', '-x', '80', '-y', '50', shell],
    cwd=REPO,
    check=True,
  )
  try:
    wait_until(lambda: 'ended with' in capture(), capture)
    text = capture()
  finally:
    subprocess.run([*at, 'kill-server'], capture_output=True)
  assert 'ended with 0' in text
  lines = [line.split() for line in text.splitlines()]
  assert ['ps', '0', 'ended'] in [words[:3] for words in lines]
  assert ['worker', '0', 'ended', '100'] in [words[:4] for words in lines]
  assert ['evaluator', '0', 'ended'] in [words[:3] for words in lines], text
  evaluated = [
    line
    for line in metrics_file.iterate(f'{tmp_path}/run')
    if (line['kind'], line['task']) == ('evaluation', 'evaluator 0')
  ]
  assert evaluated[-1]['step'] == 100
  assert list(
    (tmp_path / 'run' / 'metrics' / 'evaluator_0').glob('events.out.*')
  )
  assert text.count('memory') == 1, text
  assert text.index('test accuracy') < text.index('memory')


def test_a_table_that_cannot_be_drawn_ends_no_run(screen, capsys, monkeypatch):
  def fail(*_):
    raise ValueError('odd')

  monkeypatch.setattr(screens.live_table, 'make', fail)
  for _ in range(2):
    screen._next_draw = 0.0
    screen.update()
  assert capsys.readouterr().err == (
    'distmnist.launch: the table cannot be drawn: ValueError: odd\n'
  )
