"""Names of processes by which others of the same machine see whether they live.

A process id means something on one machine only, and only until it is reused,
so a tag has a hash of the machine, the id, and when the process was started.
"""

from __future__ import annotations

import hashlib
import os

_BOOT_ID = '/proc/sys/kernel/random/boot_id'


def read_machine() -> str | None:
  """Returns what two processes share if they see each other's process ids."""
  try:
    with open(_BOOT_ID, encoding='ascii') as file:
      return f'{file.read().strip()} {os.readlink("/proc/self/ns/pid")}'
  except OSError:
    return None


def read_start(pid: int | str) -> str | None:
  """Returns when process `pid` was started, in ticks; None if it has ended."""
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8', errors='replace') as file:
      fields = file.read().rpartition(') ')[2].split()
  except OSError:
    return None
  return None if fields[0] in 'ZX' else fields[19]


def make_tag() -> str:
  """Returns the name of this process, for use in the name of a file."""
  pid = os.getpid()
  return f'{_hash_machine()}-{pid}-{read_start(pid)}'


def is_tag_dead(tag: str) -> bool | None:
  """Whether the process of a tag has ended; None if nothing is known of it."""
  machine, _, process = tag.partition('-')
  pid, _, start = process.partition('-')
  if read_machine() is None or machine != _hash_machine():
    return None
  return read_start(pid) != start


def _hash_machine() -> str:
  return hashlib.sha256(str(read_machine()).encode()).hexdigest()[:8]
