"""--hosts, and which task goes where."""

import pytest

from distmnist.common import cli
from distmnist.launching.ssh import ssh_hosts


@pytest.mark.parametrize(
  'entry',
  ['a:0', 'a:65536', 'a:x', 'a b', 'a@b@c', '-oProxyCommand=id', '@a', ':1'],
)
def test_what_is_no_host_is_refused(entry):
  with pytest.raises(cli.UsageError, match='is not a host: expected'):
    ssh_hosts.parse_hosts(f'fine,{entry}')


def test_loopback_is_not_mixed_with_hosts_that_could_not_find_it():
  for host in ('localhost', 'Localhost', '127.0.0.1', '[::1]'):
    with pytest.raises(cli.UsageError, match='is another machine for each'):
      ssh_hosts.parse_hosts(f'a,{host}')
  assert len(ssh_hosts.parse_hosts('localhost,127.0.0.2,[::1]')) == 3


def test_hosts_are_read():
  assert ssh_hosts.parse_hosts('a, me@b.c:2300,[fe::1]:7,x@[fe::2]') == [
    ssh_hosts.Place('a', 'a', 2222),
    ssh_hosts.Place('me@b.c', 'b.c', 2300),
    ssh_hosts.Place('fe::1', '[fe::1]', 7),
    ssh_hosts.Place('x@fe::2', '[fe::2]', 2222),
  ]


@pytest.mark.parametrize(
  ('hosts', 'expected'),
  [
    ('a,b,c', 'a:2222 b:2222 c:2222'),
    ('a', 'a:2222 a:2223 a:2224'),
    ('a,b', 'a:2222 b:2222 a:2223'),
    ('a:7,b', 'a:7 b:2222 a:8'),
    ('a,a', 'a:2222 a:2223 a:2224'),
    ('a:7,a:6', 'a:7 a:6 a:8'),
    # One machine, whose ports they share.
    ('127.0.0.1,[::1]', '127.0.0.1:2222 [::1]:2223 127.0.0.1:2224'),
    ('a,A', 'a:2222 A:2223 a:2224'),
  ],
)
def test_tasks_are_dealt_to_the_hosts_in_turn(hosts, expected):
  places = ssh_hosts.deal(ssh_hosts.parse_hosts(hosts), 3)
  assert ' '.join(place.address for place in places) == expected


def test_ports_are_moved():
  hosts = 'a, me@b.c:2300,x@[fe::2]'
  assert ssh_hosts.move_ports(hosts, 3) == 'a:2225,me@b.c:2303,x@[fe::2]:2225'


def test_a_host_has_no_port_left():
  with pytest.raises(cli.UsageError, match='no port is left on a'):
    ssh_hosts.deal(ssh_hosts.parse_hosts('a:65535'), 2)
