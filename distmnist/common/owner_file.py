"""What a file says of the process that owns something: whether it is alive.

Processes of several machines read it (numbered_file.py). A process id means
something on one machine only, and only until it is reused, so the file also
names the machine, and when the process was started.
"""

import hashlib
import os
import secrets
import socket
import time

_BOOT_ID = '/proc/sys/kernel/random/boot_id'


def describe_self(run=None):
  """Returns what the file says about this process, a dict.

  Args:
    run: str, what all lives of one training have in common; a new one if None.
  """
  return {
    'life': secrets.token_hex(8),
    'run': run or secrets.token_hex(8),
    'host': socket.gethostname(),
    'pid': os.getpid(),
    'since': time.strftime('%Y-%m-%d %H:%M:%S'),
    'machine': _read_machine(),
    'start': read_start(os.getpid()),
    'has_ended': False,
  }


def describe(found):
  """Returns the pid, host and start of the process `found`, for people."""
  return (
    f'process {found.get("pid")} of host {found.get("host")} since '
    f'{found.get("since")}'
  )


def is_alive_here(found):
  """Whether `found` is a living process of this machine."""
  return _is_of_this_machine(found) and not _has_ended(found)


def is_known_dead(found):
  """Whether `found` is a process of this machine that has ended."""
  return _is_of_this_machine(found) and _has_ended(found)


def _is_of_this_machine(found):
  machine = found.get('machine')
  return machine is not None and machine == _read_machine()


def _has_ended(found):
  if found.get('has_ended'):
    return True
  start = read_start(found['pid'])
  # A process id is reused after a while.
  return start is None or start != found['start']


def _read_machine():
  """Returns what two processes share if they see each other's process ids."""
  try:
    with open(_BOOT_ID, encoding='ascii') as file:
      return f'{file.read().strip()} {os.readlink("/proc/self/ns/pid")}'
  except OSError:
    return None


def read_start(pid):
  """Returns when process `pid` was started, in ticks; None if it has ended."""
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8', errors='replace') as file:
      fields = file.read().rpartition(') ')[2].split()
  except OSError:
    return None
  return None if fields[0] in 'ZX' else fields[19]


def make_tag():
  """Returns what names this process in the name of a file (str)."""
  pid = os.getpid()
  return f'{_hash_machine()}-{pid}-{read_start(pid)}'


def is_tag_dead(tag):
  """Whether the process of a tag has ended; None if nothing is known of it."""
  machine, _, process = tag.partition('-')
  pid, _, start = process.partition('-')
  if _read_machine() is None or machine != _hash_machine():
    return None
  return read_start(pid) != start


def _hash_machine():
  return hashlib.sha256(str(_read_machine()).encode()).hexdigest()[:8]
