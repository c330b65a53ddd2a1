"""How one of several processes becomes the owner that a file names.

See owner.py for what the owner does afterwards, and owner_file.py for what the
file says.
"""

import logging
import time

from distmnist.common import cli, owner_file

_log = logging.getLogger(__name__)

# An owner about which nothing else is known has lost what its file stands for
# once it has not touched the file for this long.
SILENT_SECS = 30.0
# How often the owner touches its file.
TOUCH_SECS = 5.0
_LOOK_SECS = 0.5
# And two touches must have been missed while we looked: the clock of the file
# server may have been set forward.
_NUM_LOOKS = int(2 * TOUCH_SECS / _LOOK_SECS) + 4


def refuse(name, folder, found):
  """Returns the cli.RunError that names the owner of a folder."""
  return cli.RunError(
    f'{name}={folder} is in use by {owner_file.describe(found)}: stop that '
    'one, or give another folder'
  )


class Takeover:
  """An attempt of this process to become the owner of a folder."""

  def __init__(self, name, folder, file, pause):
    """
    Args:
      name: str, what messages call the folder, such as '--logdir'.
      folder: str.
      file: numbered_file.NumberedFile that names its owner.
      pause: callable(secs).
    """
    self._name = name
    self._folder = folder
    self._file = file
    self._pause = pause
    self._seen = None  # (life, time of the last touch) at the last look.
    self._num_same = 0  # How many looks before it have seen the same.

  def run(self, is_new_run, patience_secs):
    """Waits until the folder is this process's.

    Args:
      is_new_run: bool, whether another training begins in the folder.
      patience_secs: float, how long to wait for a living owner.

    Returns:
      dict, what the file now says of this process.

    Raises:
      cli.RunError: another process has it.
      OSError: the folder cannot be written.
    """
    has_said = False
    deadline = time.monotonic() + patience_secs
    while True:
      found = self._file.read()
      run = None if is_new_run else (found or {}).get('run')
      me = owner_file.describe_self(run)
      try:
        is_alive, is_gone = (
          (False, True) if found is None else self._judge(found)
        )
      except FileNotFoundError:
        continue  # Removed between two looks.
      if is_gone:
        if self._file.create(me):
          return me
        self._pause(_LOOK_SECS)  # Another was faster: it is the owner now.
        continue
      if is_alive and time.monotonic() >= deadline:
        raise refuse(self._name, self._folder, found)
      if not has_said:
        has_said = True
        _log.info(
          f'waiting for {self._name}={self._folder}: '
          f'{owner_file.describe(found)} has it, or has ended without a word '
          f'less than {SILENT_SECS:g} s ago'
        )
      self._pause(_LOOK_SECS)

  def _judge(self, found):
    """Returns (is_alive, is_gone) of the owner; both False if unknown."""
    if found.get('has_ended') or owner_file.is_known_dead(found):
      return False, True
    touched, silent_secs = self._file.see_touch()
    seen = found.get('life'), touched
    is_touched = self._seen not in (None, seen)
    self._num_same = self._num_same + 1 if self._seen == seen else 0
    self._seen = seen
    is_alive = is_touched or owner_file.is_alive_here(found)
    is_silent = silent_secs > SILENT_SECS and self._num_same >= _NUM_LOOKS
    return is_alive, is_silent and not is_alive
