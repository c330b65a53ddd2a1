"""A child that ends with its parent, and takes its process group with it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import IO

_PR_SET_PDEATHSIG = 1
# Loaded here, as a fork of a process with threads must not wait for a lock.
_LIBC = ctypes.CDLL(None)
_MAX_FILES = 1 << 16


def die_with_parent() -> None:
  """Has the kernel kill this process once its parent ends, however it ends."""
  _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def allow_many_files() -> None:
  """Lets this process have _MAX_FILES open files, if the system allows it."""
  soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
  soft = max(soft, min(most, _MAX_FILES))
  resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))


def has_ended(pid: int) -> bool:
  """Whether a child has ended and waits to be reaped; kills its group then.

  Whatever the child has started is killed before the child is reaped: until
  then no other process group can have this number.
  """
  flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
  if os.waitid(os.P_PID, pid, flags) is None:
    return False
  with contextlib.suppress(ProcessLookupError, PermissionError):
    os.killpg(pid, signal.SIGKILL)
  return True


def get_pipe(end: IO[bytes] | None) -> IO[bytes]:
  """Returns a pipe to a child: an end of a Popen that was asked for one."""
  if end is None:
    raise ValueError('this child was started without that pipe')
  return end


def end(process: subprocess.Popen[bytes], secs: float) -> int:
  """Waits for a child to end, and kills it after `secs`; returns its code."""
  try:
    return process.wait(secs)
  except subprocess.TimeoutExpired:
    process.kill()
    return process.wait()


class Task:
  """A task that an agent runs for a launcher which is elsewhere.

  It has a session and a group of its own, ends with the agent, and what it has
  started ends with it.

  Attributes:
    stdout: what it writes, if subprocess.PIPE was asked for.
    kill_time: by time.monotonic, when it is killed; None while it may run.
  """

  def __init__(
    self,
    words: Sequence[str],
    env: Mapping[str, str],
    stdout: IO[bytes] | int,
    grace_secs: float,
  ) -> None:
    """Starts it.

    Args:
      words: what follows `python`.
      env: variables beyond ours.
      stdout: where its lines go, stderr's too; or subprocess.PIPE.
      grace_secs: from its first signal to its end, for `leave`.
    """
    self._grace_secs = grace_secs
    self._told_time: float | None = None
    self.kill_time: float | None = None
    self._process = subprocess.Popen(
      [sys.executable, *words],
      env={**os.environ, **env},
      stdin=subprocess.DEVNULL,
      stdout=stdout,
      stderr=subprocess.STDOUT,
      start_new_session=True,
      preexec_fn=die_with_parent,
    )
    self.stdout = self._process.stdout

  def tell(self, signum: int) -> float:
    """Sends it a signal; returns when it was sent the first one."""
    self._told_time = self._told_time or time.monotonic()
    if self._process.returncode is None:
      os.killpg(self._process.pid, signum)
    return self._told_time

  def leave(self, signum: int | None = None) -> None:
    """Has it end, and `find_code` kill it after its grace.

    Args:
      signum: what it is sent; by default SIGTERM, unless it was told: a second
        signal would mean to leave at once, unsaved.
    """
    told_time = self._told_time
    if signum is not None or told_time is None:
      told_time = self.tell(signum or signal.SIGTERM)
    self.kill_time = self.kill_time or told_time + self._grace_secs

  def find_code(self) -> int | None:
    """Returns its exit code, -n after signal n; None while it runs."""
    if self.kill_time is not None and time.monotonic() >= self.kill_time:
      self.tell(signal.SIGKILL)
    if self._process.returncode is None and has_ended(self._process.pid):
      self._process.wait()
    return self._process.returncode
