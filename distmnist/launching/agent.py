"""Runs a task for a launcher elsewhere: over ssh, or in an actor of Ray.

It starts the task, and ends it once it no longer hears from the launcher: the
launcher was killed, its machine is off, or the cable is cut. Line by line:

  stdin   the request, {"argv": [...], "env": {...}, "port": number or null,
          "grace_secs": number}; then the numbers of signals for the task, and
          empty lines as signs of life
  stdout  what the task writes
  stderr  READY once this runs

Its exit code is the task's, 128 + n by signal n.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TypedDict

from distmnist.common import cli, console, ports
from distmnist.common import signals as signals_lib
from distmnist.common.names import AGENT
from distmnist.launching import child_process

READY = f'{AGENT}: ready'
# After this long without a line the launcher counts as lost.
LOST_SECS = 60.0
# An earlier attempt or run may still be leaving: if only the launcher saw the
# loss, that agent notices LOST_SECS later, then has its grace and some more.
LEAVE_SECS = 11.0
# After the task's end, to deliver the last that it wrote.
DRAIN_SECS = 10.0
SSH_FAILED_CODE = 255
_TICK_SECS = 0.1
_MAX_BUFFERED_BYTES = 1 << 20


def serve() -> int:
  """Runs the task requested on stdin; returns its exit code."""
  with open(0, 'rb', buffering=0, closefd=False) as stdin:
    line = stdin.readline()
  if not line.endswith(b'\n'):
    return cli.FAILED
  print(READY, file=sys.stderr, flush=True)
  return _Agent(json.loads(line)).serve()


class Request(TypedDict):
  """The first line from a launcher; see above."""

  argv: Sequence[str]
  env: dict[str, str]
  port: int | None
  grace_secs: float


class _Launcher:
  """The launcher at the other end of stdin and stdout.

  Attributes:
    is_heard: whether more may come from it.
    buffer: bytes still to be sent to it.
  """

  def __init__(self) -> None:
    for fd in (0, 1):
      os.set_blocking(fd, False)
    self.is_heard = self._is_read = True
    self.buffer = b''
    self._line = b''  # of stdin, not yet complete
    self._heard_time = time.monotonic()

  @property
  def lost_time(self) -> float:
    """The time when it counts as lost if nothing comes from it until then."""
    return self._heard_time + LOST_SECS

  @property
  def is_lost(self) -> bool:
    """Whether it has been silent for too long, and is not known to be gone."""
    return self.is_heard and time.monotonic() > self.lost_time

  def show(self, data: bytes) -> None:
    """Queues the bytes `data` for it, if it still reads."""
    self.buffer += data if self._is_read else b''

  def listen(self) -> list[int]:
    """Returns the signals that it sends to the task."""
    try:
      data = os.read(0, 1 << 16)
    except BlockingIOError:
      return []
    except OSError:
      data = b''
    self._heard_time = time.monotonic()
    if not data:
      self.lose()
    *lines, self._line = (self._line + data).split(b'\n')
    return [int(line) for line in lines if line]

  def write(self) -> None:
    try:
      self.buffer = self.buffer[os.write(1, self.buffer) :]
    except BlockingIOError:
      pass
    except OSError:
      self._is_read, self.buffer = False, b''

  def lose(self) -> None:
    """Marks it as gone: nothing more is read from it or sent to it."""
    self.is_heard = self._is_read = False
    self.buffer = b''


class _Agent:
  """Runs the task here on behalf of the launcher.

  No read or write may block it: a lost launcher has to be noticed in time.
  """

  def __init__(self, request: Request) -> None:
    self._request = request
    # A signal that ends sshd's session is meant for the task.
    self._signals = signals_lib.Reader(
      signal.SIGCHLD, *set(signals_lib.STOPS) - {signal.SIGINT}
    )
    self._task: child_process.Task | None = None
    self._is_leaving = False
    self._output: int | None = None  # of the task, while there may be more
    self._launcher = _Launcher()

  def serve(self) -> int:
    """Runs the task to its end; returns its exit code, 128 + n by signal n."""
    console.print_logs(self._write_to_log)
    if not self._wait_for_port():
      return 128 + signal.SIGTERM
    task = self._start()
    code = None
    while code is None:
      self._turn(self._secs_left(task))
      if self._launcher.is_lost:
        self._launcher.lose()
        self._leave()
      code = task.find_code()
    # Its group is gone, so its output comes to an end.
    deadline = time.monotonic() + DRAIN_SECS
    while (
      self._output or self._launcher.buffer
    ) and time.monotonic() < deadline:
      self._turn(_TICK_SECS)
    # 255 would be ssh's own.
    return 128 - code if code < 0 else min(code, SSH_FAILED_CODE - 1)

  def _wait_for_port(self) -> bool:
    """Returns whether the task may start: it is not told to leave meanwhile.

    If the port stays taken, the task says so better than we can.
    """
    port, secs = self._request['port'], self._request['grace_secs']
    wait = console.Wait(LOST_SECS + secs + LEAVE_SECS)
    what = f'for port {port} here, which another process has'
    while not (port is None or ports.is_free(port) or wait.is_over(what)):
      self._turn(_TICK_SECS)
      if self._is_leaving:
        return False
    return True

  def _write_to_log(self, text: str) -> None:
    """Writes a line into the log of the task."""
    self._launcher.show(text.encode() + b'\n')

  def _start(self) -> child_process.Task:
    self._task = child_process.Task(
      self._request['argv'][1:],
      {'PYTHONUNBUFFERED': '1', **self._request['env']},
      subprocess.PIPE,
      # From the first signal, if the launcher is gone. A ps needs as long as a
      # worker: stopped with all others, it lets the chief save first.
      self._request['grace_secs'],
    )
    self._output = child_process.get_pipe(self._task.stdout).fileno()
    return self._task

  def _turn(self, secs: float) -> None:
    """Waits until something happens, at most `secs`; handles it."""
    launcher = self._launcher
    readers: list[int | signals_lib.Reader] = [self._signals]
    if launcher.is_heard:
      readers.append(0)
    if self._output and len(launcher.buffer) < _MAX_BUFFERED_BYTES:
      readers.append(self._output)
    writers = [1] if launcher.buffer else []
    ready, writable, _ = select.select(readers, writers, [], secs)
    if self._signals in ready:
      for signum in self._signals.read():
        if signum != signal.SIGCHLD:
          self._leave()
    if 0 in ready:
      self._listen()
    if self._output is not None and self._output in ready:
      data = os.read(self._output, 1 << 16)
      self._output = self._output if data else None
      launcher.show(data)
    if writable:
      launcher.write()

  def _secs_left(self, task: child_process.Task) -> float:
    """Returns the seconds until something is due that no event announces."""
    due = task.kill_time or self._launcher.lost_time
    return min(max(_TICK_SECS, due - time.monotonic()), LOST_SECS)

  def _listen(self) -> None:
    signums = self._launcher.listen()
    if not self._launcher.is_heard:
      self._leave()
    for signum in signums:
      if self._task is None:
        self._leave()
      else:
        self._task.tell(signum)

  def _leave(self) -> None:
    self._is_leaving = True
    if self._task:
      self._task.leave()


if __name__ == '__main__':
  exit_code = serve()
  sys.stdout.flush()
  os._exit(exit_code)
