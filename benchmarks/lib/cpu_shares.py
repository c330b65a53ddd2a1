"""Gives each task of a run a share of a core, so that none uses another's.

A task that is lost on a busy machine leaves its processor time to the others,
which hides what its loss costs. A quota of the kernel's cpu controller, one
control group per task, does not: who is alone gets no more than before. Where
no such group can be made, each task is kept to one core by `taskset`; tasks
that share one still use the time of each other.
"""

import contextlib
import os
import pathlib
import subprocess

# Where the controller may be: version 2 of control groups, and version 1.
ROOTS = [pathlib.Path('/sys/fs/cgroup'), pathlib.Path('/sys/fs/cgroup/cpu')]
# Short against a step of a cnn: by default a task stands for up to 100 ms.
PERIOD_USECS = 10_000


class Shares:
  """The shares of the tasks of a run; a context that removes its groups.

  Attributes:
    how: str, what the table says of it.
  """

  def __init__(self, percent, names, roots=ROOTS):
    """
    Args:
      percent: int, of a core for each task; 0 for no limit.
      names: list of str, who has a share.
      roots: list of paths, tried in turn.
    """
    self._percent, self._names = percent, list(names)
    self._groups, self._held = {}, {}
    if not percent:
      self.how = 'no limit'
      return
    for root in roots:
      with contextlib.suppress(OSError):
        self._make_groups(root)
        break
    self.how = f'{percent} % of a core each (cpu quota)'
    if not self._groups:
      self.how = 'pinned to a core each (taskset)'

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._remove_groups()

  def hold(self, pids):
    """Gives processes their shares, those that have them already as well.

    Args:
      pids: {name: pid}.
    """
    if not self._percent:
      return
    for name, pid in pids.items():
      if self._held.get(name) != pid:
        # It may be gone by now.
        with contextlib.suppress(OSError):
          self._place(name, pid)
          self._held[name] = pid

  def _place(self, name, pid):
    if self._groups:
      (self._groups[name] / 'cgroup.procs').write_text(str(pid))
      return
    cores = sorted(os.sched_getaffinity(0))
    core = cores[self._names.index(name) % len(cores)]
    subprocess.run(
      ['taskset', '-a', '-c', '-p', str(core), str(pid)], capture_output=True
    )

  def _make_groups(self, root):
    """Makes a group with a quota per name.

    Raises:
      OSError: not here.
    """
    quota = self._percent * PERIOD_USECS // 100
    try:
      for i, name in enumerate(self._names):
        group = root / f'goodput_{os.getpid()}_{i}'
        group.mkdir()
        self._groups[name] = group
        if (group / 'cpu.max').exists():
          _write(group / 'cpu.max', f'{quota} {PERIOD_USECS}')
        else:
          _write(group / 'cpu.cfs_period_us', PERIOD_USECS)
          _write(group / 'cpu.cfs_quota_us', quota)
    except OSError:
      self._remove_groups()
      raise

  def _remove_groups(self):
    for group in self._groups.values():
      # The kernel still counts a process for a moment after its end.
      with contextlib.suppress(OSError):
        group.rmdir()
    self._groups = {}


def _write(path, value):
  # Not 'w', which would make a file where there is no controller.
  with open(path, 'r+') as file:
    file.write(str(value))
