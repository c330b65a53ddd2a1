"""A file that says which process owns something, and whether it is alive.

Processes of several machines read and write it, also over NFS. A process id
means something on one machine only, and only until it is reused, so the file
also names the machine, and when the process was started.
"""

import contextlib
import errno
import json
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


def read(path):
  """Returns what the file at `path` says, a dict, or None if there is none."""
  try:
    with open(path, encoding='utf-8') as file:
      found = json.load(file)
      return found if isinstance(found, dict) else {}
  except (FileNotFoundError, NotADirectoryError):
    return None
  except ValueError:
    return {}  # Just being made, or damaged: its time will tell.


def write_beside(path, found):
  """Writes a new file beside the one at `path`, to be linked or renamed to it.

  Args:
    path: str.
    found: dict, what the file is to say.

  Returns:
    (path, time) of the new file; time is the file server's.
  """
  new = f'{path}.{secrets.token_hex(4)}.new'
  try:
    with open(new, 'x', encoding='utf-8') as file:
      json.dump(found, file)
      file.flush()
      os.fsync(file.fileno())
      return new, os.fstat(file.fileno()).st_mtime
  except BaseException:  # The disk is full, say.
    with contextlib.suppress(OSError):
      os.remove(new)
    raise


def link(new, path):
  """Gives the file `new` the name `path` if nothing has that name.

  Returns:
    Whether we made `path`.
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


class OwnerFile:
  """The file at a path of this machine."""

  def __init__(self, path):
    self._path = path

  def read(self):
    return read(self._path)

  def create(self, found):
    """Makes the file if there is none; returns whether it did."""
    new, _ = write_beside(self._path, found)
    try:
      return link(new, self._path)
    finally:
      with contextlib.suppress(FileNotFoundError):
        os.remove(new)

  def replace(self, found):
    new, _ = write_beside(self._path, found)
    os.replace(new, self._path)

  def touch(self):
    os.utime(self._path)

  def see_touch(self):
    """Returns (time of the last touch, seconds since then), two floats.

    Both are by the file server's clock.
    """
    touched = os.stat(self._path).st_mtime
    new, now = write_beside(self._path, {})
    os.remove(new)
    return touched, now - touched


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
