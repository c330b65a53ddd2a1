"""Addresses, as people spell them."""

import re

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli


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
