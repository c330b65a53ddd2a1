"""The side of the launcher. The whole is in launchers/command_test.py."""

import os
import subprocess
import sys

import pytest

from distmnist.launching.scheduler import job_client
from tests.support.paths import REPO


def start(folder, template, **constants):
  argv = job_client.make_argv(str(folder), 'ps 0', template, 'python3')
  sets = ''.join(f'm.job_meeting.{n} = {v}; ' for n, v in constants.items())
  program = f'import {argv[2]} as m; {sets}m.run()'
  return subprocess.run(
    [sys.executable, '-c', program, *argv[3:]],
    cwd=REPO,
    env={**os.environ, 'TOO_LATE': '1'},
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    timeout=60,
  )


@pytest.mark.parametrize(
  ('template', 'words'),
  [
    ('echo "no such queue" >&2; exit 3; {script}', 'no such queue'),
    ('kill -9 $$; {script}', 'killed by SIGKILL'),
  ],
)
def test_what_the_scheduler_refuses_is_told_in_its_words(
  tmp_path, template, words
):
  done = start(tmp_path, template)
  assert done.returncode == 1
  assert done.stdout == f'submit: {words}\n'


def test_it_ends_as_the_task_and_shows_what_it_wrote(tmp_path):
  folder = tmp_path / '1'
  tell = f'echo a:1 >{folder}/ps_0.place; echo hello >{folder}/ps_0.out'
  done = start(
    tmp_path, f'{tell}; echo 7 >{folder}/ps_0.end # {{name}} {{script}}'
  )
  assert (done.returncode, done.stdout) == (7, 'hello\n')
  script = (folder / 'ps_0.sh').read_text()
  assert script.startswith(
    '#!/bin/sh\nexec python3 -m distmnist.launching.scheduler.job'
  )
  assert script.endswith(f" {folder} 'ps 0'\n")


def test_why_a_job_does_not_start_its_task_is_shown(tmp_path):
  tell = f"printf 'no python\\ncut' >{tmp_path}/1/ps_0.scheduler; sleep 0.5"
  done = start(tmp_path, f'{tell}; echo 1 >{tmp_path}/1/ps_0.end # {{script}}')
  assert (done.returncode, done.stdout) == (1, 'scheduler: no python\n')


def test_a_task_that_was_killed_is_named_by_its_signal(tmp_path):
  done = start(tmp_path, f'echo -9 >{tmp_path}/1/ps_0.end # {{script}}')
  assert done.returncode == -9


@pytest.mark.slow
def test_a_job_that_ends_without_a_word_is_lost(tmp_path):
  template = f'echo a:1 >{tmp_path}/1/ps_0.place; echo "node down"; exit 1'
  done = start(tmp_path, f'{template} # {{script}}', BEAT_SECS=0.5)
  assert done.returncode == 3
  assert done.stdout == 'the job has ended without a word: node down\n'
