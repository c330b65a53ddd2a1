"""Which lines a launcher shows, and whether a table is below them."""

import logging

import pytest

from distmnist.common import cli, refusals
from distmnist.launching import (
  cluster_flags,  # noqa: F401  --show_logs.
  jobs,
  run_record,
)
from distmnist.launching.screen import screens, table_screen


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
    assert isinstance(screen, table_screen.TableScreen) == has_table
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
