"""process: what its callers rely on is tested by training_test and others."""

import os
import signal
import subprocess
import sys
import types

import pytest

from distmnist.api import process
from tests.support.paths import REPO

# A caller that gets a Ctrl-C while it waits for a program that waits for ever.
_CALLER = """
import sys

from distmnist.api import process
from distmnist.common import child_program

child_program.SORTED_FLAGS = 'waiting'
with process.Process('launch', [], print, lambda code: None) as program:
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


@pytest.mark.parametrize(
  'problem, settings, words',
  [
    (None, {}, []),
    ('mine.py', {'epochs': 2}, ['--problem=mine.py', '--epochs=2']),
    (
      types.SimpleNamespace,
      {'resume': None, 'sync_replicas': True, 'use_locking': False},
      None,
    ),
    (None, {'trace_steps': [1, 2]}, ['--trace_steps=1,2']),
    (
      'mine.py',
      {'epochs': 2, 'flagfile': 'a.flags', 'units': 3},
      ['--flagfile=a.flags', '--problem=mine.py', '--epochs=2', '--units=3'],
    ),
  ],
)
def test_settings_are_flags(problem, settings, words):
  if words is None:
    problem = types.ModuleType('mine')
    problem.__file__ = '/some/mine.py'
    words = ['--problem=/some/mine.py', '--sync_replicas', '--nouse_locking']
  assert process.make_words(problem, settings) == words


def test_the_sentence_of_the_task_that_failed_is_found():
  lines = ['step 1', 'distmnist.launch: error: worker 0 failed: why', 'log: x']
  assert process._find_sentence(lines, 1) == 'worker 0 failed: why'
  assert process._find_sentence(['step 1'], 137) == (
    'the training has ended with exit code 137'
  )
  said = process._find_sentence(['python -m distmnist.train'], 0)
  assert said.startswith('nothing was trained, and there is no report: dry_run')


def test_an_error_is_said_by_the_exception_alone():
  lines = ['worker 0: error: a', 'distmnist.launch: error: b', 'step 1']
  taken = []
  take = process.without_error(taken.append)
  for line in lines:
    take(line)
  assert taken == [lines[0], lines[2]]


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
