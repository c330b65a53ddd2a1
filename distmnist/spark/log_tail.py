"""Reads a log while a task writes it."""

_MAX_READ_BYTES = 1 << 18


class LogTail:
  """Where the reading of one log stands."""

  def __init__(self, path):
    """
    Args:
      path: str, of a log that need not exist yet.
    """
    self._path = path
    self._at = 0

  def read(self, is_end=False):
    """Returns the next whole lines (list of str), or None if there are none.

    Args:
      is_end: whether no more will be written, so that a line without an end is
        one too.

    At most 256 KiB a call; a line that is longer comes in pieces.
    """
    try:
      with open(self._path, 'rb') as log:
        log.seek(self._at)
        data = log.read(_MAX_READ_BYTES)
    except FileNotFoundError:
      return None
    cut = data.rfind(b'\n') + 1
    if len(data) == _MAX_READ_BYTES or is_end:
      cut = cut or len(data)
    if not cut:
      return None
    self._at += cut
    return data[:cut].decode(errors='replace').splitlines()
