import errno
import socket

import pytest

from distmnist.common import cli, ports

IPV6 = pytest.mark.skipif(not socket.has_ipv6, reason='no IPv6 here')


def test_held_ports_differ_and_nobody_gets_one_by_chance():
  held = ports.hold_ports(20)
  numbers = [port.getsockname()[1] for port in held]
  assert len(set(numbers)) == 20
  with (
    socket.socket() as other,
    pytest.raises(OSError, match='Address already in use'),
  ):
    other.bind(('127.0.0.1', numbers[0]))
  for port in held:
    port.close()


def test_a_held_port_refuses_those_who_come_too_early():
  (held,) = ports.hold_ports(1)
  with held, pytest.raises(ConnectionRefusedError):
    socket.create_connection(('127.0.0.1', held.getsockname()[1]), timeout=5)


def test_servers_come_and_go_on_a_held_port_one_at_a_time():
  (held,) = ports.hold_ports(1)
  address = ('127.0.0.1', held.getsockname()[1])
  with held:
    for _ in range(2):
      # As gRPC does: on all addresses, and with SO_REUSEADDR.
      with socket.create_server(('', address[1])):
        client = socket.create_connection(address, timeout=5)
        with pytest.raises(OSError, match='Address already in use'):
          socket.create_server(('', address[1]))
      client.close()
      with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, timeout=5)


@pytest.mark.parametrize(
  ('family', 'host'),
  [
    (socket.AF_INET, '127.0.0.1'),
    (socket.AF_INET, ''),
    pytest.param(socket.AF_INET6, '::1', marks=IPV6),
  ],
)
def test_a_port_is_taken_whoever_listens_there(family, host):
  with socket.create_server((host, 0), family=family) as other:
    port = other.getsockname()[1]
    assert not ports.is_free(port)
  assert ports.is_free(port)


def test_more_ports_than_may_be_open_are_one_line(monkeypatch):
  made = []

  def bind(_):
    if len(made) == 2:
      raise OSError(errno.EMFILE, 'Too many open files')
    made.append(socket.socket())
    return made[-1]

  monkeypatch.setattr(ports, '_bind', bind)
  with pytest.raises(
    cli.RunError, match='no 9 free ports .*, only 2: Too many open files; start'
  ):
    ports.hold_ports(9)
  assert all(each.fileno() == -1 for each in made)


def test_what_listens_answers_and_what_does_not_or_is_no_place_does_not():
  with socket.create_server(('127.0.0.1', 0)) as listens:
    address = f'127.0.0.1:{listens.getsockname()[1]}'
    assert ports.answers(address)
  assert not ports.answers(address)
  for nonsense in ('', 'here', '127.0.0.1:http', '127.0.0.1:65536'):
    assert not ports.answers(nonsense)


def test_a_port_answers_while_its_task_loads_and_then_is_its_server_s():
  (held,) = ports.hold_ports(1)
  number = held.getsockname()[1]
  address = f'127.0.0.1:{number}'
  with held:
    with ports.answering(number):
      for _ in range(300):  # More than a queue of connections holds.
        assert ports.answers(address)
    assert not ports.answers(address)
    with socket.create_server(('', number)), ports.answering(number):
      assert ports.answers(address)  # By the server: the port is taken.
