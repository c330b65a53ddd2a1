"""The lock by which a trial on an executor finds that it shares the folder."""

import fcntl


class TrialLock:
  """A file of the driver's, in a folder that all executors are to share."""

  def __init__(self, path):
    """
    Args:
      path: str.
    """
    self._path = path
    self._file = None

  def take(self, word):
    """Takes it, shared with the other trials of the sweep.

    Args:
      word: str, what the driver has written there.

    Returns:
      str, what is in the way; None if it is taken, until `close` or the end of
      this process.
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
