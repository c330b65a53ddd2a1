"""Starts tasks on this machine, watches them, ends them.

One log file a task, the first failure remembered, and nothing left behind:
all processes belong to a fork server (distmnist/fork_server.py) that ends
them when the launcher goes, even by kill -9. Signals are sent by that server,
who is their parent, so that none can hit a stranger under an old pid.
"""

import contextlib
import dataclasses
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time

from distmnist import cli, fork_server

# A worker that is told to leave writes a checkpoint, and leaves by force after
# 8 s (distmnist/preemption.py); a ps saves nothing. Together below 10 s.
WORKER_GRACE_SECS = 8.5
PS_GRACE_SECS = 1.0
TICK_SECS = 0.1

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Failure:
  """A task's end with anything but exit code 0; code -n is signal n."""

  task: object
  code: int

  @property
  def cause(self):
    if self.code < 0:
      return f'killed by {signal.Signals(-self.code).name}'
    return f'exit code {self.code}'

  @property
  def exit_code(self):
    return 128 - self.code if self.code < 0 else self.code


def hold_ports(num_ports):
  """Returns sockets bound to as many different free ports of this machine.

  A port stays taken while its socket is open: it is handed over to the task,
  which closes it right before it serves there. No socket listens, so who
  connects too early is refused instead of kept waiting.
  """
  ports = []
  for _ in range(num_ports):
    ports.append(socket.socket())
    ports[-1].bind(('', 0))
  return ports


def log_path(logs_dir, task):
  return os.path.join(logs_dir, f'{task.job_name}_{task.task_index}.log')


