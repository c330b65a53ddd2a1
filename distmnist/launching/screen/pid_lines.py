"""Tells which process is which task, so that the user can look at any."""

import logging

_log = logging.getLogger(__name__)

# With more tasks, only some pids are printed, and how to find the others.
_MAX_PIDS = 16


class PidLines:
  """Waits for the first pid of each process, then prints all in one line."""

  def __init__(self, names):
    """
    Args:
      names: iterable of str, the processes to wait for.
    """
    self._missing = set(names)
    self._first = {}

  def note(self, name, pid, attempt):
    """Takes the pid of a task, or of the fork server, that has begun."""
    if attempt > 1:
      _log.info(f'{name} is pid {pid} now')
    if name not in self._missing:
      return
    self._missing.remove(name)
    self._first[name] = pid
    if not self._missing:
      self._log_all()

  def _log_all(self):
    shown = [f'{name} {pid}' for name, pid in self._first.items()]
    more = len(shown) - _MAX_PIDS
    if more > 0:
      shown[_MAX_PIDS:] = [f"{more} more: pgrep -af '^distmnist '"]
    _log.info(f'pids on this machine: {", ".join(shown)}')
