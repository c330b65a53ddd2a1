"""process: what its callers rely on is tested by training_test and others."""

import os
import signal
import subprocess
import sys

from distmnist.api import process
from tests.support.paths import REPO

# A caller that gets a Ctrl-C while it waits for a program that waits for ever.
_CALLER = """
import sys

from distmnist.api import process
from distmnist.common import child_program


class Waiting(process.Process):
  def _prepare(self, folder):
    return []

  def _take(self, line):
    pass

  def _read(self, code):
    return None


child_program.SORTED_FLAGS = 'waiting'
with Waiting('launch', []) as program:
  try:
    print('waits', flush=True)
    program.result()
  except KeyboardInterrupt:
    print(program.status())
  try:
    program.result(timeout=0)
  except TimeoutError as error:
    print(error)
print(program.status())
try:
  program.result()
except process.Error:
  print('an error, as it was stopped')
"""


def test_the_sentence_of_the_task_that_failed_is_found():
  lines = ['step 1', 'distmnist.launch: error: worker 0 failed: why', 'log: x']
  assert process._find_sentence(lines, 1) == 'worker 0 failed: why'
  assert process._find_sentence(['step 1'], 137) == (
    'the training has ended with exit code 137'
  )
  said = process._find_sentence(['python -m distmnist.train'], 0)
  assert said.startswith('nothing was trained, and there is no report: dry_run')


def test_a_ctrl_c_leaves_the_program_running_until_it_is_stopped(tmp_path):
  (tmp_path / 'waiting.py').write_text('import signal; signal.pause()')
  (tmp_path / 'caller.py').write_text(_CALLER)
  env = {**os.environ, 'PYTHONPATH': f'{tmp_path}:{REPO}'}
  command = [sys.executable, str(tmp_path / 'caller.py')]
  with subprocess.Popen(
    command, env=env, text=True, stdout=subprocess.PIPE
  ) as caller:
    assert caller.stdout.readline() == 'waits\n'
    caller.send_signal(signal.SIGINT)
    assert caller.stdout.read().splitlines() == [
      'running',
      'the training still runs after 0 s',
      'failed',
      'an error, as it was stopped',
    ]
  assert caller.returncode == 0
