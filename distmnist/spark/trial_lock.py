"""The lock by which a trial checks that its executor shares the folder."""

import fcntl


class TrialLock:
  """A file from the driver, in a folder that all executors should share."""

  def __init__(self, path):
    """
    Args:
      path: str.
    """
    self._path = path
    self._file = None

  def take(self, word):
    """Takes the lock, shared with the other trials of the sweep.

    Args:
      word: str, what the driver wrote into the file.

    Returns:
      str, what is in the way; None if the lock is taken, which lasts until
      `close` or the end of this process.
    """
    try:
      self._file = open(self._path, encoding='utf-8')  # noqa: SIM115
      fcntl.flock(self._file, fcntl.LOCK_SH | fcntl.LOCK_NB)
      if self._file.read() == word:
        return None
      return 'it has another one in its place'
    except BlockingIOError:
      return 'another sweep has it'
    except OSError as error:
      return error.strerror

  def close(self):
    if self._file:
      self._file.close()
