"""A task on another host: its two ends, with ssh between them.

Here `run` stands for the task among the processes of this machine: it starts
ssh, asks for the task, passes signals on and ends as the task does. There
`python -m distmnist.remote` starts the task, and ends it once it hears no more
of us: the launcher was killed, its machine is off, the cable is cut.

ssh carries, line by line:

  stdin   the request, {"argv": [...], "env": {...}, "port": number or null,
          "grace_secs": number}; then signals for the task by their number, and
          empty lines: we live
  stdout  what the task writes
  stderr  READY once the other end is there; all else is ssh's or the shell's
"""

import contextlib
import ctypes
import json
import os
import random
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import time

from distmnist import cli, console, ports, turnstile
from distmnist import tasks as tasks_lib

READY = 'distmnist.remote: ready'
# What the last line of a log begins with if ssh failed and not the task.
SSH_FAILED = 'ssh to '

# ssh gives up 75 s after the last answer of the other side (ssh_command). By
# then the task has ended there, so that a restart finds its port free: at most
# 10 s from our last line to the cut, 60 s of silence, and some to leave.
BEAT_SECS = 10.0
LOST_SECS = 60.0
# An earlier attempt, or run, may still be leaving: if the loss was seen here
# alone, it hears of it LOST_SECS later, and has its grace, and some more.
LEAVE_SECS = 11.0
# After the task's end, for the last that it wrote.
DRAIN_SECS = 10.0
# sshd turns some away if more than ten come at once (its MaxStartups). Of one
# launch so many do; others may come besides, and so each tries again.
NUM_AT_ONCE = 6
TURNED_AWAY_SECS = 60.0
# Names the turnstile of a host to the tasks of this machine.
TURNSTILE = 'DISTMNIST_TURNSTILE'

_SSH_FAILED_CODE = 255
_TICK_SECS = 0.1
_MAX_BUFFERED_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1


def ssh_command(login, command, options=()):
  """Returns the list of str that runs `command` (str, for the shell there).

  Args:
    login: str, [user@]host.
    command: str.
    options: list of str for ssh. They win over ours: it takes the first.
  """
  ours = (
    'BatchMode=yes',  # A question would wait for ever.
    'ConnectTimeout=10',
    'ServerAliveInterval=15',
    'ServerAliveCountMax=5',
    # A shared connection would outlive us, and end for all with one of us.
    'ControlPath=none',
  )
  words = [word for option in ours for word in ('-o', option)]
  return ['ssh', '-T', *options, *words, '--', login, command]


def make_argv(login, request, command):
  """Returns the argv (tuple of str) of the process that stands for a task.

  Args:
    login: str, [user@]host, for what is said of ssh.
    request: dict, see above.
    command: list of str, ssh with all its words.
  """
  return ('python', '-m', __name__, login, json.dumps(request), *command)


class _Signals:
  """The signals of this process, read from a socket instead of handled."""

  def __init__(self, *signums):
    self.reader, self._writer = socket.socketpair()
    self._writer.setblocking(False)
    for signum in signums:
      signal.signal(signum, lambda *_: None)
    signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

  def fileno(self):
    return self.reader.fileno()

  def read(self):
    """Returns the numbers of those that came, a list of int."""
    return list(self.reader.recv(4096))


def _die_with_parent():
  ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# ---- Here ----


