"""A file that says which process has something, and whether that one lives.

Processes of several machines read and write it, on NFS too. A process id says
something on one machine alone, and there until it is used again: so the file
also names the machine, and when the process was started.
"""

import errno
import json
import os
import secrets
import socket
import time

_BOOT_ID = '/proc/sys/kernel/random/boot_id'


def describe_self(run=None):
  """Returns what the file says of this process, a dict.

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
    'start': _read_start(os.getpid()),
    'has_ended': False,
  }


def read(path):
  """Returns what the file at `path` says, a dict, or None if there is none."""
  try:
    with open(path, encoding='utf-8') as file:
      found = json.load(file)
      return found if isinstance(found, dict) else {}
  except (FileNotFoundError, NotADirectoryError):
    return None
  except ValueError:
    return {}  # Made in this moment, or damaged: its time will tell.


def write_beside(path, found):
  """Writes a new file beside the one at `path`, to be linked or renamed to it.

  Args:
    path: str.
    found: dict, what the file is to say.

  Returns:
    (path, time) of the new file; time is the file server's.
  """
  new = f'{path}.{secrets.token_hex(4)}.new'
  with open(new, 'x', encoding='utf-8') as file:
    json.dump(found, file)
    file.flush()
    os.fsync(file.fileno())
    return new, os.fstat(file.fileno()).st_mtime


def link(new, path):
  """Gives the file `new` the name `path` if nothing has that name.

  Returns:
    Whether `path` was made, and by us.
  """
  try:
    os.link(new, path)
    return True
  except FileExistsError:
    return False
  except OSError as error:
    if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
      raise
  # A file system without hard links.
  try:
    with open(new, encoding='utf-8') as source:
      text = source.read()
    with open(path, 'x', encoding='utf-8') as file:
      file.write(text)
    return True
  except FileExistsError:
    return False


def describe(found):
  """Returns host, pid and start of the process `found`, for people."""
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
  start = _read_start(found['pid'])
  # A process id is used again after a while.
  return start is None or start != found['start']


def _read_machine():
  """Returns what two processes have in common that know each other's ids."""
  try:
    with open(_BOOT_ID, encoding='ascii') as file:
      return f'{file.read().strip()} {os.readlink("/proc/self/ns/pid")}'
  except OSError:
    return None


def _read_start(pid):
  """Returns when process `pid` was started, in ticks; None if it has ended."""
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8', errors='replace') as file:
      fields = file.read().rpartition(') ')[2].split()
  except OSError:
    return None
  return None if fields[0] in 'ZX' else fields[19]
