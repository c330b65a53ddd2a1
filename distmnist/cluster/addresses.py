"""Addresses, host:port, as people write them, and who may reach them."""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Iterable

from distmnist.common import cli

MAX_NAME_CHARS = 255


def check_address(address: str, where: str, more: str = '') -> None:
  """Checks that `address` is host:port.

  Args:
    where: what has the address; begins the error.
    more: ends the error.

  Raises:
    cli.UsageError: no host, or a port out of 1..65535.
  """
  host, _, port = address.rpartition(':')
  is_ipv6 = host.startswith('[') and host.endswith(']')
  if (
    not host
    or re.search(r'[\s/@]', host)
    or not host.isprintable()
    or (':' in host and not is_ipv6)
  ):
    raise cli.UsageError(f'{where}: {address!r} is not host:port{more}')
  if not re.fullmatch('[0-9]{1,5}', port) or not 1 <= int(port) <= 65535:
    raise cli.UsageError(
      f'{where}: the port of {address!r} is not a number from 1 to 65535'
    )


def check_differ(addresses: Iterable[str]) -> None:
  """Raises cli.UsageError if two of `addresses`, host:port, are the same."""
  seen: dict[tuple[str, int], str] = {}
  for address in addresses:
    key = normalize(address)
    if key not in seen:
      seen[key] = address
      continue
    first = seen[key]
    also = '' if first == address else f', also as {first},'
    raise cli.UsageError(
      f'{address}{also} is given to two tasks: each needs its own'
    )


def normalize(address: str) -> tuple[str, int]:
  """Returns (host, port) of 'host:port', the same for all its spellings."""
  host, _, port = address.rpartition(':')
  host = host.strip('[]').lower().rstrip('.')
  with contextlib.suppress(ValueError):
    host = str(ipaddress.ip_address(host))
  if host in ('localhost', '::1'):
    host = '127.0.0.1'
  return host, int(port)


def describe_exposure(tasks: str) -> str:
  """Returns a line on who can reach `tasks`, such as 'the tasks'.

  TensorFlow's server listens on all addresses, asks for no password and
  runs any graph, which may read and write files.
  """
  return (
    f'anyone who reaches the ports of {tasks} can run programs there as you:'
    ' see docs/cluster.md for how to shut them'
  )
