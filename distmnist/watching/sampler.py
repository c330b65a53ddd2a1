"""Writes the metrics of this task at intervals, in a thread of its own.

So a task that makes no progress still reports, and no step waits for the disk.
"""

import contextlib
import importlib.metadata
import os
import platform
import socket
import threading

import distmnist
from distmnist.common import owner_file
from distmnist.common.names import ATTEMPT, LAUNCH_ID
from distmnist.watching import metrics_file, usage

# Even if --log_secs is shorter: a line costs a millisecond of a core.
LEAST_SECS = 0.5


def _find_versions():
  """Returns {name: version} of what results may depend on."""
  found = {'distmnist': distmnist.__version__}
  found['Python'] = platform.python_version()
  for name in ('tensorflow', 'numpy'):
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      found[name] = importlib.metadata.version(name)
  return found


class Sampler:
  """The metrics of one life of a task, from `start` to `close`.

  Attributes:
    collect: callable() -> dict, what this task reports besides the usage of
      its process; may be set.
    sinks: list of callable(line), given each line that is written.
    ending: str, what to call an orderly end before the work is done.
  """

  def __init__(self, logdir, task, life, every_secs):
    """
    Args:
      logdir: str.
      task: str, such as 'ps 0'.
      life: str, different in each process.
      every_secs: float, from one sample to the next.
    """
    me, every_secs = owner_file.describe_self(), max(LEAST_SECS, every_secs)
    launch = os.environ.get(LAUNCH_ID)
    self.collect = dict
    self.sinks = []
    self.ending = ''
    self._writer = metrics_file.Writer(
      logdir,
      task,
      life,
      host=socket.gethostname(),
      pid=os.getpid(),
      process={name: me[name] for name in ('pid', 'machine', 'start')},
      attempt=int(os.environ.get(ATTEMPT, '1')),
      **({'launch': launch} if launch else {}),
      versions=_find_versions(),
      every_secs=every_secs,
    )
    self._every_secs = min(every_secs, threading.TIMEOUT_MAX)
    self._usage = usage.Usage()
    self._is_closed = threading.Event()
    self._lock = threading.Lock()
    self._thread = threading.Thread(target=self._run, daemon=True)

  def start(self):
    """Writes the first sample; the others follow on their own."""
    self.sample()
    self._thread.start()
    return self

  def write(self, kind, **fields):
    """Writes a line of a kind other than `sample`."""
    with self._lock:
      if not self._is_closed.is_set():
        self._give(self._writer.write(kind, **fields))

  def close(self, error=''):
    """Writes the last lines.

    Args:
      error: str, what made this life fail, or ''.
    """
    if self._is_closed.is_set():
      return
    self.sample()
    with self._lock:
      self._is_closed.set()
      text = error or self.ending
      self._give(self._writer.write('end', ok=not error, text=text))

  def _run(self):
    while not self._is_closed.wait(self._every_secs):
      self.sample()

  def sample(self):
    """Writes a line of kind `sample` now."""
    # A dict that changes while `collect` reads it is left to the next sample.
    with contextlib.suppress(RuntimeError), self._lock:
      if not self._is_closed.is_set():
        fields = self.collect() | self._usage.look()
        self._give(self._writer.write('sample', **fields))

  def _give(self, line):
    for sink in self.sinks:
      sink(line)
