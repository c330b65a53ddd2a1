"""Tells which process is which task, so that the user can look at any."""

# Of more tasks the pids of some are printed, and how to find the others.
_MAX_PIDS = 16


class PidLines:
  """Waits for the first pid of each process, then prints all in one line."""

  def __init__(self, names, say):
    """
    Args:
      names: iterable of str, the processes to wait for.
      say: callable that takes a line.
    """
    self._missing = set(names)
    self._first = {}
    self._say = say

  def note(self, name, pid, attempt):
    """Takes the pid of a task, or of the fork server, that has begun."""
    if attempt > 1:
      self._say(f'{name} is pid {pid} now')
    if name not in self._missing:
      return
    self._missing.remove(name)
    self._first[name] = pid
    if not self._missing:
      self._say_all()

  def _say_all(self):
    shown = [f'{name} {pid}' for name, pid in self._first.items()]
    more = len(shown) - _MAX_PIDS
    if more > 0:
      shown[_MAX_PIDS:] = [f"{more} more: pgrep -af '^distmnist '"]
    self._say(f'pids on this machine: {", ".join(shown)}')
