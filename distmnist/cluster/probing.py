"""Does a process listen at host:port? Asked often, of many, and never for long.

A refused connection is an answer: nothing listens there. Silence is not: a lost
packet is sent again after a second, so a single silent look says little
(`Absences`). And if we could not ask, for lack of a file descriptor or of an
answer from the name server, we know nothing.
"""

from __future__ import annotations

import concurrent.futures
import enum
import errno
import functools
import socket
import time
from collections.abc import Callable, Collection, Mapping

from distmnist.cluster import errors
from distmnist.common import cli, console

# Linux sends a lost SYN again after 1 s, and once more after 3 s.
_CONNECT_SECS = 3.0
# The longest wait for a name server that does not answer.
_NAMES_SECS = 5.0
# A name is looked up again after this long.
_NAMES_KEPT_SECS = 10.0
_NUM_THREADS = 32
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
# A task silent for this long and at this many looks is gone.
_GONE_SECS = 5.0
_NUM_MISSES = 3


class Answer(enum.Enum):
  THERE = 'there'
  REFUSED = 'refused'
  SILENT = 'silent'
  UNKNOWN = 'unknown'


def ask(address: str, timeout_secs: float = _CONNECT_SECS) -> Answer:
  """Returns the Answer at 'host:port', within `timeout_secs` per connection."""
  infos = _look_up(address)
  if infos is None:
    return Answer.UNKNOWN
  answer = Answer.REFUSED
  for family, kind, protocol, _, place in infos:
    try:
      with socket.socket(family, kind, protocol) as connection:
        connection.settimeout(max(0.001, timeout_secs))
        connection.connect(place)
        return Answer.THERE
    except ConnectionRefusedError:
      pass
    except OSError as error:
      if error.errno in _NO_DESCRIPTOR:
        return Answer.UNKNOWN
      answer = Answer.SILENT
  return answer


def _look_up(address: str) -> list[tuple] | None:
  """Returns what socket.getaddrinfo does of 'host:port', kept for some seconds.

  An empty list if no host has that name; None if no name server answers.
  """
  host, _, port = address.rpartition(':')
  try:
    return _resolve(host.strip('[]'), int(port))
  except (OSError, UnicodeError) as error:  # UnicodeError: a host like 'a..b'.
    is_gai = isinstance(error, socket.gaierror)
    return None if is_gai and error.errno == socket.EAI_AGAIN else []


_names: dict[tuple[str, int], tuple[float, list[tuple]]] = {}


def _resolve(host: str, port: int) -> list[tuple]:
  """Returns what socket.getaddrinfo does, kept for some seconds."""
  now = time.monotonic()
  kept = _names.get((host, port))
  if kept and now - kept[0] < _NAMES_KEPT_SECS:
    return kept[1]
  infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
  _names[host, port] = now, infos
  return infos


@functools.cache
def _pool() -> concurrent.futures.Executor:
  return concurrent.futures.ThreadPoolExecutor(_NUM_THREADS, 'probing')


def ask_all(
  addresses: Mapping[str, str], timeout_secs: float = _CONNECT_SECS
) -> dict[str, Answer]:
  """Returns {name: Answer} of {name: 'host:port'}, all asked at once.

  One whose name is not resolved in time is UNKNOWN.
  """
  asked = {
    name: _pool().submit(ask, address, timeout_secs)
    for name, address in addresses.items()
  }
  # Addresses queued behind others in the pool get their time, too.
  num_turns = 1 + len(asked) // _NUM_THREADS
  concurrent.futures.wait(
    asked.values(), num_turns * (timeout_secs + _NAMES_SECS)
  )
  found = {}
  for name, future in asked.items():
    is_late = not future.done()
    if is_late:
      future.cancel()
    found[name] = Answer.UNKNOWN if is_late else future.result()
  return found


def find_silent(addresses: Mapping[str, str]) -> dict[str, str]:
  """Returns those of `addresses`, {name: 'host:port'}, where none answers."""
  silent = Answer.REFUSED, Answer.SILENT
  found = ask_all(addresses)
  return {n: a for n, a in addresses.items() if found[n] in silent}


