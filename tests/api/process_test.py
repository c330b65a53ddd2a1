"""process: what its callers rely on is tested by training_test and others."""

import os
import signal

import pytest

from distmnist.api import process

_PROGRAM = """
import signal
print('begun', flush=True)
signal.pause()
"""


class _Interrupted(process.Process):
  """Its caller gets a Ctrl-C at each line that the program prints."""

  def _prepare(self, folder):
    return []

  def _take(self, line):
    os.kill(os.getpid(), signal.SIGINT)

  def _read(self, code):
    return None


def test_the_sentence_of_the_task_that_failed_is_found():
  lines = ['step 1', 'distmnist.launch: error: worker 0 failed: why', 'log: x']
  assert process._find_sentence(lines, 1) == 'worker 0 failed: why'
  assert process._find_sentence(['step 1'], 137) == (
    'the training has ended with exit code 137'
  )
  said = process._find_sentence(['python -m distmnist.train'], 0)
  assert said.startswith('nothing was trained, and there is no report: dry_run')


def test_a_ctrl_c_leaves_the_program_running_until_it_is_stopped(
  tmp_path, monkeypatch
):
  (tmp_path / 'waiting.py').write_text(_PROGRAM)
  monkeypatch.setenv('PYTHONPATH', str(tmp_path))
  monkeypatch.setattr(process, 'SORTED_FLAGS', 'waiting')
  with _Interrupted('launch', []) as program:
    with pytest.raises(KeyboardInterrupt):
      program.result()
    assert program.status() == 'running'
    with pytest.raises(TimeoutError, match='still runs'):
      program.result(timeout=0)
  assert program.status() == 'failed'
  with pytest.raises(process.Error):  # As it has been stopped.
    program.result()
