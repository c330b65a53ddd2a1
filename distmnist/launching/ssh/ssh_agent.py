"""Runs a task on the host that ssh has reached; see ssh_client.py.

It starts the task, and ends it once it no longer hears from the launcher: the
launcher was killed, its machine is off, or the cable is cut.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time

from distmnist.common import cli, console, ports
from distmnist.common import signals as signals_lib
from distmnist.common.names import SSH_AGENT
from distmnist.launching import child_process

READY = f'{SSH_AGENT}: ready'
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


def serve():
  """Runs the task requested on stdin; returns its exit code (int)."""
  line = sys.stdin.buffer.raw.readline()
  if not line.endswith(b'\n'):
    return cli.FAILED
  print(READY, file=sys.stderr, flush=True)
  return _Host(json.loads(line)).serve()


class _Launcher:
  """The launcher at the other end of stdin and stdout.

  Attributes:
    is_heard: whether more may come from it.
    buffer: bytes still to be sent to it.
  """

  def __init__(self):
    for fd in (0, 1):
      os.set_blocking(fd, False)
    self.is_heard = self._is_read = True
    self.buffer = b''
    self._line = b''  # of stdin, not yet complete
    self._heard_time = time.monotonic()

  @property
  def lost_time(self):
    """float, when it counts as lost if nothing comes from it until then."""
    return self._heard_time + LOST_SECS

  def show(self, data):
    """Queues the bytes `data` for it, if it still reads."""
    self.buffer += data if self._is_read else b''

  def listen(self):
    """Returns the signals that it sends to the task, a list of int."""
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

  def write(self):
    try:
      self.buffer = self.buffer[os.write(1, self.buffer) :]
    except BlockingIOError:
      pass
    except OSError:
      self._is_read, self.buffer = False, b''

  def lose(self):
    """Marks it as gone: nothing more is read from it or sent to it."""
    self.is_heard = self._is_read = False
    self.buffer = b''


class _Host:
  """Runs the task here on behalf of the launcher.

  No read or write may block it: a lost launcher has to be noticed in time.
  """

  def __init__(self, request):
    self._request = request
    # From the first signal, if the launcher is gone. A ps needs as long as a
    # worker: stopped with all others, it lets the chief save first.
    self._grace_secs = request['grace_secs']
    # A signal that ends sshd's session is meant for the task.
    self._signals = signals_lib.Reader(
      signal.SIGCHLD, *set(signals_lib.STOPS) - {signal.SIGINT}
    )
    self._task = None
    self._code = None
    self._output = None  # of the task, while there may be more
    self._launcher = _Launcher()
    self._told_time = None  # of the first signal
    self._kill_time = None

  def serve(self):
    """Runs the task to its end; returns its exit code, 128 + n by signal n."""
    console.print_logs(self._write_to_log)
    wait = console.Wait(LOST_SECS + self._grace_secs + LEAVE_SECS)
    port = self._request['port']
    while self._code is None:
      # If the port stays taken, the task says so better than we can.
      if self._task is None and (
        port is None
        or ports.is_free(port)
        or wait.is_over(f'for port {port} here, which another process has')
      ):
        self._start()
      self._turn()
      if self._task is None:
        if self._kill_time is not None:
          return 128 + signal.SIGTERM
        continue
      self._keep_time()
      self._reap()
    # Its group is gone, so its output comes to an end.
    deadline = time.monotonic() + DRAIN_SECS
    while (
      self._output or self._launcher.buffer
    ) and time.monotonic() < deadline:
      self._turn()
    return self._code

  def _write_to_log(self, text):
    """Writes a line into the log of the task."""
    self._launcher.show(text.encode() + b'\n')

  def _start(self):
    env = {**os.environ, 'PYTHONUNBUFFERED': '1', **self._request['env']}
    self._task = subprocess.Popen(
      [sys.executable, *self._request['argv'][1:]],
      env=env,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      start_new_session=True,
      preexec_fn=child_process.die_with_parent,
    )
    self._output = self._task.stdout.fileno()

  def _turn(self):
    """Waits until something happens or is due; handles what happened."""
    launcher, readers = self._launcher, [self._signals]
    if launcher.is_heard:
      readers.append(0)
    if self._output and len(launcher.buffer) < _MAX_BUFFERED_BYTES:
      readers.append(self._output)
    writers = [1] if launcher.buffer else []
    ready, writable, _ = select.select(readers, writers, [], self._secs_left())
    if self._signals in ready:
      for signum in self._signals.read():
        if signum != signal.SIGCHLD:
          self._leave()
    if 0 in ready:
      self._listen()
    if self._output in ready:
      data = os.read(self._output, 1 << 16)
      self._output = self._output if data else None
      launcher.show(data)
    if writable:
      launcher.write()

  def _secs_left(self):
    """Returns the seconds until something is due that no event announces."""
    if self._task is None or self._code is not None:
      return _TICK_SECS
    due = self._kill_time or self._launcher.lost_time
    return min(max(_TICK_SECS, due - time.monotonic()), LOST_SECS)

  def _listen(self):
    signums = self._launcher.listen()
    if not self._launcher.is_heard:
      self._leave()
    for signum in signums:
      if self._task is None:
        self._leave()
      else:
        self._tell(signum)

  def _leave(self):
    self._tell(signal.SIGTERM)
    if self._kill_time is None:
      self._kill_time = self._told_time + self._grace_secs

  def _tell(self, signum):
    if self._task and self._code is None:
      os.killpg(self._task.pid, signum)
    if self._told_time is None:
      self._told_time = time.monotonic()

  def _keep_time(self):
    now = time.monotonic()
    if self._launcher.is_heard and now > self._launcher.lost_time:
      self._launcher.lose()
      self._leave()
    if self._kill_time is not None and now >= self._kill_time:
      os.killpg(self._task.pid, signal.SIGKILL)
      self._kill_time = float('inf')  # once is enough

  def _reap(self):
    if not child_process.has_ended(self._task.pid):
      return
    code = self._task.wait()
    # 255 would be ssh's own.
    self._code = 128 - code if code < 0 else min(code, SSH_FAILED_CODE - 1)


if __name__ == '__main__':
  exit_code = serve()
  sys.stdout.flush()
  os._exit(exit_code)