class Absences:
  """Tells tasks that are gone from tasks that only lost a packet."""

  def __init__(
    self, secs_silent: Callable[[str], float | None] = lambda name: None
  ) -> None:
    """
    Args:
      secs_silent: the seconds without a beat of a task, by its name; None if
        that is not known.
    """
    self._secs_silent = secs_silent
    self._misses: dict[str, list[float]] = {}  # Times, by name.

  def find_gone(self, addresses: Mapping[str, str]) -> dict[str, str]:
    """Looks once; returns those of {name: 'host:port'} that are gone.

    A task is gone if its port refuses the connection, or if it was silent at
    several looks over five seconds and did not beat meanwhile.
    """
    gone = {}
    for name, answer in ask_all(addresses).items():
      if answer is Answer.REFUSED or (
        answer is Answer.SILENT and self._is_missed(name)
      ):
        gone[name] = addresses[name]
      elif answer is not Answer.SILENT:
        self._misses.pop(name, None)
    return gone

  def _is_missed(self, name: str) -> bool:
    now = time.monotonic()
    misses = self._misses.setdefault(name, [])
    misses.append(now)
    secs = self._secs_silent(name)
    return (
      len(misses) >= _NUM_MISSES
      and now - misses[0] >= _GONE_SECS
      and (secs is None or secs >= _GONE_SECS)
    )


def wait_until_gone(addresses: Mapping[str, str], timeout_secs: float) -> None:
  """Returns once no address answers, or after `timeout_secs`."""
  deadline = time.monotonic() + timeout_secs
  while (left := deadline - time.monotonic()) > 0:
    if Answer.THERE not in ask_all(addresses, left).values():
      return
    time.sleep(0.02)


def wait_for_tasks(
  addresses: Mapping[str, str],
  timeout_secs: float,
  pause: Callable[[float], object] | None = None,
  error_class: type[cli.RunError] = cli.RunError,
  were_there: bool = False,
  hint: str = '',
) -> None:
  """Returns once every address accepts a connection.

  Args:
    addresses: {task name: 'host:port'}.
    timeout_secs: seconds until it gives up.
    pause: waits some seconds between two looks, in place of time.sleep; may
      raise to end the wait.
    were_there: whether these tasks have answered before, so that their
      addresses are right.
    hint: what is known of why they may not be there, or ''.

  Raises:
    error_class: the time is over; names the tasks and their addresses.
  """
  missing = dict(addresses)
  wait = console.Wait(timeout_secs)
  while True:
    found = ask_all(missing)
    missing = {n: a for n, a in missing.items() if found[n] != Answer.THERE}
    if not missing:
      return
    names = errors.list_tasks(missing)
    if wait.is_over(f'for {names}' + (hint and f'; {hint}')):
      advice = f'{hint}; to go on with it, start all tasks'
      if not hint:
        answers = {a: found[n] for n, a in missing.items()}
        advice = _advise(answers, were_there)
      raise error_class(
        f'no answer within {timeout_secs:g} s from {names}: {advice} '
        '(--start_timeout_secs sets the wait)'
      )
    (pause or time.sleep)(wait.choose_pause())


def _advise(answers: Mapping[str, Answer], were_there: bool) -> str:
  """Returns what to do about tasks that are not there.

  Args:
    answers: {address: Answer}.
    were_there: see wait_for_tasks.
  """
  if were_there:
    return (
      'it was there before, and has ended or is cut off: see its log, and '
      'whether its host is up'
    )
  if set(answers.values()) == {Answer.UNKNOWN}:
    return (
      'it could not be asked, as no name server answers or this process has '
      'no file descriptor left'
    )
  # The names of others are known.
  refused = [a for a, answer in answers.items() if answer is Answer.REFUSED]
  return (
    f'{_describe_unknown(refused)}start it, or check the address, the port '
    'and the firewall'
  )


def _describe_unknown(addresses: Collection[str]) -> str:
  """Returns which hosts of 'host:port' strings have no address, or ''."""
  hosts = {a.rpartition(':')[0] for a in addresses if _look_up(a) == []}
  known = f'no host is known here as {", ".join(sorted(hosts))}; '
  return known if hosts else ''
