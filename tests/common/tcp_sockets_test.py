"""tcp_sockets: those of this process, which stay open."""

import os
import socket

from distmnist.common import tcp_sockets


def test_each_is_found_and_stays_open(tmp_path):
  with (
    socket.create_server(('127.0.0.1', 0)) as server,
    socket.create_connection(server.getsockname()) as client,
    socket.socket(socket.AF_UNIX) as other,
    open(tmp_path / 'file', 'w'),
  ):
    found = {inode: each.getsockname() for inode, each in tcp_sockets.find()}
    names = [
      os.readlink(f'/proc/self/fd/{x.fileno()}') for x in (server, client)
    ]
    assert [found[name] for name in names] == [
      server.getsockname(),
      client.getsockname(),
    ]
    assert os.readlink(f'/proc/self/fd/{other.fileno()}') not in found
    client.sendall(b'.')
    connection, _ = server.accept()
    with connection:
      assert connection.recv(1) == b'.'


def test_what_is_a_file_by_the_time_it_is_opened_leaves_no_descriptor(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(os, 'readlink', lambda path: 'socket:[1]')
  made = []
  dup = os.dup
  monkeypatch.setattr(os, 'dup', lambda fd: made.append(dup(fd)) or made[-1])
  with open(tmp_path / 'file', 'w') as file:
    status = os.fstat(file.fileno())
    assert not [each for _, each in tcp_sockets.find() if each is file]
    left = []
    for fd in made:
      try:
        left.append(os.fstat(fd))
      except OSError:
        continue
    assert made and status not in left
