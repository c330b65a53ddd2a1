"""A whole cluster on [::1], of real processes."""

import socket

import pytest

from tests.support.runner import SMALL


def has_ipv6():
  try:
    socket.create_server(('::1', 0), family=socket.AF_INET6).close()
  except OSError:
    return False
  return True


@pytest.mark.slow
@pytest.mark.skipif(not has_ipv6(), reason='no IPv6 on this machine')
def test_a_cluster_whose_hosts_are_ipv6_addresses_trains(
  make_real_cluster, tasks
):
  cluster = make_real_cluster(1, 2)
  cluster.hosts = {
    job: [host.replace('127.0.0.1', '[::1]') for host in hosts]
    for job, hosts in cluster.hosts.items()
  }
  ps, workers = cluster.start_all(*SMALL, '--train_steps=20')
  assert tasks.wait(*workers, *ps) == [0] * 3
  assert 'test accuracy' in workers[0].output
  assert 'worker 0 at [::1]:' in workers[0].output
