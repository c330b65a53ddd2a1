"""keepalive: the kernel checks on what is connected to a server.

That what a task had asked for ends with it is tried by benchmarks/faults.py,
which drops packets.
"""

import errno
import os
import queue
import socket

from distmnist.cluster import keepalive


def test_each_connection_to_a_server_is_asked_for():
  with socket.create_server(('127.0.0.1', 0)) as server:
    keepalive.ask_who_connects(server.getsockname()[1])
    with socket.create_connection(server.getsockname()):
      connection, _ = server.accept()
      with connection:
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        assert idle == keepalive._IDLE_SECS


def test_other_sockets_are_let_be():
  with socket.create_server(('127.0.0.1', 0)) as server:
    port = server.getsockname()[1]
    keepalive.ask_who_connects(port - 1)
    assert not server.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    keepalive.ask_who_connects(port)
    assert server.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_what_is_sent_to_a_task_that_is_gone_is_given_up():
  def find_limit(connection):
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

  with (
    socket.create_server(('127.0.0.1', 0)) as task,
    socket.create_server(('127.0.0.1', 0)) as store,
    socket.create_connection(task.getsockname()) as ours,
    socket.create_connection(store.getsockname()) as other,
  ):
    keepalive.set_on_own({task.getsockname()[1]})
    assert find_limit(ours) == 1000 * keepalive._SENT_SECS
    assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert find_limit(other) == 0


def test_a_process_without_a_descriptor_looks_again_later(monkeypatch):
  looks = queue.Queue()

  def look(ports):
    looks.put(ports)
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

  monkeypatch.setattr(keepalive, '_LOOK_SECS', 0.01)
  monkeypatch.setattr(keepalive, 'set_on_own', look)
  keepalive.look_after_own(['a:1', 'b:2'])
  for _ in range(2):
    assert looks.get(timeout=200) == {1, 2}
