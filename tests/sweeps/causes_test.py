"""The cause of a failure is found in the log."""

import pytest

from distmnist.sweeps import causes


@pytest.mark.parametrize(
  'log, code, cause',
  [
    ('', 1, 'exit code 1'),
    ('step 1\n', -9, 'killed by SIGKILL'),
    (
      'Traceback\n  x\nValueError: boom\n',
      70,
      'ValueError: boom (exit code 70)',
    ),
    ('distmnist.train: error: a\nI leave\n', 1, 'a'),
    ('my-loop.py: error: a\n', 1, 'a'),
    ('srun: error: a\n', 1, 'srun: error: a (exit code 1)'),
    (
      'distmnist.launch: the last lines of worker 1:\n'
      '  | step 3\n  | distmnist.train: error: the cost is nan\n'
      'distmnist.launch: error: worker 1 (x:1) failed first: exit code 1\n',
      1,
      'the cost is nan',
    ),
    (
      'distmnist.launch: error: ps 0 (x:1) failed first: killed by SIGKILL\n',
      137,
      'distmnist.launch: error: ps 0 (x:1) failed first: killed by SIGKILL '
      '(exit code 137)',
    ),
  ],
)
def test_the_cause_is_the_last_error(tmp_path, log, code, cause):
  path = tmp_path / 'log'
  path.write_text(log)
  assert causes.find(str(path), 0, code) == cause


def test_the_cause_is_not_that_of_an_earlier_run(tmp_path):
  text = 'distmnist.train: error: old\n'
  path = tmp_path / 'log'
  path.write_text(text)
  assert causes.find(str(path), len(text), 3) == 'exit code 3'
