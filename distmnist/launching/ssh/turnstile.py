"""Lets some of many processes through at a time.

Hundreds of ssh at once are turned away by sshd (MaxStartups), and what each
new try costs keeps both machines from serving those that were let in.

A turnstile is a file of so many bytes; a process that locks one of them is
through. The kernel unlocks it when the process ends, however that is.
"""

import fcntl
import random

# From one look for a free place to the next.
_LOOK_SECS = 0.1, 0.5


class Turnstile:
  """One process's way through."""

  def __init__(self, path, num_places):
    """
    Args:
      path: str, of a file that need not exist yet, the same for all.
      num_places: int, how many are through at a time.
    """
    self._path = path
    self._num_places = num_places
    self._file = None

  def enter(self, pause):
    """Returns once there is a place.

    Args:
      pause: callable(secs) between two looks; whether to give up.

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
        continue  # Another one has it.
      return True
    return False

  def leave(self):
    """Makes room for another one; may be called again."""
    if self._file:
      self._file.close()
      self._file = None
