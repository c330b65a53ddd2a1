"""socket_bytes: the bytes that really moved."""

import socket
import subprocess

import pytest

from distmnist.common import tcp_sockets
from distmnist.watching import socket_bytes


@pytest.fixture
def connect(monkeypatch):
  """Returns connect() -> (client, server), two ends of a TCP connection.

  Sockets that were open before are not seen: gRPC pings on those of other tests
  of this process.
  """
  find = tcp_sockets.find
  before = {inode for inode, _ in find(None)}
  monkeypatch.setattr(
    tcp_sockets,
    'find',
    lambda pid: (found for found in find(pid) if found[0] not in before),
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
  assert socket_bytes.SocketBytes().read() is None


def test_what_moves_between_two_looks_is_counted(connect):
  client, server = connect()
  exchange(client, server, 1000)
  counter = socket_bytes.SocketBytes()
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
  counter = socket_bytes.SocketBytes()
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
  monkeypatch.setattr(socket_bytes, '_read_sockets', lambda pid: found)
  counter = socket_bytes.SocketBytes()
  counter.look()
  found.append(('socket:[1]', (30, 40)))
  counter.look()
  assert counter.read() == (30, 40)


def test_other_descriptors_are_left_alone(connect, tmp_path):
  left, right = socket.socketpair()
  with left, right, open(tmp_path / 'file', 'w') as file:
    counter = socket_bytes.SocketBytes()
    connect()
    counter.look()
    file.write('still open')
    left.sendall(b'x')
    assert right.recv(1) == b'x'


def test_another_process_is_counted_like_this_one(connect):
  client, server = connect()
  with subprocess.Popen(
    ['cat'], stdin=subprocess.PIPE, pass_fds=[client.fileno()]
  ) as process:
    client.close()
    counter = socket_bytes.SocketBytes(process.pid)
    counter.look()
    server.sendall(bytes(500))
    counter.look()
    process.stdin.close()
  assert counter.read() == (0, 500)
