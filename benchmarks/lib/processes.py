"""The processes that a benchmark starts, none of which outlives it; their logs.

Each program of benchmarks/ imports this before distmnist, which is then the
package of this checkout.
"""

import dataclasses
import math
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import time

REPO = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(REPO))
from distmnist.common import signals  # noqa: E402
from distmnist.launching.screen import task_logs  # noqa: E402

TICK_SECS = 0.05
# From SIGTERM to SIGKILL; a launcher stops its tasks meanwhile.
GRACE_SECS = 60.0
_received = []  # The numbers of the signals.


class ProcessError(RuntimeError):
  """A process has failed; the text says how, with its last lines."""


def exit_by(main, *args):
  """Exits with main(*args), or on a signal where nothing is half done.

  That is where a Group waits; what it has started is ended first.
  """
  with signals.collecting(_received):
    sys.exit(main(*args))


def check_signals():
  """Raises SystemExit after a signal."""
  if _received:
    raise SystemExit(128 + _received[0])


@dataclasses.dataclass(eq=False)
class Process:
  """A process to start; afterwards what became of it.

  Attributes:
    name: str.
    argv: list of str.
    log: path of the file to which its output is appended.
    env: dict of str, added to ours.
    cwd: path, None for ours.
    is_server: bool, whether it must not end on its own: it has to be killed.
    has_tasks: bool, whether SIGTERM is tried before SIGKILL, as it has tasks to
      stop.
    pid: int, None before it is started.
    code: int, the exit code; None before its end.
  """

  name: str
  argv: list
  log: pathlib.Path
  env: dict = dataclasses.field(default_factory=dict)
  cwd: pathlib.Path | None = REPO
  is_server: bool = False
  has_tasks: bool = False
  pid: int | None = None
  code: int | None = None

  def read_last_lines(self):
    return '\n'.join(task_logs.read_last_lines(self.log, num_lines=15))


class Group:
  """Processes, ended by their handles whatever happens; a context."""

  def __init__(self, tick_secs=TICK_SECS):
    """
    Args:
      tick_secs: float, how often a wait checks its condition.
    """
    self._tick_secs = tick_secs
    self._processes = []
    self._handles = {}  # Process -> (Popen, pidfd), of those that run.
    self._selector = selectors.PollSelector()  # It uses no descriptor.
    self.cpu_secs = 0.0

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  @property
  def pids(self):
    return [process.pid for process in self._handles]

  def start(self, process):
    """Starts a Process, in a session of its own, and returns it."""
    check_signals()
    with open(process.log, 'ab') as log:
      popen = subprocess.Popen(
        process.argv,
        cwd=process.cwd,
        env={**os.environ, **process.env},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        # The terminal's Ctrl-C is ours to pass on.
        start_new_session=True,
      )
    process.pid = popen.pid
    pidfd = os.pidfd_open(popen.pid)
    self._handles[process] = popen, pidfd
    self._processes.append(process)
    self._selector.register(pidfd, selectors.EVENT_READ, process)
    return process

  def signal(self, process, signum):
    """Signals a process unless it has ended."""
    if process in self._handles:
      signal.pidfd_send_signal(self._handles[process][1], signum)

  def turn(self, secs):
    """Waits for `secs` or an end; raises SystemExit if there was a signal."""
    check_signals()
    self._turn(secs)

  def _turn(self, secs=TICK_SECS):
    for key, _ in self._selector.select(secs):
      process = key.data
      popen, pidfd = self._handles.pop(process)
      self._selector.unregister(pidfd)
      os.close(pidfd)
      # Includes what its own children used, if it waited for them.
      _, status, usage = os.wait4(process.pid, 0)
      process.code = popen.returncode = os.waitstatus_to_exitcode(status)
      self.cpu_secs += usage.ru_utime + usage.ru_stime

  def wait_until(self, is_true, limit_secs):
    """Returns whether is_true() became true within `limit_secs`."""
    deadline = time.monotonic() + limit_secs
    while not is_true():
      left = deadline - time.monotonic()
      if left <= 0:
        return False
      self.turn(min(left, self._tick_secs))
    return True

  def check(self):
    """Raises ProcessError if a process has failed, or a server has ended."""
    for process in self._processes:
      if process.code or (process.is_server and process.code is not None):
        raise ProcessError(
          f'{process.name} ended with {process.code}:\n'
          f'{process.read_last_lines()}'
        )

  def run(self, processes, limit_secs=math.inf, on_tick=lambda: None):
    """Runs processes until all but the servers end; then ends the servers.

    Args:
      processes: list of Process.
      limit_secs: float.
      on_tick: callable, called at each tick and at the end.

    Returns:
      (start, end): time.monotonic() at the command, and when nothing was left.

    Raises:
      ProcessError: one of them has failed, or they took too long.
    """
    clients = [p for p in processes if not p.is_server]

    def is_over():
      on_tick()
      self.check()
      return all(process.code is not None for process in clients)

    start = time.monotonic()
    try:
      for process in processes:
        self.start(process)
      if not self.wait_until(is_over, limit_secs):
        [process, *_] = self._handles
        raise ProcessError(
          f'still ran after {limit_secs:g} s; {process.name}:\n'
          f'{process.read_last_lines()}'
        )
    finally:
      self.close()
    on_tick()
    return start, time.monotonic()

  def close(self):
    """Ends what still runs."""
    for process in self._handles:
      # TensorFlow 2 takes SIGTERM for a notice of preemption, and stays.
      self.signal(
        process, signal.SIGTERM if process.has_tasks else signal.SIGKILL
      )
    deadline = time.monotonic() + GRACE_SECS
    while self._handles and time.monotonic() < deadline:
      self._turn()
    for process in self._handles:
      self.signal(process, signal.SIGKILL)
    while self._handles:
      self._turn()
    self._processes = []


class Log:
  """What a task has written, each line with the time at which we saw it.

  Attributes:
    lines: list of (time, str).
    step_times: list of float, of the lines that report a step.
  """

  def __init__(self, path, clock=time.monotonic):
    """
    Args:
      path: path, of a file that need not exist yet.
      clock: callable that returns the time.
    """
    self.path = pathlib.Path(path)
    self.lines, self.step_times = [], []
    self._clock = clock
    self._inode, self._position, self._rest = None, 0, b''

  @property
  def texts(self):
    return [text for _, text in self.lines]

  def read(self):
    """Takes in what was written since the last call."""
    if not self.path.exists():
      return
    with open(self.path, 'rb') as file:
      inode = os.fstat(file.fileno()).st_ino
      if inode != self._inode:  # Another launch keeps that of the one before.
        self._inode, self._position, self._rest = inode, 0, b''
      file.seek(self._position)
      data = file.read()
    self._position += len(data)
    *lines, self._rest = (self._rest + data).split(b'\n')
    now = self._clock()
    for line in lines:
      self._take(now, line.decode(errors='replace'))

  def _take(self, now, text):
    self.lines.append((now, text))
    if text.startswith('step '):
      self.step_times.append(now)


def task_log(logs_dir, name):
  """Returns the path of the log of a task such as 'ps 0'."""
  return pathlib.Path(logs_dir) / f'{name.replace(" ", "_")}.log'
