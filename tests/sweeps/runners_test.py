"""What all runners do alike: wait, stop, and keep to a limit."""

import math
import signal

from distmnist.common import cli
from distmnist.sweeps import runners


class FakeRunner(runners.Runner):
  """Its commands end in the turns that the test says."""

  _kill_secs = 0.05

  def __init__(self, *turns):
    super().__init__()
    self.turns = list(turns)
    self.told = []

  def __enter__(self):
    return self

  def __exit__(self, *error):
    pass

  def _begin(self, command):
    return command

  def _turn(self, secs=math.inf):
    names = self.turns.pop(0) if self.turns else ()
    if names == 'signal':
      self.signals.append(signal.SIGINT)
      return []
    return [(self._running.pop(name).name, 0) for name in names]

  def _tell(self, signum, grace_secs):
    self.told.append(signum)

  def _kill(self, signum):
    self.told.append('kill')


def start(runner, folder, names):
  return [
    runner.start(runners.Command(name, [], str(folder / name)))
    for name in names
  ]


def test_wait_returns_with_the_first_end_or_a_signal(tmp_path):
  runner = FakeRunner('', 'b', 'signal', 'a')
  assert runner.wait() == []  # Nothing runs.
  start(runner, tmp_path, 'ab')
  assert runner.wait() == [('b', 0)]
  assert runner.wait() == []
  assert runner.signals == [signal.SIGINT]


def test_a_stop_tells_then_kills_then_gives_up(tmp_path):
  runner = FakeRunner('a')
  start(runner, tmp_path, 'ab')
  ended = runner.stop(signal.SIGTERM, 0.05)
  assert ended == [('a', 0), ('b', -signal.SIGKILL)]
  assert runner.told == [signal.SIGTERM, 'kill']
  assert runner.wait() == []


def test_a_second_signal_ends_the_grace(tmp_path):
  runner = FakeRunner('signal', 'a')
  start(runner, tmp_path, 'a')
  # The grace would be longer than any test.
  assert runner.stop(signal.SIGTERM, 3600) == [('a', 0)]
  assert runner.told == [signal.SIGTERM, 'kill']


def test_a_limit_is_noted_unless_the_command_was_done(tmp_path):
  log = tmp_path / 'log'
  limit = runners.Limit(0.5, 1)
  assert limit.note(str(log), 0) == 0
  assert not log.exists()
  assert limit.note(str(log), -9) == cli.FAILED
  assert log.read_text() == (
    'distmnist.sweep: error: not done within --trial_timeout_secs=0.5\n'
  )
