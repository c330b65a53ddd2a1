"""The rules for commands on any host: wait, stop, keep a limit, restart."""

import signal

import pytest

from distmnist.common import cli
from distmnist.sweeps import runners
from tests.support.fake_host import FakeHost


class DeafHost(FakeHost):
  """Its commands end in the turns that the test says, and do not heed signals.

  A turn may also be a signal to this process, an int.
  """

  def signal(self, names, signum):
    self.sent += [(name, signum) for name in names]

  def poll(self, timeout_secs=None):
    end = super().poll(timeout_secs)
    if isinstance(end, int):
      self.signals.append(end)
      return []
    return end


def make(host, grace_secs=3600):
  return runners.Runner(host, grace_secs)


def start(runner, folder, *names, **fields):
  return [
    runner.start(runners.Command(name, [], str(folder / name), **fields))
    for name in names
  ]


def test_wait_returns_with_the_first_end_or_a_signal(tmp_path):
  runner = make(DeafHost([[], [('b', 0)], signal.SIGINT, [('a', 0)]]))
  assert runner.wait() == []  # Nothing runs.
  assert start(runner, tmp_path, 'a', 'b') == [0, 0]
  assert runner.wait() == [('b', 0)]
  assert runner.wait() == []
  assert runner.signals == [signal.SIGINT]


def test_a_stop_tells_then_kills_then_gives_up(tmp_path, monkeypatch):
  monkeypatch.setattr(runners, '_KILL_SECS', 0.05)
  host = DeafHost([[('a', 0)]])
  runner = make(host, 0.05)
  start(runner, tmp_path, 'a', 'b')
  assert runner.stop() == [('a', 0), ('b', -signal.SIGKILL)]
  assert host.sent[:2] == [('a', signal.SIGTERM), ('b', signal.SIGTERM)]
  assert set(host.sent[2:]) == {('b', signal.SIGKILL)}
  assert runner.wait() == []


def test_a_second_signal_ends_the_grace(tmp_path):
  host = DeafHost([signal.SIGINT, [('a', 0)]])
  runner = make(host)
  start(runner, tmp_path, 'a')
  # The grace would be longer than any test.
  assert runner.stop() == [('a', 0)]
  assert host.sent == [('a', signal.SIGTERM), ('a', signal.SIGKILL)]


def test_what_has_not_begun_is_given_up_at_once(tmp_path):
  host = DeafHost()
  host.is_ready = False
  runner = make(host)
  start(runner, tmp_path, 'a')
  assert runner.stop() == [('a', -signal.SIGKILL)]
  assert host.is_killed and host.sent == []


@pytest.mark.parametrize(
  'code, ended, log',
  [
    (-15, cli.FAILED, 'not done within --trial_timeout_secs=0\n'),
    (0, 0, ''),
  ],
)
def test_the_time_of_a_command_starts_as_it_begins(tmp_path, code, ended, log):
  host = DeafHost([[], []])
  runner = make(host)
  start(runner, tmp_path, 'a', limit_secs=0.0)
  runner._turn(), runner._turn()
  assert host.sent == []
  host.begun.append(('a', 7))
  runner._turn(), runner._turn()
  assert host.sent == [('a', signal.SIGTERM)]
  host.ends.append([('a', code)])
  assert runner.wait() == [('a', ended)]
  written = (tmp_path / 'a').read_text()
  assert written == (log and f'distmnist.sweep: error: {log}')


def test_a_late_command_that_does_not_leave_is_killed(tmp_path):
  host = DeafHost([[], [], [], [('a', -9)]])
  host.begun.append(('a', 7))
  runner = make(host, 0.0)
  start(runner, tmp_path, 'a', limit_secs=0.0)
  assert runner.wait() == [('a', cli.FAILED)]
  assert host.sent == [('a', signal.SIGTERM), ('a', signal.SIGKILL)]


@pytest.mark.parametrize('code', [cli.LOST, cli.NOT_SAVED, -9, -15])
def test_a_command_that_its_host_loses_saves_and_starts_again(
  tmp_path, code, caplog
):
  host = DeafHost([[('01', None)], [], [('01', code)], [('01', 0)]])
  host.reasons['01'] = 'its executor has died'
  runner = make(host)
  start(runner, tmp_path, '01', env={'A': 'b'})
  assert runner.wait() == [('01', 0)]
  assert host.started == [
    ('01', {'A': 'b'}),
    ('01', {'A': 'b', 'DISTMNIST_ATTEMPT': '2'}),
  ]
  assert host.sent == [('01', signal.SIGTERM)]
  assert caplog.messages == [
    'trial 01: its executor has died: restart 1 of 3, from its last checkpoint'
  ]
  assert (tmp_path / '01').read_text() == '--- restart 1 ---\n'
  assert host.reasons == {}


def test_a_command_that_was_done_before_it_was_lost_is_done(tmp_path):
  host = DeafHost([[('check', None)], [('check', 0)]])
  runner = make(host)
  start(runner, tmp_path, 'check')
  assert runner.wait() == [('check', 0)]
  assert len(host.started) == 1


def test_a_command_that_is_lost_too_often_has_failed(tmp_path, caplog):

  class LosingHost(DeafHost):
    def poll(self, timeout_secs=None):
      self.reasons['a'] = 'lost'
      return [('a', None), ('a', cli.LOST)]

  host = LosingHost()
  runner = make(host)
  start(runner, tmp_path, 'a')
  assert runner.wait() == [('a', cli.LOST)]
  assert len(host.started) == 1 + runners.MAX_RESTARTS
  assert 'the a: lost: restart 1 of 3, from its last' in caplog.messages[0]
  last = (tmp_path / 'a').read_text().splitlines()[-1]
  assert last == 'distmnist.sweep: error: lost; this was restart 3 of 3'


def test_at_a_stop_nothing_starts_again(tmp_path):
  host = DeafHost([[('a', None)], [('a', -15)]])
  runner = make(host)
  start(runner, tmp_path, 'a')
  assert runner.stop() == [('a', -15)]
  assert len(host.started) == 1
