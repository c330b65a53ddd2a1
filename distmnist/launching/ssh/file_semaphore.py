"""Lets a few of many processes through at a time.

sshd turns hundreds of simultaneous clients away (MaxStartups), and the cost of
each new try keeps both machines from serving those that were let in.

The semaphore is a file with a byte for each place; a process that locks one of
them is through. The kernel unlocks it when the process ends, however it ends.
"""

import fcntl
import random

# Between two looks for a free place.
_LOOK_SECS = 0.1, 0.5


class FileSemaphore:
  """One process's way through."""

  def __init__(self, path, num_places):
    """
    Args:
      path: str, of a file that need not exist yet, the same for all processes.
      num_places: int, how many processes may be through at a time.
    """
    self._path = path
    self._num_places = num_places
    self._file = None

  def enter(self, pause):
    """Waits for a free place.

    Args:
      pause: callable(secs), called between looks; returns whether to give up.

    Returns:
      bool, whether this process is through.
    """
    self._file = open(self._path, 'ab')  # noqa: SIM115
    while not self._take_place():
      if pause(random.uniform(*_LOOK_SECS)):
        self.leave()
        return False
    return True

  def _take_place(self):
    for place in range(self._num_places):
      try:
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
      except (BlockingIOError, PermissionError):
        continue  # Another process has it.
      return True
    return False

  def leave(self):
    """Makes room for another process; may be called more than once."""
    if self._file:
      self._file.close()
      self._file = None
