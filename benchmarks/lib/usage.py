"""What processes use, as the kernel counts it in /proc."""

import contextlib
import os
import pathlib
import re
import time

SAMPLE_SECS = 0.5


def _read_stat(pid):
  """Returns the fields of a process that come after its name, list of str."""
  # The name may contain anything.
  text = pathlib.Path(f'/proc/{pid}/stat').read_text()
  return text.rpartition(')')[2].split()


def find_descendants(pids):
  """Returns the set of `pids` and all their descendants."""
  children = {}
  for path in pathlib.Path('/proc').glob('[0-9]*'):
    with contextlib.suppress(OSError):
      parent = int(_read_stat(path.name)[1])
      children.setdefault(parent, []).append(int(path.name))
  found, todo = set(), list(pids)
  while todo:
    pid = todo.pop()
    found.add(pid)
    todo += children.get(pid, [])
  return found


def find_by_word(word):
  """Returns the pids of the processes with `word` on their command lines."""
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    with contextlib.suppress(OSError):
      if word.encode() in path.read_bytes().split(b'\0'):
        found.append(int(path.parts[2]))
  return found


def read_cpu_secs(pids):
  """Returns the CPU seconds of processes so far; gone ones do not count."""
  ticks = 0
  for pid in pids:
    with contextlib.suppress(OSError):
      ticks += sum(map(int, _read_stat(pid)[11:13]))
  return ticks / os.sysconf('SC_CLK_TCK')


def read_kb(pid, field, file='status'):
  """Returns a field of /proc/PID/`file` in kB, 0 if the process is gone.

  Args:
    pid: int.
    field: str: in `status`, VmHWM, the peak of resident memory, or VmRSS; in
      `smaps_rollup`, Pss, where pages that n processes share count 1/n in each.
    file: str.
  """
  try:
    text = pathlib.Path(f'/proc/{pid}/{file}').read_text()
  except OSError:
    return 0
  found = re.search(rf'^{field}:\s+(\d+) kB', text, re.MULTILINE)
  return int(found[1]) if found else 0


class PeakMemory:
  """The sum of the peaks of processes and their descendants, by sampling."""

  def __init__(self):
    self._peaks = {}  # Pid -> kB.
    self._next_time = 0.0

  @property
  def megabytes(self):
    return sum(self._peaks.values()) / 1000

  def look(self, pids):
    """Takes a sample if the last one is old enough; call it often."""
    if time.monotonic() < self._next_time:
      return
    self._next_time = time.monotonic() + SAMPLE_SECS
    for pid in find_descendants(pids):
      peak = read_kb(pid, 'VmHWM')
      self._peaks[pid] = max(self._peaks.get(pid, 0), peak)
