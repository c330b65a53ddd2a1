"""Which connections are accepted: the secret, the hello, the deadlines."""

import socket
import threading

import pytest

from distmnist.spark import agent_server


@pytest.mark.parametrize('secret', ['another', ''])
def test_a_peer_without_the_secret_is_sent_away(room, secret):
  room.start_all()
  with pytest.raises(OSError, match='not the driver of this run'):
    room.connect(secret)
  assert room.host._peers == {}


@pytest.mark.parametrize(
  'wrong',
  [
    {'hello': 'worker 7'},
    {'hello': ['worker 0']},
    {'attempt': 2},
    {'attempt': True},
    {'address': 'a:1\nfake line'},
    {'address': None},
    {'executor': '\x1b[2J'},
  ],
)
def test_a_hello_that_makes_no_sense_is_refused(room, wrong):
  room.start_all()
  connection = room.greet('worker 0', **wrong)
  assert room.read_to_the_end(connection) == []
  assert room.host._peers == {}


def test_a_peer_that_proves_nothing_has_little_time(room, monkeypatch):
  room.start_all()
  monkeypatch.setattr(agent_server, 'HELLO_SECS', 0.01)
  with socket.create_connection(('127.0.0.1', room.port)) as silent:
    silent.setblocking(False)
    room.turn_until(lambda: read(silent)[-1:] == [b''])
  assert room.host._peers == {}


@pytest.mark.slow
def test_a_peer_that_has_proved_it_has_to_say_who_it_is(room, monkeypatch):
  room.start_all()
  monkeypatch.setattr(agent_server, 'HELLO_SECS', 0.5)
  silent = room.connect()
  assert room.read_to_the_end(silent) == []


def read(connected):
  """Returns the lines (list of bytes) so far; the last is b'' at the end."""
  try:
    return connected.recv(1000).split(b'\n')
  except BlockingIOError:
    return []


def test_silent_peers_delay_nobody_and_there_are_not_too_many(
  room, monkeypatch
):
  monkeypatch.setattr(agent_server, '_MAX_NEWCOMERS', 5)
  room.start_all()
  silent = [socket.create_connection(('127.0.0.1', room.port)) for _ in '1234']
  room.join('ps 0')
  silent.append(socket.create_connection(('127.0.0.1', room.port)))
  room.turn_until(lambda: len(room.host._server._peers) == 6)
  # The next ones wait in the queue until there is room for them.
  silent.append(socket.create_connection(('127.0.0.1', room.port)))
  room.host._server.poll(0)
  assert len(room.host._server._peers) == 6
  for each in silent[:2]:
    each.close()
  room.connect()
  for each in silent:
    each.close()


def test_a_server_that_closes_leaves_no_thread(room):
  before = set(threading.enumerate())
  room.start_all()
  with socket.create_connection(('127.0.0.1', room.port)):
    room.join('ps 0')
    begun = set(threading.enumerate()) - before
    assert len(begun) >= 3
    room.close()
    for agent in room.opened:
      agent.close()
    for thread in begun:
      thread.join(timeout=60)
      assert not thread.is_alive()
