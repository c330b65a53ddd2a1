"""table_calls: what is wrong where the heartbeat table should be is named."""

import socket
import threading
import time

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.lifecycle import stalls, table_calls, watchdog
from tests.support import in_process


def test_a_table_on_its_way_up_is_asked_again():
  member = cluster_lib.make_cluster(('x:1',), ('x:2',), 'worker', 0)
  calls = table_calls.TableCalls(member, threading.Event(), in_process.NoStop())
  left = [tf.errors.UnavailableError(None, None, 'no port')] * 2

  def ask():
    if left:
      raise left.pop()
    return 'a row'

  assert calls.call(ask, time.monotonic() + 60) == 'a row'


@pytest.mark.slow
@pytest.mark.parametrize('is_silent', [False, True])
def test_a_stranger_on_the_port_of_a_ps_is_named(set_flags, is_silent):
  set_flags()
  stranger = socket.create_server(('127.0.0.1', 0))
  host = f'127.0.0.1:{stranger.getsockname()[1]}'

  accepted = []

  def answer():
    while True:
      try:
        connection, _ = stranger.accept()
      except OSError:
        return
      accepted.append(connection)
      if not is_silent:
        connection.sendall(b'HTTP/1.1 400 Bad Request\r\n\r\n')
        connection.close()

  thread = threading.Thread(target=answer, daemon=True)
  thread.start()
  with in_process.hold_ports(1) as [port]:
    workers = (f'127.0.0.1:{port}',)
    wrong = cluster_lib.Cluster((host,), workers, 'worker', 0, 2.0)
    server = in_process.start_server(wrong)
  stop = in_process.KeepingStop()
  dog = watchdog.Watchdog(wrong, server, {}, stalls.Stalls(60, 60, stop), stop)
  with pytest.raises(cli.PassingError, match=f'{host}.*that port$'):
    dog.check_in()
  # It wakes the thread, which may hold one connection more.
  stranger.shutdown(socket.SHUT_RDWR)
  thread.join(60)
  for each in (stranger, *accepted):
    each.close()
