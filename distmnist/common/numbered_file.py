"""The file that names the owner of something, which changes hands by number.

Each owner has a file of its own with the next number in its name, such as
owner.json.00000002. It is created only if there is none, which a file system
(by a hard link) and a store let only one of two processes do, and the highest
number is the owner's. The number is a fencing token: an owner writes its own
file only, and one that was suspended finds a higher number.

A store that creates an object even where one exists (an old one of another
maker, HDFS) is detected at the start. There, the last of two processes that
write within the same seconds is the owner, and each waits that long before it
believes that it is.
"""

import contextlib
import json
import logging
import os
import secrets
import time

from distmnist.common import files
from distmnist.storage import disk, paths, stores, urls

_log = logging.getLogger(__name__)

_SETTLE_SECS = 2.0
# A name that was listed may be gone when it is read: a newer one has come.
_NUM_READS = 3


def find(path):
  """Returns the NumberedFile at a path or an address, to which numbers go."""
  kind = RemoteNumberedFile if urls.is_remote(path) else NumberedFile
  return kind(path)


class NumberedFile:
  """The file on a file system that hosts may share, also over NFS."""

  def __init__(self, path):
    """
    Args:
      path: str; a dot and the numbers are added to it.
    """
    self._path = path
    self._folder, self._name = os.path.split(path)
    self._highest = 0
    self._mine = None

  def read(self):
    """Returns what the owner's file says (dict), or None if there is none.

    It is {} while the file cannot be understood.

    Raises:
      OSError: it cannot be read.
    """
    for _ in range(_NUM_READS):
      self._highest = max(self._list_numbers(), default=0)
      if not self._highest:
        return None
      try:
        found = json.loads(paths.read_text(self._find_place(self._highest)))
        return found if isinstance(found, dict) else {}
      except FileNotFoundError:
        continue
      except ValueError:
        return {}  # Just being made, or damaged: its time will tell.
    return None

  def create(self, found):
    """Takes over from the owner that `read` saw, if any.

    Args:
      found: dict, what the file is to say.

    Returns:
      Whether it is ours; if not, another process was faster.

    Raises:
      OSError: it cannot be written.
    """
    number = self._highest + 1
    place = self._find_place(number)
    if not self._create(place, json.dumps(found)):
      return False
    numbers = self._list_numbers()
    # The number was free as two others have come and one has gone since.
    if max(numbers, default=0) > number:
      self._remove(number)
      return False
    self._mine = self._highest = number
    for lower in numbers:
      if lower < number:
        self._remove(lower)
    return True

  def _remove(self, number):
    # One that has taken over meanwhile does so, too.
    with contextlib.suppress(FileNotFoundError):
      paths.remove(self._find_place(number))

  def rewrite(self, found):
    """Makes our own file say something else."""
    with files.replacing(self._find_place(self._mine)) as file:
      json.dump(found, file)

  def touch(self, found):
    """Shows that the owner, of whom the file says `found`, is alive."""
    del found
    os.utime(self._find_place(self._mine))

  def see_touch(self):
    """Returns (time of the last touch, seconds since then), two floats.

    Both are by the clock of the file server or the store.
    """
    touched = self._see_time(self._find_place(self._highest))
    return touched, self._see_now() - touched

  def _create(self, place, text):
    return disk.create(place, text.encode())

  def _see_time(self, place):
    return os.stat(place).st_mtime

  def _see_now(self):
    return disk.see_now(self._folder or os.curdir)

  def _find_place(self, number):
    return f'{self._path}.{number:08d}'

  def _list_numbers(self):
    endings = [
      os.path.splitext(name)
      for name in paths.list_names(self._folder or os.curdir)
      if name.startswith(f'{self._name}.')
    ]
    return [
      int(x[1:])
      for root, x in endings
      if root == self._name and x[1:].isdigit()
    ]


class RemoteNumberedFile(NumberedFile):
  """The object in a store, which can neither link nor set a time."""

  def touch(self, found):
    stores.write(self._find_place(self._mine), json.dumps(found).encode())

  def rewrite(self, found):
    self.touch(found)

  def _create(self, place, text):
    content = text.encode()
    if not stores.create(place, content):
      return False
    if stores.is_exclusive(place) and not stores.create(place, b'{}'):
      return True
    _log.info(
      f'{place}: this store may create an object where one exists, so two '
      f'processes that start within {_SETTLE_SECS:g} s of each other are '
      'told apart by reading it back, not by the store'
    )
    stores.write(place, content)
    time.sleep(_SETTLE_SECS)
    return stores.read(place) == content

  def _see_time(self, place):
    return stores.modified(place)

  def _see_now(self):
    probe = f'{self._path}.{secrets.token_hex(4)}.new'
    stores.write(probe, b'{}')
    try:
      return stores.modified(probe)
    finally:
      stores.remove(probe)
