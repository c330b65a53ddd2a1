"""Addresses, as people spell them."""

import re

import pytest

from distmnist.cluster import addresses
from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.launching.ssh import ssh_hosts
from distmnist.spark import executors

OPEN = (
  'anyone who reaches the ports of {} can run programs there as you: see'
  ' docs/cluster.md for how to shut them'
)


@pytest.mark.parametrize(
  ('one', 'other'),
  [
    ('a:2222', 'A:02222'),
    ('localhost:7401', '127.0.0.1:7401'),
    ('localhost:1', '[::1]:1'),
    ('[::1]:1', '[0:0::1]:1'),
    ('a.b:1', 'a.b.:1'),
  ],
)
def test_an_address_is_given_once_however_it_is_spelt(one, other):
  with pytest.raises(
    cli.UsageError,
    match=f'^{re.escape(other)}, also as {re.escape(one)}, is given to two',
  ):
    cluster_lib.make_cluster((one,), (other,), 'ps', 0)


def test_addresses_that_differ_may_have_one_port_or_host():
  hosts = 'a:1', 'a:2', 'b:1', '127.0.0.2:1', '[::2]:1'
  assert cluster_lib.make_cluster(hosts, ('c:1',), 'ps', 0).num_ps == 5


def test_the_line_names_who_is_open_and_where_to_read_on():
  assert addresses.describe_exposure('the tasks') == OPEN.format('the tasks')


def describe(hosts, num_tasks):
  return ssh_hosts.describe_ports(
    ssh_hosts.deal(ssh_hosts.parse_hosts(hosts), num_tasks)
  )


@pytest.mark.slow
def test_ssh_names_hosts_and_ports():
  assert describe('a', 1) == 'a (2222)'
  assert describe('a', 310) == 'a (2222 to 2531)'
  assert describe('a,b:99', 3) == 'a (2222, 2223) and b (99)'
  assert describe('a,b,c,d', 4) == 'a (2222), b (2222), c (2222) and d (2222)'
  hosts = ','.join(f'h{i}' for i in range(300))
  assert describe(hosts, 300) == (
    'h0 (2222), h1 (2222), h2 (2222) and 297 more hosts'
  )


@pytest.fixture
def warn(caplog):
  def warn(**settings):
    caplog.clear()
    executors.warn_of_network(settings)
    return list(caplog.messages)

  return warn


def test_addresses_of_this_machine_share_its_ports():
  hosts = ssh_hosts.parse_hosts('127.0.0.1,127.0.0.2')
  places = [place.address for place in ssh_hosts.deal(hosts, 3)]
  assert places == ['127.0.0.1:2222', '127.0.0.2:2223', '127.0.0.1:2224']


def test_spark_says_that_its_secret_travels_in_the_clear(warn):
  tasks = OPEN.format('the tasks on the executors')
  secret = (
    'spark.authenticate is off: Spark sends the secret of this run in the'
    ' clear, and runs jobs for anyone who reaches it'
  )
  yarn = {'spark.master': 'yarn'}
  assert warn(**yarn) == [tasks, secret]
  assert warn(**yarn, **{'spark.authenticate': 'true'}) == [tasks]
  assert warn(**{'spark.master': 'local-cluster[2,1,1024]'}) == []