def run():
  """Runs the task that our argv asks for; ends as it does."""
  login, request, *command = sys.argv[1:]
  signals = _Signals(signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
  gate = turnstile.Turnstile(os.environ[TURNSTILE], NUM_AT_ONCE)
  stopped_by = []

  def pause(secs):
    ready, _, _ = select.select([signals], [], [], secs)
    stopped_by.extend(signals.read() if ready else ())
    return bool(stopped_by)

  if not gate.enter(pause):
    sys.exit(128 + stopped_by[0])
  deadline = time.monotonic() + TURNED_AWAY_SECS
  while True:
    ssh = _Ssh(_with_attempt(request), command, signals, gate.leave)
    ssh.follow()
    if not ssh.is_turned_away or time.monotonic() > deadline:
      break
    print(f'{SSH_FAILED}{login}: {ssh.words}: trying again', flush=True)
    # Each after a time of its own, or all would come at once again.
    if ssh.wait_for_signal(random.uniform(0.2, 2)):
      break
  if ssh.stopped_by:
    sys.exit(128 + ssh.stopped_by)
  if ssh.has_failed:
    print(f'{SSH_FAILED}{login}: {ssh.words}', flush=True)
    # Who cannot be reached at the start is a mistake; later he may come back.
    is_first = tasks_lib.ATTEMPT not in os.environ and not ssh.is_ready
    sys.exit(cli.FAILED if is_first else cli.LOST)
  signum = ssh.code - 128
  # Codes that train itself gives stay what they are.
  own = (signal.SIGINT, signal.SIGTERM)
  if signum in signal.valid_signals() and signum not in own:
    # Ends as a task of this machine would, so that the signal is named.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signum)
  sys.exit(ssh.code)


def _with_attempt(request):
  attempt = os.environ.get(tasks_lib.ATTEMPT)
  if not attempt:
    return request
  request = json.loads(request)
  request['env'][tasks_lib.ATTEMPT] = attempt
  return json.dumps(request)


class _Ssh:
  """One ssh, from its start to its end.

  Attributes:
    is_ready: bool, whether the other end has been there.
    stopped_by: int, the signal that ended us before it was, or None.
    code: int, ssh's exit code, the task's if it was ready; -n after signal n.
  """

  def __init__(self, request, command, signals, on_ready):
    self._signals = signals
    self._on_ready = on_ready
    self.is_ready = False
    self.stopped_by = None
    self.code = None
    self._said = []
    self._rest = b''
    self._process = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stderr=subprocess.PIPE,
      # A signal for our group is ours to pass on, by its number.
      start_new_session=True,
      preexec_fn=_die_with_parent,
    )
    self._send(request)

  @property
  def has_failed(self):
    """Whether no task was reached, or none is any more."""
    return not self.is_ready or not 0 <= self.code < _SSH_FAILED_CODE

  @property
  def words(self):
    """What ssh, or the shell there, said at last (str)."""
    if self.code < 0:
      return f'killed by {signal.Signals(-self.code).name}'
    if self._said:
      return self._said[-1]
    if self.code == _SSH_FAILED_CODE:
      return 'the connection was lost'
    return f'ended with exit code {self.code} before the task'

  @property
  def is_turned_away(self):
    said = '\n'.join(self._said)
    return self.code == _SSH_FAILED_CODE and any(
      word in said for word in ('kex_exchange_identification', 'MaxStartups')
    )

  def follow(self):
    """Keeps the task alive and passes signals on until ssh ends."""
    process, beat_time = self._process, time.monotonic() + BEAT_SECS
    stderr = process.stderr.fileno()
    os.set_blocking(stderr, False)
    os.set_blocking(process.stdin.fileno(), False)
    readers = [self._signals, stderr]
    while process.poll() is None:
      secs = max(0, beat_time - time.monotonic())
      ready, _, _ = select.select(readers, [], [], secs)
      # First: it says whether there is somebody to take a signal.
      if stderr in ready and not self._read(stderr):
        readers.remove(stderr)
      if self._signals in ready:
        self._pass_on(self._signals.read())
      if time.monotonic() >= beat_time:
        self._send('')
        beat_time = time.monotonic() + BEAT_SECS
    self.code = process.wait()
    self._read(stderr)
    self._take(self._rest)
    process.stdin.close()
    process.stderr.close()

  def wait_for_signal(self, secs):
    """Whether we are told to leave within `secs`."""
    ready, _, _ = select.select([self._signals], [], [], secs)
    if ready:
      self._pass_on(self._signals.read())
    return self.stopped_by is not None

  def _pass_on(self, signums):
    for signum in signums:
      if signum == signal.SIGCHLD:
        continue
      if self.is_ready:
        self._send(str(signum))
      else:
        self.stopped_by = signum
        self._process.kill()

  def _send(self, line):
    # A pipe that is full or broken: ssh will say why.
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
      os.write(self._process.stdin.fileno(), line.encode() + b'\n')

  def _read(self, stderr):
    """Takes what ssh says; returns whether it may say more."""
    try:
      while data := os.read(stderr, 1 << 16):
        *lines, self._rest = (self._rest + data).split(b'\n')
        for line in lines:
          self._take(line)
    except BlockingIOError:
      return True
    return False

  def _take(self, line):
    line = line.decode(errors='replace').strip()
    if line == READY:
      self.is_ready = True
      self._said = []
      self._on_ready()
    elif line:
      print(line, flush=True)
      # Its own name, or that of whom it has called, is said by us.
      said = re.sub(r'^(ssh|\S+@\S+): ', '', line)
      self._said.append(said.removesuffix('.'))


# ---- There ----


