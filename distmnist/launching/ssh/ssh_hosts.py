"""The hosts of --hosts, and which task runs on which of them. Pure."""

from __future__ import annotations

import dataclasses
import re

from distmnist.common import cli
from distmnist.common.names import FIRST_PORT

_HOST = re.compile(
  r'(?P<user>[\w.][\w.-]*@)?(?P<host>[\w.][\w.-]*|\[[\da-fA-F:.]+\])'
  r'(?::(?P<port>\d+))?',
  re.ASCII,
)


@dataclasses.dataclass(frozen=True)
class Place:
  """The place of a task: ssh's [user@]host, and the address the others use."""

  login: str
  host: str
  port: int

  @property
  def address(self) -> str:
    return f'{self.host}:{self.port}'


def parse_hosts(text: str) -> list[Place]:
  """Returns the places in `text`, the value of --hosts.

  Raises:
    cli.UsageError: there is none, or an entry is not a host.
  """
  places = []
  for entry in text.split(',') if text.strip() else ():
    entry = entry.strip()
    match = _HOST.fullmatch(entry)
    port = int(match['port'] or FIRST_PORT) if match else 0
    if not match or not 1 <= port <= 65535:
      raise cli.UsageError(
        f'--hosts: {entry!r} is not a host: expected [user@]host[:port], with '
        'a port from 1 to 65535'
      )
    login = (match['user'] or '') + match['host'].strip('[]')
    places.append(Place(login, match['host'], port))
  if not places:
    raise cli.UsageError(
      '--launcher=ssh needs --hosts: [user@]host[:port], separated by commas'
    )
  local = [p for p in places if is_loopback(p.host)]
  if 0 < len(local) < len(places):
    raise cli.UsageError(
      f'--hosts: {local[0].host} is another machine for each host: give the'
      ' name under which the others find it'
    )
  return places


def move_ports(text: str, number: int) -> str:
  """Returns `text`, the value of --hosts, with each port `number` higher.

  Raises:
    cli.UsageError: see `parse_hosts`.
  """
  moved = []
  for place in parse_hosts(text):
    user, at, _ = place.login.rpartition('@')
    moved.append(f'{user}{at}{place.host}:{place.port + number}')
  return ','.join(moved)


def deal(hosts: list[Place], num_tasks: int) -> list[Place]:
  """Returns one Place per task, taking the hosts in turn.

  A port that is already taken on a host is replaced by the next one.

  Args:
    hosts: their first ports.

  Raises:
    cli.UsageError: a host would have no task, or no port is left on one.
  """
  if len(hosts) > num_tasks:
    raise cli.UsageError(
      f'--hosts names {len(hosts)} hosts for {num_tasks}'
      f' task{"s" if num_tasks > 1 else ""}: leave some out, or raise --num_ps'
      ' or --num_workers'
    )
  places: list[Place] = []
  taken: set[tuple[str, int]] = set()
  for index in range(num_tasks):
    place = hosts[index % len(hosts)]
    # TensorFlow listens on all addresses of a machine: 127.0.0.1, 127.0.0.2 and
    # [::1] share their ports.
    machine = '127.0.0.1' if is_loopback(place.host) else place.host.lower()
    while (machine, place.port) in taken:
      place = dataclasses.replace(place, port=place.port + 1)
    if place.port > 65535:
      raise cli.UsageError(f'--hosts: no port is left on {place.host}')
    taken.add((machine, place.port))
    places.append(place)
  return places


def is_loopback(host: str) -> bool:
  """Whether `host`, a name or address, is a different machine on each host."""
  return bool(re.fullmatch(r'localhost|127\..*|\[::1\]', host.lower()))


def describe_ports(places: list[Place]) -> str:
  """Returns where the tasks serve: 'a (2222, 2223) and b (2222)'."""
  ports: dict[str, list[str]] = {}
  for place in places:
    ports.setdefault(place.host, []).append(str(place.port))
  told = []
  for host, found in ports.items():
    if len(found) > 4:
      found = [f'{found[0]} to {found[-1]}']
    told.append(f'{host} ({", ".join(found)})')
  if len(told) > 4:
    told[3:] = [f'{len(told) - 3} more hosts']
  *most, last = told
  return f'{", ".join(most)} and {last}' if most else last
