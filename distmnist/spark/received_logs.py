"""The logs of tasks on executors, as their lines reach the driver."""

import os

from distmnist.launching import task_logs
from distmnist.spark import agent_server


class ReceivedLogs:
  """One file a task; each attempt goes on where the last one ended."""

  def __init__(self, logs_dir, names):
    """
    Args:
      logs_dir: str, an existing folder.
      names: list of str, the tasks.
    """
    self._paths = {
      name: os.path.join(logs_dir, name.replace(' ', '_') + '.log')
      for name in names
    }
    self._starts = {}  # of each last attempt, in bytes

  def path(self, name):
    """Returns where the log of a task is (str)."""
    return self._paths[name]

  def begin(self, name, num_restarts):
    """Makes the log of a task ready for its next attempt."""
    with agent_server.open_log(self._paths[name]) as log:
      if num_restarts:
        log.write(f'--- restart {num_restarts} ---\n')
      self._starts[name] = log.tell()

  def add(self, name, lines):
    """Adds `lines`, a list of str, to the log of a task."""
    with agent_server.open_log(self._paths[name]) as log:
      log.writelines(f'{line}\n' for line in lines)

  def last_lines(self, name, num_lines=10):
    """Returns the last lines (list of str) of a task's last attempt."""
    if name not in self._starts:
      return []
    return task_logs.read_last_lines(
      self._paths[name], self._starts[name], num_lines
    )
