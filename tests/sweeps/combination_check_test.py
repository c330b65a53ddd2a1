"""The check of all combinations, with a runner that plays its part."""

import types

import pytest

from distmnist.common import cli, files
from distmnist.sweeps import combination_check, trials


class FakeRunner:
  """Ends with `code`, after it has written `mistakes`."""

  def __init__(self, mistakes=None, code=0, log=''):
    self.mistakes, self.code, self.log = mistakes, code, log
    self.stopped = False

  def start(self, command):
    assert command.env == {'SENT': 'x'}
    (path,) = command.argv[3:]
    self.asked = files.read_json(path)
    if self.mistakes is not None:
      files.write_json(f'{path}.checked', self.mistakes)
    with open(command.log, 'w') as file:
      file.write(self.log)
    return 0

  def wait(self):
    return [] if self.code is None else [('check', self.code)]

  def stop(self, grace_secs):
    self.stopped = True


@pytest.fixture
def check(tmp_path):
  found = trials.make_trials([{'a': '1'}, {'a': '2'}], 'x')
  command = types.SimpleNamespace(
    spec=types.SimpleNamespace(num_ps=1, num_workers=2),
    env={'SENT': 'x'},
    make_train_flags=lambda trial, rung: [trial.name, str(rung)],
  )
  return lambda runner: combination_check.check(
    runner, command, found, str(tmp_path)
  )


def test_all_are_checked_at_once_and_nothing_is_left(check, tmp_path):
  runner = FakeRunner(['', ''])
  check(runner)
  assert runner.asked == {
    'num_ps': 1,
    'num_workers': 2,
    'needs_data': True,
    'flags': [['01', '0'], ['02', '0']],
  }
  assert list(tmp_path.iterdir()) == []


def test_the_first_mistake_is_named(check):
  with pytest.raises(cli.UsageError, match='started: with a=2: too big$'):
    check(FakeRunner(['', 'too big']))
  with pytest.raises(cli.UsageError, match=r'a=1: no \(2 of 2 cannot work\)$'):
    check(FakeRunner(['no', 'too big']))


def test_a_check_that_fails_says_why(check):
  log = 'distmnist.check_flags: error: no memory\n'
  with pytest.raises(cli.RunError, match='cannot be checked: no memory'):
    check(FakeRunner(code=1, log=log))


def test_a_signal_ends_it(check):
  runner = FakeRunner(code=None)
  check(runner)
  assert runner.stopped
