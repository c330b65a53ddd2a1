"""Ports: held for tasks to come, checked for being free or for an answer.

Each port is checked under IPv6 and IPv4 at once if the machine has both, as
TensorFlow's server listens on both, too.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from distmnist.common import cli

_CONNECT_SECS = 5.0


def hold_ports(num_ports: int) -> list[socket.socket]:
  """Returns sockets bound to `num_ports` different free ports of this machine.

  A port stays ours while its socket is open, even between a task's end and its
  restart: no process is given it by chance. But a process that asks for this
  very port with SO_REUSEADDR gets it, and that is the task's server; while it
  listens, no other can. Our sockets do not listen, so a process that connects
  too early is refused instead of kept waiting.

  Raises:
    cli.RunError: there are too few, or we may not open that many files.
  """
  ports = []
  try:
    for _ in range(num_ports):
      ports.append(_bind(0))
  except OSError as error:
    for port in ports:
      port.close()
    raise cli.RunError(
      f'no {num_ports} free ports for the tasks on this machine, only'
      f' {len(ports)}: {error.strerror}; start fewer tasks here, or see'
      ' ulimit -n'
    ) from error
  return ports


def check_is_free(port: int) -> None:
  """Raises OSError if nobody could listen on `port`."""
  _bind(port).close()


def answers(address: str) -> bool:
  """Whether something listens at an address, 'host:port'."""
  host, _, port = address.rpartition(':')
  try:
    socket.create_connection(
      (host.strip('[]'), int(port)), _CONNECT_SECS
    ).close()
  except (OSError, ValueError, OverflowError):
    return False
  return True


@contextlib.contextmanager
def answering(port: int) -> Iterator[None]:
  """Lets who connects to a port of this machine see that somebody is there.

  Each connection is closed at once. A port that is taken stays as it is: who
  serves there next says so.
  """
  try:
    listener = _bind(port)
    listener.listen()
  except OSError:
    yield
    return

  def answer() -> None:
    with contextlib.suppress(OSError):  # It is shut down.
      while True:
        listener.accept()[0].close()

  thread = threading.Thread(target=answer, daemon=True)
  thread.start()
  try:
    yield
  finally:
    listener.shutdown(socket.SHUT_RDWR)  # Ends `accept`.
    thread.join()
    listener.close()


def is_free(port: int) -> bool:
  """Whether somebody could listen on `port`."""
  try:
    check_is_free(port)
  except OSError:
    return False
  return True


def _bind(port: int) -> socket.socket:
  """Returns a socket bound to `port` of all addresses; 0 is any free one."""
  made = _make_socket()
  try:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(('', port))
  except OSError:
    made.close()
    raise
  return made


def _make_socket() -> socket.socket:
  if not socket.has_dualstack_ipv6():
    return socket.socket()
  made = socket.socket(socket.AF_INET6)
  made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
  return made