def serve():
  """Runs the task that stdin asks for; returns its exit code (int)."""
  line = sys.stdin.buffer.raw.readline()
  if not line.endswith(b'\n'):
    return cli.FAILED
  print(READY, file=sys.stderr, flush=True)
  return _Host(json.loads(line)).serve()


class _Host:
  """The task here, and the launcher at the other end of stdin and stdout.

  Nothing that this writes to or reads from may hold it up: a launcher that is
  lost has to be noticed in time.
  """

  def __init__(self, request):
    self._request = request
    # From the first signal, if the launcher is gone. A ps needs as long as a
    # worker: told with all others, it has the chief save first.
    self._grace_secs = request['grace_secs']
    # Whoever ends the session of sshd means the task.
    self._signals = _Signals(signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP)
    self._task = None
    self._code = None
    self._output = None  # of the task, while there may be more
    self._buffer = b''  # what the launcher still has to get
    self._line = b''  # of stdin, not yet complete
    self._is_heard = self._is_read = True
    self._heard_time = time.monotonic()
    self._told_time = None  # of the first signal
    self._kill_time = None

  def serve(self):
    """Runs the task to its end; returns its exit code, 128 + n by signal n."""
    for fd in (0, 1):
      os.set_blocking(fd, False)
    wait = console.Wait(LOST_SECS + self._grace_secs + LEAVE_SECS, self._say)
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
    # Its group is gone; what it has written comes to an end.
    deadline = time.monotonic() + DRAIN_SECS
    while (self._output or self._buffer) and time.monotonic() < deadline:
      self._turn()
    return self._code

  def _say(self, text):
    """Writes a line into the log of the task."""
    self._buffer += text.encode() + b'\n' if self._is_read else b''

  def _start(self):
    env = {**os.environ, 'PYTHONUNBUFFERED': '1', **self._request['env']}
    self._task = subprocess.Popen(
      [sys.executable, *self._request['argv'][1:]],
      env=env,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      start_new_session=True,
      preexec_fn=_die_with_parent,
    )
    self._output = self._task.stdout.fileno()

  def _turn(self):
    """Waits until something happens or is due; deals with what happened."""
    readers = [self._signals]
    if self._is_heard:
      readers.append(0)
    if self._output and len(self._buffer) < _MAX_BUFFERED_BYTES:
      readers.append(self._output)
    writers = [1] if self._buffer else []
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
      self._buffer += data if self._is_read else b''
    if writable:
      self._write()

  def _secs_left(self):
    """Until something is due of which nothing else tells us."""
    if self._task is None or self._code is not None:
      return _TICK_SECS
    due = self._kill_time or self._heard_time + LOST_SECS
    return min(max(_TICK_SECS, due - time.monotonic()), LOST_SECS)

  def _listen(self):
    try:
      data = os.read(0, 1 << 16)
    except BlockingIOError:
      return
    except OSError:
      data = b''
    self._heard_time = time.monotonic()
    if not data:
      self._lose()
    *lines, self._line = (self._line + data).split(b'\n')
    for line in filter(None, lines):
      if self._task is None:
        self._leave()
      else:
        self._tell(int(line))

  def _write(self):
    try:
      self._buffer = self._buffer[os.write(1, self._buffer) :]
    except BlockingIOError:
      pass
    except OSError:
      self._is_read, self._buffer = False, b''

  def _lose(self):
    """The launcher is gone: nobody is told any more, and the task leaves."""
    self._is_heard = self._is_read = False
    self._buffer = b''
    self._leave()

  def _leave(self):
    self._tell(signal.SIGTERM)
    if self._kill_time is None:
      self._kill_time = self._told_time + self._grace_secs

  def _tell(self, signum):
    if self._task:
      os.killpg(self._task.pid, signum)
    if self._told_time is None:
      self._told_time = time.monotonic()

  def _keep_time(self):
    now = time.monotonic()
    if self._is_heard and now - self._heard_time > LOST_SECS:
      self._lose()
    if self._kill_time is not None and now >= self._kill_time:
      os.killpg(self._task.pid, signal.SIGKILL)
      self._kill_time = float('inf')  # once is enough

  def _reap(self):
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    if os.waitid(os.P_PID, self._task.pid, flags) is None:
      return
    # What it has started ends with it, before its pid can be another's.
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(self._task.pid, signal.SIGKILL)
    code = self._task.wait()
    # 255 would be ssh's own.
    self._code = 128 - code if code < 0 else min(code, _SSH_FAILED_CODE - 1)


if __name__ == '__main__':
  exit_code = serve()
  sys.stdout.flush()
  os._exit(exit_code)
