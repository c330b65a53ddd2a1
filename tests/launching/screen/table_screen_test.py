"""Lines above a table that is drawn anew, as a terminal has them."""

import io
import shlex
import shutil
import subprocess
import sys

import pytest
from rich import console as console_lib

from distmnist.launching.screen import table_screen
from distmnist.watching import metrics_file
from tests.support.background import wait_until
from tests.support.runner import REPO, SMALL


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
  screen = table_screen.TableScreen({'': log}, str(tmp_path), console)
  yield screen
  screen.finish()


def test_lines_come_above_the_table_and_steps_not_at_all(screen, out, tmp_path):
  with open(tmp_path / 'worker_0.log', 'a') as log:
    log.write('bytes held: [ps 0] 954,136\nstep 1/9  cost 2\n')
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
    for line in metrics_file.read(f'{tmp_path}/run')
    if (line['kind'], line['task']) == ('evaluation', 'evaluator 0')
  ]
  assert evaluated[-1]['step'] == 100
  assert list((tmp_path / 'run' / 'evaluator_0').glob('events.out.*'))
  assert text.count('memory') == 1, text
  assert text.index('test accuracy') < text.index('memory')


def test_a_table_that_cannot_be_drawn_ends_no_run(screen, capsys, monkeypatch):
  def fail(*_):
    raise ValueError('odd')

  monkeypatch.setattr(table_screen.live_table, 'make', fail)
  for _ in range(2):
    screen._next_draw = 0.0
    screen.update()
  assert capsys.readouterr().err == (
    'distmnist.launch: the table cannot be drawn: ValueError: odd\n'
  )
