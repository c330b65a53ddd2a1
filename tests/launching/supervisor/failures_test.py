"""How a failure is put into words, and into an exit code."""

import pytest

from distmnist.launching import jobs
from distmnist.launching.supervisor import failures


@pytest.mark.parametrize(
  ('code', 'exit_code', 'cause', 'words'),
  [
    (3, 3, 'exit code 3', 'ended with exit code 3'),
    (-9, 137, 'killed by SIGKILL', 'killed by SIGKILL'),
    (-11, 139, 'killed by SIGSEGV', 'killed by SIGSEGV'),
    (-40, 168, 'killed by signal 40', 'killed by signal 40'),
  ],
)
def test_a_failure_has_a_cause_and_an_exit_code(code, exit_code, cause, words):
  task = jobs.make_tasks(['x:1'], ['x:2'], [])[1]
  failure = failures.Failure(task, code)
  assert (failure.exit_code, failure.cause) == (exit_code, cause)
  assert str(failure) == f'worker 0 (x:2) {words}'


def test_a_reason_says_more_than_a_code():
  task = jobs.make_tasks(['x:1'], ['x:2'], [])[1]
  failure = failures.Failure(task, 3, reason='its host has died')
  assert (failure.exit_code, failure.cause) == (3, 'its host has died')
  assert str(failure) == 'worker 0 (x:2): its host has died'


@pytest.mark.parametrize(
  'code, found',
  # 143 and its like are train's own, and 255 is of no signal.
  [(0, 0), (3, 3), (137, -9), (139, -11), (143, 143), (130, 130), (255, 255)],
)
def test_a_shell_says_by_which_signal_a_task_has_ended(code, found):
  assert failures.from_shell(code) == found
