"""The side of the launcher. The whole is in launchers/command_test.py."""

import time

import pytest

from distmnist.launching import host as host_lib
from distmnist.launching.scheduler import job_host, job_meeting


def run(folder, template):
  """Runs ps 0; returns its code, why it has ended, and its log."""
  log = folder / 'log'
  templates = {'ps 0': template}
  with job_host.JobHost(str(folder), templates, 'python3', 5) as host:
    host.start(host_lib.Request('ps 0', (), {}, str(log)))
    deadline, ended = time.monotonic() + 60, []
    while not ended:
      assert time.monotonic() < deadline
      ended = host.poll(1)
    [(name, code)] = ended
    assert name == 'ps 0'
  text = log.read_text() if log.exists() else ''
  return code, host.reasons.get('ps 0', ''), text


@pytest.mark.slow
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
  code, reason, log = run(tmp_path, template)
  assert (code, reason) == (1, f'submit: {words}')
  assert log == f'submit: {words}\n'


@pytest.mark.slow
def test_it_ends_as_the_task_and_shows_what_it_wrote(tmp_path):
  folder = tmp_path / '1'
  tell = f'echo a:1 >{folder}/ps_0.place; echo hello >{folder}/ps_0.out'
  end = f'{tell}; echo 7 >{folder}/ps_0.end # {{name}} {{script}}'
  assert run(tmp_path, end) == (7, '', 'hello\n')
  script = (folder / 'ps_0.sh').read_text()
  assert script.startswith(
    '#!/bin/sh\nexec python3 -m distmnist.launching.scheduler.job'
  )
  assert script.endswith(f" {folder} 'ps 0'\n")


@pytest.mark.slow
def test_why_a_job_does_not_start_its_task_is_shown(tmp_path):
  tell = f"printf 'no python\\ncut' >{tmp_path}/1/ps_0.scheduler; sleep 0.5"
  end = f'{tell}; echo 1 >{tmp_path}/1/ps_0.end # {{script}}'
  assert run(tmp_path, end) == (1, '', 'scheduler: no python\n')


@pytest.mark.slow
def test_a_task_that_was_killed_is_named_by_its_signal(tmp_path):
  end = f'echo -9 >{tmp_path}/1/ps_0.end # {{script}}'
  assert run(tmp_path, end)[0] == -9


@pytest.mark.slow
def test_a_job_that_ends_without_a_word_is_lost(tmp_path, monkeypatch):
  monkeypatch.setattr(job_meeting, 'BEAT_SECS', 0.5)
  template = f'echo a:1 >{tmp_path}/1/ps_0.place; echo "node down"; exit 1'
  code, reason, log = run(tmp_path, f'{template} # {{script}}')
  assert code == 3
  assert reason == 'the job has ended without a word: node down'
  assert log == f'{reason}\n'


@pytest.mark.slow
def test_a_job_that_has_waited_for_long_is_not_lost_once_it_runs(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(job_meeting, 'LOST_SECS', 1.0)
  begin = f'sleep 2; echo a:1 >{tmp_path}/1/ps_0.place'
  end = f'sleep 0.4; echo 0 >{tmp_path}/1/ps_0.end'
  assert run(tmp_path, f'({begin}; {end}) & # {{script}}')[:2] == (0, '')


@pytest.mark.slow
def test_a_folder_that_cannot_be_made_ends_the_task_alone(tmp_path):
  log = tmp_path / 'log'
  log.touch()
  with job_host.JobHost(str(log), {'ps 0': '{script}'}, 'python3', 5) as host:
    host.start(host_lib.Request('ps 0', (), {}, str(log)))
    assert host.poll(1) == [('ps 0', 71)]
  assert host.reasons == {'ps 0': 'nothing was submitted: Not a directory'}
