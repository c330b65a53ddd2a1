"""Which connections are accepted: the secret, the hello, the deadlines."""

import socket
import time

import pytest

from distmnist.spark import agent_server
from distmnist.spark import messages as messages_lib


@pytest.mark.parametrize('secret', ['another', ''])
def test_a_peer_without_the_secret_is_sent_away(room, secret):
  room.start_all()
  peer = room.connect(secret)
  peer.send(hello='worker 0', attempt=1, address='a:1', executor='somewhere')
  assert room.read_to_the_end(peer) == []
  assert room.host._peers == {}


@pytest.mark.parametrize(
  'wrong',
  [
    {'hello': 'worker 7'},
    {'hello': ['worker 0']},
    {'attempt': 0},
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


def test_an_unauthenticated_peer_has_little_time(room, monkeypatch):
  room.start_all()
  monkeypatch.setattr(agent_server, 'HELLO_SECS', 0.01)
  with socket.create_connection(('127.0.0.1', room.port)) as silent:
    silent.setblocking(False)
    room.turn_until(lambda: read(silent)[-1:] == [b''])
  assert room.host._peers == {}


def read(connected):
  """Returns the lines (list of bytes) so far; the last is b'' at the end."""
  try:
    return connected.recv(1000).split(b'\n')
  except BlockingIOError:
    return []


def test_more_agents_than_places_wait_in_the_queue(room):
  room.start_all()

  def connect():
    connected = socket.create_connection(('127.0.0.1', room.port))
    return messages_lib.Connection(connected, room.secret, messages_lib.AGENT)

  agents = [connect() for _ in range(320)]
  room.opened += agents
  answered = []

  def is_done():
    for connection in agents:
      connection.receive()
      if connection not in answered and connection.is_authenticated:
        connection.send(nonsense=1)  # it makes room for the next
        answered.append(connection)
    return len(answered) == 320

  room.turn_until(is_done)


@pytest.mark.slow
def test_idle_peers_of_one_address_make_room_soon(room, monkeypatch):
  room.start_all()
  monkeypatch.setattr(agent_server, '_HURRIED_HELLO_SECS', 1.0)
  for _ in range(256):
    room.opened.append(socket.create_connection(('127.0.0.1', room.port)))
  for _ in range(300):
    room.host.poll(0)
  start = time.monotonic()
  room.join('ps 0')
  assert time.monotonic() - start < agent_server.HELLO_SECS