class Processes:
  """The tasks that run. A context: its end is the end of all of them.

  While it is open SIGINT, SIGTERM and SIGHUP do not end this process: they
  are collected in `signals`, and they interrupt `wait`.

  Attributes:
    signals: list of int, what this process received.
    failure: Failure of the first task that failed before `stop`, or None.
  """

  def __init__(self, module, logs_dir, env, fork_tasks=True, on_tick=None):
    """Makes a group without tasks.

    Args:
      module: dotted name, imported once if `fork_tasks`.
      logs_dir: str, an existing folder.
      env: dict, the environment of all tasks.
      fork_tasks: bool, forks of one process or a new Python a task.
      on_tick: callable, called every TICK_SECS while we wait.
    """
    self._module = module
    self._logs_dir = logs_dir
    self._env = env
    self._server_log = os.path.join(logs_dir, 'fork_server.log')
    self._fork_tasks = fork_tasks
    self._on_tick = on_tick or (lambda: None)
    self._running = {}
    self._log_starts = {}
    self._is_ready = False
    self._is_stopping = False
    self._num_noticed = 0
    self.signals = []
    self.failure = None

  def __enter__(self):
    self._wake, self._wake_writer = socket.socketpair()
    self._wake_writer.setblocking(False)
    self._old_wakeup = signal.set_wakeup_fd(self._wake_writer.fileno())
    self._old_handlers = {
      signum: signal.signal(signum, lambda n, _: self.signals.append(n))
      for signum in _SIGNALS
      if (signum, signal.getsignal(signum)) != (signal.SIGHUP, signal.SIG_IGN)
    }
    self._socket, theirs = socket.socketpair(
      socket.AF_UNIX, socket.SOCK_SEQPACKET
    )
    command = [sys.executable, '-m', 'distmnist.fork_server']
    command.append(str(theirs.fileno()))
    env = dict(self._env)
    if self._fork_tasks:
      command.append(self._module)
      # Else the import of NumPy starts threads, which no fork can take along.
      env['OPENBLAS_NUM_THREADS'] = '1'
    with theirs, open(self._server_log, 'ab') as log:
      self._server = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
      )
    self._selector = selectors.DefaultSelector()
    self._selector.register(self._socket, selectors.EVENT_READ)
    self._selector.register(self._wake, selectors.EVENT_READ)
    return self

  def __exit__(self, *_):
    self._selector.close()
    self._socket.close()  # the server ends what still runs, and leaves
    try:
      self._server.wait(fork_server.GRACE_SECS + 2)
    except subprocess.TimeoutExpired:
      self._server.kill()
      self._server.wait()
    if not os.path.getsize(self._server_log):
      os.remove(self._server_log)
    for signum, handler in self._old_handlers.items():
      signal.signal(signum, handler)
    signal.set_wakeup_fd(self._old_wakeup)
    self._wake.close()
    self._wake_writer.close()

  def start(self, task, held_port=None):
    """Asks for a task; `held_port` is the task's from here on.

    Raises:
      OSError: its log cannot be written.
    """
    path = log_path(self._logs_dir, task)
    with open(path, 'ab') as log:
      self._log_starts[task.name] = log.tell()
    self._running[task.name] = task
    self._send(
      {
        'start': task.name,
        'argv': task.argv,
        'env': dict(task.env),
        'log': os.path.abspath(path),
      },
      held_port,
    )
    if held_port:
      held_port.close()

  def wait(self, tasks, timeout_secs=float('inf')):
    """Waits for the end of `tasks`; returns those that still run.

    Some may: it returns early on the first failure, on a signal to this
    process, and after timeout_secs.

    Raises:
      cli.RunError: the module cannot be imported, or the server has died.
    """
    deadline = time.monotonic() + timeout_secs
    while left := [task for task in tasks if task.name in self._running]:
      secs = deadline - time.monotonic()
      if secs <= 0 or self._is_disturbed():
        break
      self._turn(min(secs, TICK_SECS))
    return left

  def stop(self, signum=signal.SIGTERM):
    """Ends all tasks: the workers first, as their last checkpoint needs the ps.

    Who has not left after its grace is killed; all are at once if another
    signal comes. Failures that happen meanwhile are our doing: not noted.

    Returns:
      list of Task that had to be killed.
    """
    self._is_stopping = True
    self._num_noticed = min(1, len(self.signals))
    if not self._is_ready:
      # The import is still on: no task has started, nor will any.
      self._server.kill()
    killed = []
    for job_name, grace_secs in (
      ('worker', WORKER_GRACE_SECS),
      ('ps', PS_GRACE_SECS),
    ):
      tasks = [t for t in self._running.values() if t.job_name == job_name]
      self._signal(tasks, signum)
      left = self.wait(tasks, grace_secs)
      if self._is_disturbed():
        left = list(self._running.values())
      self._signal(left, signal.SIGKILL)
      killed += left
      while any(task.name in self._running for task in left):
        self._turn(TICK_SECS)
    return killed

  def last_lines(self, task, num_lines=10):
    """Returns the last lines (list of str) that a task wrote in this run."""
    with open(log_path(self._logs_dir, task), 'rb') as log:
      size = log.seek(0, os.SEEK_END)
      log.seek(max(self._log_starts[task.name], size - (1 << 14)))
      lines = log.read().decode(errors='replace').splitlines()
    return [line for line in lines if line.strip()][-num_lines:]

  def _is_disturbed(self):
    failed = self.failure is not None and not self._is_stopping
    return failed or len(self.signals) > self._num_noticed

  def _turn(self, secs):
    for key, _ in self._selector.select(secs):
      if key.fileobj is self._wake:
        self._wake.recv(4096)
      else:
        self._receive()
    self._on_tick()

  def _receive(self):
    try:
      data = self._socket.recv(fork_server.MAX_MESSAGE_BYTES)
    except ConnectionResetError:
      # It left with requests unread. The error comes once, and before what
      # the server had still to say: the next turn reads that.
      return
    message = json.loads(data or '{}')
    if 'code' in message:
      task = self._running.pop(message['name'])
      if message['code'] and not self.failure and not self._is_stopping:
        self.failure = Failure(task, message['code'])
    elif 'ready' in message:
      self._is_ready = True
    elif 'error' in message:
      raise cli.RunError(
        f'cannot import {self._module}: {message["error"]}'
        f' (traceback in {self._server_log})'
      )
    elif not data:
      # The server is gone, and by the kernel's hand its tasks with it.
      self._running.clear()
      self._selector.unregister(self._socket)
      if not self._is_stopping:
        raise cli.RunError(
          'the fork server has died, and its tasks with it'
          f' (exit code {self._server.wait()}; log: {self._server_log})'
        )

  def _signal(self, tasks, signum):
    for task in tasks:
      self._send({'signal': signum, 'name': task.name})

  def _send(self, message, held_port=None):
    fds = [held_port.fileno()] if held_port else []
    # A dead server is reported by the next read, with its reason.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
      socket.send_fds(self._socket, [json.dumps(message).encode()], fds)
