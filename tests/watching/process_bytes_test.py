"""process_bytes: one count of the sockets of this process for all."""

import gc
import queue
import socket
import threading

import pytest

from distmnist.common import tcp_sockets
from distmnist.watching import process_bytes


@pytest.fixture
def sockets(monkeypatch):
  """The sockets of this process, {inode: (sent, received)}, and the looks."""
  gc.collect()  # No counter of another test is held.
  found, looks = {}, queue.Queue()

  def read_sockets():
    looks.put(None)
    return list(found.items())

  monkeypatch.setattr(process_bytes, '_LOOK_SECS', 0.001)
  monkeypatch.setattr(process_bytes, '_shared', {})
  monkeypatch.setattr(process_bytes, '_read_sockets', read_sockets)
  return found, looks


def wait_for_look(looks):
  """Waits until a look has begun and ended after this call."""
  while not looks.empty():
    looks.get()
  for _ in range(2):
    looks.get(timeout=200)


@pytest.mark.slow
def test_a_connection_that_nobody_asked_for_meanwhile_counts(sockets):
  found, looks = sockets
  found['old'] = (5, 7)
  meter = process_bytes.Meter()
  found['short'] = (100, 200)
  wait_for_look(looks)
  del found['short']
  assert meter.read() == (100, 200)


@pytest.mark.slow
def test_each_counts_from_its_own_start(sockets):
  found, _ = sockets
  first = process_bytes.Meter()
  assert first.read() is None
  found['a'] = (10, 20)
  second = process_bytes.Meter()
  found['a'] = (11, 22)
  assert first.read() == (11, 22)
  assert second.read() == (1, 2)


@pytest.mark.slow
def test_no_thread_is_left_when_nobody_counts(sockets, monkeypatch):
  _, looks = sockets
  before = set(threading.enumerate())
  meter = process_bytes.Meter()
  begun = set(threading.enumerate()) - before
  (thread,) = (each for each in begun if each.name == 'process bytes')
  wait_for_look(looks)
  process_bytes._shared.clear()  # The real one refers to it weakly.
  del meter
  gc.collect()
  thread.join(timeout=200)
  assert not thread.is_alive()


@pytest.fixture
def connect(monkeypatch):
  """Returns connect() -> (client, server), two ends of a TCP connection.

  Sockets that were open before are not seen: gRPC pings on those of other tests
  of this process.
  """
  find = tcp_sockets.find
  before = {inode for inode, _ in find()}
  monkeypatch.setattr(
    tcp_sockets,
    'find',
    lambda: (found for found in find() if found[0] not in before),
  )
  made = []

  def connect():
    with socket.create_server(('127.0.0.1', 0)) as listener:
      client = socket.create_connection(listener.getsockname())
      server, _ = listener.accept()
    made.extend([client, server])
    return client, server

  yield connect
  for each in made:
    each.close()


def exchange(source, target, num_bytes):
  source.sendall(bytes(num_bytes))
  left = num_bytes
  while left:
    left -= len(target.recv(left))
  # What comes back tells the source that all has arrived.
  target.sendall(b'.')
  source.recv(1)


def test_nothing_is_known_before_the_first_look():
  assert process_bytes.SocketBytes().read() is None


def test_what_moves_between_two_looks_is_counted(connect):
  client, server = connect()
  exchange(client, server, 1000)
  counter = process_bytes.SocketBytes()
  counter.look()
  exchange(client, server, 50_000)
  counter.look()
  # Both ends are of this process.
  sent, received = counter.read()
  assert received == 50_001
  # A single byte counts when it is acknowledged, which may be a look later.
  assert 50_000 <= sent <= 50_002


def test_a_socket_that_came_later_counts_whole(connect):
  connect()
  counter = process_bytes.SocketBytes()
  counter.look()
  client, server = connect()
  exchange(client, server, 2000)
  counter.look()
  client.close()
  server.close()
  counter.look()
  assert counter.read()[1] == 2001


def test_the_first_socket_after_a_look_that_found_none_counts_whole(
  monkeypatch,
):
  found = []
  monkeypatch.setattr(process_bytes, '_read_sockets', lambda: found)
  counter = process_bytes.SocketBytes()
  counter.look()
  found.append(('socket:[1]', (30, 40)))
  counter.look()
  assert counter.read() == (30, 40)


def test_other_descriptors_are_left_alone(connect, tmp_path):
  left, right = socket.socketpair()
  with left, right, open(tmp_path / 'file', 'w') as file:
    counter = process_bytes.SocketBytes()
    connect()
    counter.look()
    file.write('still open')
    left.sendall(b'x')
    assert right.recv(1) == b'x'
