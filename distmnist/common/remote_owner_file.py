"""A file that says which process owns something, in a store.

A store can neither link nor rename. So each owner has an object of its own with
the next number in its name: it is created only if there is none, which the
store lets only one of two processes do, and the highest number is the owner's.
The number is a fencing token: only the owner writes its object, and one that
was suspended finds a higher number.

A store that creates an object even where one exists (an old one of another
maker, HDFS) is detected at the start. There, the last of two processes that
write within the same seconds is the owner, and each waits that long before it
believes that it is.
"""

import json
import logging
import os
import secrets
import time

from distmnist.storage import paths, stores

_log = logging.getLogger(__name__)

_SETTLE_SECS = 2.0


class RemoteOwnerFile:
  """Like owner_file.OwnerFile, but at an address."""

  def __init__(self, path):
    """
    Args:
      path: str, the address; the numbers are added to it.
    """
    self._path = path
    self._folder, self._name = path.rsplit('/', 1)
    self._highest = 0
    self._mine = None

  def read(self):
    """Returns what the owner's object says, as owner_file.read does."""
    numbers = self._list_numbers()
    self._highest = max(numbers, default=0)
    if not numbers:
      return None
    try:
      found = json.loads(paths.read_text(self._place(self._highest)))
      return found if isinstance(found, dict) else {}
    except FileNotFoundError:
      return None
    except ValueError:
      return {}

  def create(self, found):
    """Makes the object with the next number; returns whether it is ours."""
    place = self._place(self._highest + 1)
    content = json.dumps(found).encode()
    if not stores.create(place, content):
      return False
    if not stores.is_exclusive(place) or stores.create(place, b'{}'):
      _log.info(
        f'{place}: this store may create an object where one exists, so two '
        f'processes that start within {_SETTLE_SECS:g} s of each other are '
        'told apart by reading it back, not by the store'
      )
      stores.write(place, content)
      time.sleep(_SETTLE_SECS)
      if stores.read(place) != content:
        return False
    self._mine = self._highest + 1
    for number in self._list_numbers():
      if number < self._mine:
        stores.remove(self._place(number))
    return True

  def replace(self, found):
    """Takes over from the owner that `read` saw, or rewrites our own object."""
    if self._mine is not None and self._mine == self._highest:
      stores.write(self._place(self._mine), json.dumps(found).encode())
    else:
      # If another process was faster, the next `read` shows it.
      self.create(found)

  def touch(self):
    place = self._place(self._mine)
    stores.write(place, stores.read(place))

  def see_touch(self):
    """Returns (time of the last touch, seconds since then), two floats."""
    touched = stores.modified(self._place(self._highest))
    probe = f'{self._path}.{secrets.token_hex(4)}.new'
    stores.write(probe, b'{}')
    try:
      return touched, stores.modified(probe) - touched
    finally:
      stores.remove(probe)

  def _place(self, number):
    return f'{self._path}.{number:08d}'

  def _list_numbers(self):
    endings = [
      os.path.splitext(name)
      for name in paths.list_names(self._folder)
      if name.startswith(f'{self._name}.')
    ]
    return [
      int(x[1:])
      for root, x in endings
      if root == self._name and x[1:].isdigit()
    ]
