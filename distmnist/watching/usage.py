"""What this process uses: bytes on its sockets, memory, processor time."""

import os
import time

from distmnist.watching import process_bytes

_PAGE = os.sysconf('SC_PAGE_SIZE')


class Usage:
  """What is used in total, and per second since the last look."""

  def __init__(self):
    self._sockets = process_bytes.Meter()
    self._mark = self._count()

  def _count(self):
    sent, received = self._sockets.read() or (None, None)
    return {
      'time': time.monotonic(),
      'sent_bytes': sent,
      'received_bytes': received,
      'cpu_secs': time.process_time(),
    }

  def look(self):
    """Returns a dict of numbers; the schema has their names.

    Bytes are counted from when this object was made; None where the system
    does not count them.
    """
    then, now = self._mark, self._count()
    self._mark = now
    secs = max(1e-9, now['time'] - then['time'])
    found = {name: now[name] for name in now if name != 'time'}
    for name in ('sent_bytes', 'received_bytes'):
      if now[name] is not None and then[name] is not None:
        found[f'{name}_per_sec'] = (now[name] - then[name]) / secs
    found['cpu_cores'] = (now['cpu_secs'] - then['cpu_secs']) / secs
    found['rss_bytes'] = read_rss()
    return found


def read_rss(pid='self'):
  """Returns the resident memory of a process in bytes, None if unknown."""
  try:
    with open(f'/proc/{pid}/statm', encoding='ascii') as file:
      return int(file.read().split()[1]) * _PAGE
  except (OSError, IndexError, ValueError):
    return None
