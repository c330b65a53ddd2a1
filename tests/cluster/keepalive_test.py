"""keepalive: the kernel asks for who is connected to a server.

That what a task had asked for ends with it is tried by benchmarks/faults.py,
with packets that are lost.
"""

import contextlib
import os
import socket

import tensorflow.compat.v1 as tf

from distmnist.cluster import keepalive


def find_connections(port):
  """Returns [(whether its peer is asked for, after how long)] at a port."""
  found = []
  for name in os.listdir('/proc/self/fd'):
    with (
      contextlib.suppress(OSError),
      socket.socket(fileno=os.dup(int(name))) as each,
    ):
      is_tcp = each.family in (socket.AF_INET, socket.AF_INET6)
      if is_tcp and each.getsockname()[1] == port and each.getpeername():
        found.append(
          (
            each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
            each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
          )
        )
  return found


def test_each_connection_to_a_server_is_asked_for(make_cluster):
  cluster = make_cluster(1, 1)
  port = int(cluster.worker(0).ps_hosts[0].rpartition(':')[2])
  keepalive.ask_who_connects(port)
  with tf.Graph().as_default():
    with tf.device('/job:ps/task:0'):
      one = tf.constant(1) + 0
    with tf.Session(cluster.servers[0].target) as session:
      assert session.run(one) == 1
      found = find_connections(port)
  assert found and set(found) == {(1, keepalive._IDLE_SECS)}


def test_other_sockets_are_let_be():
  with socket.create_server(('127.0.0.1', 0)) as server:
    port = server.getsockname()[1]
    keepalive.ask_who_connects(port - 1)
    assert not server.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    keepalive.ask_who_connects(port)
    assert server.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
