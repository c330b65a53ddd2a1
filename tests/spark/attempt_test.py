"""An attempt alone: its agents are lists of what they were told."""

import signal

import pytest

from distmnist.common import cli
from distmnist.spark import agent_server
from distmnist.spark.attempt import Attempt
from distmnist.spark.received_logs import ReceivedLogs

NAMES = ['ps 0', 'worker 0', 'worker 1']
GO, LEAVE, STOP = {'go': True}, {'leave': True}, {'stop': signal.SIGTERM}


class Link:
  """In the place of a messages.Connection."""

  def __init__(self):
    self.sent = []
    self.is_open = True

  def send(self, **message):
    self.sent.append(message)


def make_peer(name):
  return agent_server.Peer(name, 'a:1', 'a (pid 7)', Link())


@pytest.fixture
def attempt(tmp_path):
  return Attempt(1, NAMES, ReceivedLogs(str(tmp_path), NAMES), 600.0)


@pytest.fixture
def peers(attempt):
  """All tasks, which were told to go."""
  for name in NAMES:
    assert name in attempt.missing
    attempt.join(make_peer(name))
    attempt.advance()
  assert attempt.missing == []
  return list(attempt.peers.values())


def told(peers):
  return [peer.connection.sent[1:] for peer in peers]


def test_all_start_together_and_leave_together(attempt, peers):
  assert [peer.connection.sent for peer in peers] == [[GO]] * 3
  for peer in peers:
    assert not attempt.is_over
    attempt.note_end(peer, 0)
    attempt.advance()
  assert told(peers) == [[LEAVE]] * 3
  assert attempt.is_over and attempt.failure is None


@pytest.mark.parametrize(
  ('code', 'cause', 'exit_code'),
  [
    (5, 'exit code 5', 5),
    (-9, 'killed by SIGKILL', 137),
    (None, 'told to stop, but not by us', cli.LOST),
    (True, 'told to stop, but not by us', cli.LOST),
    (256, 'told to stop, but not by us', cli.LOST),
    (-65, 'told to stop, but not by us', cli.LOST),
  ],
)
def test_an_end_with_anything_but_0_is_a_failure(
  attempt, peers, tmp_path, code, cause, exit_code
):
  attempt.note_end(peers[2], code)
  assert attempt.failure.exit_code == exit_code
  assert str(attempt.failure) == (
    f'worker 1 (a:1) failed first: {cause}; log: {tmp_path}/worker_1.log'
  )


def test_after_a_failure_the_workers_stop_before_the_ps(attempt, peers):
  ps, chief, worker = peers
  attempt.note_silence(worker)
  attempt.advance()
  assert told(peers) == [[], [STOP], []]
  attempt.note_end(chief, None)
  attempt.advance()
  assert told(peers) == [[STOP], [STOP], []]
  attempt.note_end(ps, None)
  attempt.advance()
  assert told(peers) == [[STOP, LEAVE], [STOP, LEAVE], [LEAVE]]
  assert attempt.failure.cause == (
    'no word from it any more; its executor was a (pid 7)'
  )


def test_what_does_not_stop_in_time_loses_its_connection(attempt, peers):
  attempt.stop_secs = -1.0
  attempt.is_given_up = True
  attempt.advance()
  assert [peer.connection.is_open for peer in peers] == [False] * 3
  assert attempt.is_over and not attempt.has_tasks
  assert attempt.failure is None


def test_a_ps_that_stays_after_the_workers_fails(attempt, peers, monkeypatch):
  monkeypatch.setattr(agent_server, 'LEAVE_SECS', -1.0)
  for peer in peers[1:]:
    attempt.note_end(peer, 0)
  attempt.advance()
  assert attempt.failure.name == 'ps 0'
  attempt.advance()
  assert told(peers[:1]) == [[STOP]]


def test_at_once_is_the_second_order(attempt, peers):
  peers[1].is_told_to_stop = True
  attempt.note_end(peers[2], 0)
  attempt.stop_at_once()
  assert told(peers) == [[STOP, STOP], [STOP], []]


def test_a_task_that_comes_twice_may_leave_and_ends_the_attempt(attempt, peers):
  again = make_peer('worker 1')
  attempt.join(again)
  assert again.connection.sent == [LEAVE]
  assert attempt.peers['worker 1'] is peers[2]
  assert attempt.failure.cause == 'Spark has started it once more'


def test_what_comes_too_late_may_leave(attempt):
  attempt.is_given_up = True
  attempt.advance()
  late = make_peer('ps 0')
  attempt.join(late)
  assert late.connection.sent == [LEAVE]
  assert attempt.missing == []
