"""Starts tasks on this machine, watches them, restarts them, ends them.

One log file a task, the first failure remembered, and nothing left behind:
all processes belong to a fork server (distmnist/fork_server.py) that ends
them when the launcher goes, even by kill -9. Signals are sent by that server,
who is their parent, so that none can hit a stranger under an old pid.

Who is started again, on the same address and into the same log:
- a task that failed, unless its exit code says that it would fail again;
- without a ps all the others with it: they hold the variables together;
- with the chief whoever has ended already: the last steps may be done again,
  and the ps has to be there for them.
Once the chief has ended with 0 the training is complete, and nobody is.
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
import tempfile
import time

from distmnist import cli, fork_server
from distmnist import tasks as tasks_lib

# A worker that is told to leave writes a checkpoint, and leaves by force after
# 8 s (distmnist/preemption.py); a ps saves nothing. Together below 10 s.
WORKER_GRACE_SECS = 8.5
PS_GRACE_SECS = 1.0
TICK_SECS = 0.1

# From a failure to the restart: doubles with each one, and begins anew after a
# task has run for a while.
FIRST_BACKOFF_SECS = 0.1
MAX_BACKOFF_SECS = 10.0
STEADY_SECS = 60.0

# These would come again, and the task has said what to do.
_FINAL_CODES = (cli.FAILED, cli.WRONG_COMMAND_LINE)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclasses.dataclass(frozen=True)
class Failure:
  """A task's end with anything but exit code 0; code -n is signal n."""

  task: object
  code: int
  num_restarts: int = 0

  @property
  def cause(self):
    if self.code < 0:
      return f'killed by {signal.Signals(-self.code).name}'
    return f'exit code {self.code}'

  @property
  def exit_code(self):
    return 128 - self.code if self.code < 0 else self.code

  def __str__(self):
    cause = self.cause if self.code < 0 else f'ended with {self.cause}'
    return f'{self.task.name} ({self.task.address}) {cause}'


@dataclasses.dataclass
class _Run:
  """What is known of a task that was started."""

  task: object
  attempt: int = 0
  num_restarts: int = 0
  backoff_secs: float = FIRST_BACKOFF_SECS
  start_time: float = 0.0
  log_start: int = 0  # of this attempt, in bytes
  is_running: bool = False
  code: int | None = None  # of the last attempt, once it has ended
  restart_time: float | None = None  # set while it waits to start again
  restart_note: str = ''

  @property
  def is_left(self):
    return self.is_running or self.restart_time is not None

  @property
  def is_done(self):
    return self.code == 0 and not self.is_left

  def restart_at(self, restart_time, note):
    self.restart_time, self.restart_note = restart_time, note


def hold_ports(num_ports):
  """Returns sockets bound to as many different free ports of this machine.

  A port stays ours while its socket is open, also from the end of a task to
  its restart: nobody is given it by chance. Yet who asks for this very port
  with SO_REUSEADDR gets it, and that is the task's server; while that one
  listens, no other can. Our sockets do not listen, so who connects too early
  is refused instead of kept waiting.
  """
  ports = []
  for _ in range(num_ports):
    ports.append(socket.socket())
    ports[-1].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    ports[-1].bind(('', 0))
  return ports


def make_logs_dir(logs_dir, logdir):
  """Makes the folder for the logs and returns it (str).

  Args:
    logs_dir: str or None, the one asked for.
    logdir: str or None, train's --logdir.

  Raises:
    cli.UsageError: it cannot be made or written to.
  """
  if not logs_dir and not logdir:
    return tempfile.mkdtemp(prefix='distmnist_logs_')
  path = logs_dir or os.path.join(logdir, 'logs')
  try:
    os.makedirs(path, exist_ok=True)
  except OSError as error:
    raise cli.UsageError(f'no folder for the logs: {error}') from error
  if not os.access(path, os.W_OK | os.X_OK):
    raise cli.UsageError(f'no folder for the logs: cannot write to {path}')
  return path


def log_path(logs_dir, task):
  return os.path.join(logs_dir, task.name.replace(' ', '_') + '.log')


def say(text):
  # Ours goes to stderr: stdout carries the lines of the chief alone.
  print(f'distmnist.launch: {text}', file=sys.stderr, flush=True)


@contextlib.contextmanager
def collecting(signals, fd):
  """SIGINT, SIGTERM and SIGHUP do not end this process meanwhile.

  Args:
    signals: list, to which their numbers (int) are added.
    fd: descriptor that does not block; each writes a byte there.
  """
  old_wakeup = signal.set_wakeup_fd(fd)
  old_handlers = {
    signum: signal.signal(signum, lambda n, _: signals.append(n))
    for signum in _SIGNALS
    if (signum, signal.getsignal(signum)) != (signal.SIGHUP, signal.SIG_IGN)
  }
  try:
    yield
  finally:
    for signum, handler in old_handlers.items():
      signal.signal(signum, handler)
    signal.set_wakeup_fd(old_wakeup)


class ServerDiedError(cli.RunError):
  """The fork server is gone, and by the kernel's hand its tasks with it."""


class ForkServerClient:
  """A fork server of our own (fork_server.py), and us as its launcher.

  A context: its end is the end of the server and of all that it has started.
  While it is open SIGINT, SIGTERM and SIGHUP do not end this process: they
  are collected in `signals`, and they interrupt `turn`.

  Attributes:
    signals: list of int, what this process received.
    is_ready: whether the module is imported: nothing starts before.
    server: subprocess.Popen, once the context is entered.
  """

  def __init__(self, module, log, env, what, kept_fds=(), namespace_fds=()):
    """
    Args:
      module: dotted name to import before the first fork, or '' for a new
        Python a task.
      log: str, path of the server's own log; removed in the end if empty.
      env: dict, the environment of the server.
      what: str, what it starts, for an error: 'its tasks'.
      kept_fds: descriptors to be open as long as the server or a task runs.
      namespace_fds: those of an isolation.Namespace, for tasks that want it.
    """
    self._module = module
    self._log = log
    self._env = dict(env)
    if module:
      # Else the import of NumPy starts threads, which no fork can take along.
      self._env['OPENBLAS_NUM_THREADS'] = '1'
    self._what = what
    self._kept_fds = list(kept_fds)
    self._namespace_fds = list(namespace_fds)
    self.signals = []
    self.is_ready = False

  def __enter__(self):
    self._wake, self._wake_writer = socket.socketpair()
    self._wake_writer.setblocking(False)
    self._collecting = collecting(self.signals, self._wake_writer.fileno())
    self._collecting.__enter__()
    self._socket, theirs = socket.socketpair(
      socket.AF_UNIX, socket.SOCK_SEQPACKET
    )
    command = [sys.executable, '-m', 'distmnist.fork_server']
    command += [str(theirs.fileno()), self._module]
    command += map(str, self._namespace_fds)
    with theirs, open(self._log, 'ab') as log:
      self.server = subprocess.Popen(
        command,
        env=self._env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[theirs.fileno(), *self._kept_fds, *self._namespace_fds],
        start_new_session=True,
      )
    self._selector = selectors.DefaultSelector()
    self._selector.register(self._socket, selectors.EVENT_READ)
    self._selector.register(self._wake, selectors.EVENT_READ)
    return self

  def __exit__(self, *error):
    self._selector.close()
    self._socket.close()  # the server ends what still runs, and leaves
    try:
      self.server.wait(fork_server.GRACE_SECS + 2)
    except subprocess.TimeoutExpired:
      self.kill()
      self.server.wait()
    if not os.path.getsize(self._log):
      os.remove(self._log)
    self._collecting.__exit__(*error)
    self._wake.close()
    self._wake_writer.close()

  def start(self, name, argv, env, log, is_isolated=False):
    """Asks for a task; `log` is a path, `env` a dict beyond the server's."""
    self._send(
      {
        'start': name,
        'argv': argv,
        'env': dict(env),
        'log': os.path.abspath(log),
        'isolate': is_isolated,
      }
    )

  def signal(self, names, signum):
    """Sends a signal to the tasks of these names, as far as they run."""
    for name in names:
      self._send({'signal': int(signum), 'name': name})

  def kill(self):
    """Ends the server at once, and with it all that it has started."""
    self.server.kill()

  def turn(self, timeout_secs=None):
    """Waits for a message or a signal; returns [(name, code)] of an end, or [].

    Raises:
      cli.RunError: the module cannot be imported.
      ServerDiedError: the server is gone; raised once.
    """
    ended = []
    for key, _ in self._selector.select(timeout_secs):
      if key.fileobj is self._wake:
        self._wake.recv(4096)
      else:
        ended += self._receive()
    return ended

  def _receive(self):
    try:
      data = self._socket.recv(fork_server.MAX_MESSAGE_BYTES)
    except ConnectionResetError:
      # It left with requests unread. The error comes once, and before what
      # the server had still to say: the next turn reads that.
      return []
    if not data:
      self._selector.unregister(self._socket)
      raise ServerDiedError(
        f'the fork server has died, and {self._what} with it'
        f' (exit code {self.server.wait()}; log: {self._log})'
      )
    message = json.loads(data)
    if 'error' in message:
      raise cli.RunError(
        f'cannot import {self._module}: {message["error"]}'
        f' (traceback in {self._log})'
      )
    self.is_ready = True
    return [(message['name'], message['code'])] if 'code' in message else []

  def _send(self, message):
    # A dead server is reported by the next read, with its reason.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
      self._socket.send(json.dumps(message).encode())


class Processes:
  """The tasks that run. A context: its end is the end of all of them.

  While it is open SIGINT, SIGTERM and SIGHUP do not end this process: they
  are collected in `signals`, and they interrupt `wait`.

  Attributes:
    signals: list of int, what this process received.
    failure: Failure of the first task that failed for good before `stop`, or
      None.
  """

  def __init__(
    self,
    module,
    logs_dir,
    env,
    fork_tasks=True,
    max_restarts=0,
    namespace=None,
    on_tick=None,
    say=say,
  ):
    """Makes a group without tasks.

    Args:
      module: dotted name, imported once if `fork_tasks`.
      logs_dir: str, an existing folder.
      env: dict, the environment of all tasks.
      fork_tasks: bool, forks of one process or a new Python a task.
      max_restarts: int, how often each task may be started again.
      namespace: isolation.Namespace for the tasks that serve, or None.
      on_tick: callable, called every TICK_SECS while we wait.
      say: callable, takes a line about a restart.
    """
    self._logs_dir = logs_dir
    self._max_restarts = max_restarts
    self._is_isolated = bool(namespace and namespace.fds)
    self._client = ForkServerClient(
      module if fork_tasks else '',
      os.path.join(logs_dir, 'fork_server.log'),
      env,
      'its tasks',
      namespace_fds=namespace.fds if namespace else (),
    )
    self._on_tick = on_tick or (lambda: None)
    self._say = say
    self._runs = {}
    self._is_stopping = False
    self._num_noticed = 0
    self.signals = self._client.signals
    self.failure = None

  def __enter__(self):
    self._client.__enter__()
    return self

  def __exit__(self, *error):
    self._client.__exit__(*error)

  def start(self, task):
    """Asks for a task.

    Raises:
      OSError: its log cannot be written.
    """
    self._runs[task.name] = _Run(task)
    self._start(self._runs[task.name])

  def wait(self, tasks, timeout_secs=float('inf')):
    """Waits for the end of `tasks`; returns those that still run.

    Who is to be started again counts as one that runs. Some may be left: it
    returns early on the first failure, on a signal to this process, and after
    timeout_secs.

    Raises:
      cli.RunError: the module cannot be imported, or the server has died.
    """
    deadline = time.monotonic() + timeout_secs
    while left := [task for task in tasks if self._is_left(task)]:
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
    for run in self._runs.values():
      run.restart_time = None
    self._num_noticed = min(1, len(self.signals))
    if not self._client.is_ready:
      # The import is still on: no task has started, nor will any.
      self._client.kill()
    killed = []
    for is_ps, grace_secs in (
      (False, WORKER_GRACE_SECS),
      (True, PS_GRACE_SECS),
    ):
      tasks = [t for t in self._running if (t.job_name == 'ps') == is_ps]
      self._signal(tasks, signum)
      left = self.wait(tasks, grace_secs)
      if self._is_disturbed():
        left = self._running
      self._signal(left, signal.SIGKILL)
      killed += left
      while any(self._is_left(task) for task in left):
        self._turn(TICK_SECS)
    return killed

  def discard(self, task):
    """Forgets a task that has ended, and removes its log."""
    del self._runs[task.name]
    os.remove(log_path(self._logs_dir, task))

  def is_done(self, task):
    """Whether it has ended with 0."""
    return self._runs[task.name].is_done

  def is_restarted(self, task):
    """Whether it was started more than once."""
    return self._runs[task.name].attempt > 1

  def last_lines(self, task, num_lines=10):
    """Returns the last lines (list of str) of a task's last attempt."""
    with open(log_path(self._logs_dir, task), 'rb') as log:
      size = log.seek(0, os.SEEK_END)
      log.seek(max(self._runs[task.name].log_start, size - (1 << 14)))
      lines = log.read().decode(errors='replace').splitlines()
    return [line for line in lines if line.strip()][-num_lines:]

  @property
  def _running(self):
    return [run.task for run in self._runs.values() if run.is_running]

  @property
  def _waiting(self):
    return [r for r in self._runs.values() if r.restart_time is not None]

  def _is_left(self, task):
    return task.name in self._runs and self._runs[task.name].is_left

  def _is_disturbed(self):
    failed = self.failure is not None and not self._is_stopping
    return failed or len(self.signals) > self._num_noticed

  def _turn(self, secs):
    if not any(run.is_running for run in self._waiting):
      now = time.monotonic()
      times = [run.restart_time for run in self._waiting]
      secs = max(0, min([secs, *(restart - now for restart in times)]))
    try:
      for name, code in self._client.turn(secs):
        run = self._runs[name]
        run.is_running, run.code = False, code
        if not self._is_stopping and not self.failure:
          self._handle_end(run)
    except ServerDiedError:
      for run in self._runs.values():
        run.is_running, run.restart_time = False, None
      if not self._is_stopping:
        raise
    if not self._is_disturbed():
      self._restart_due()
    self._on_tick()

  def _start(self, run):
    task, path = run.task, log_path(self._logs_dir, run.task)
    run.attempt += 1
    run.start_time = time.monotonic()
    run.is_running, run.restart_time = True, None
    env = dict(task.env)
    with open(path, 'a+b') as log:
      if run.attempt > 1:
        env[tasks_lib.ATTEMPT] = str(run.attempt)
        _write_separator(log, run.restart_note)
      run.log_start = log.tell()
    self._client.start(
      task.name,
      task.argv,
      env,
      path,
      # Only who serves has something to hide; others may need the network.
      is_isolated=self._is_isolated and task.port is not None,
    )

  def _handle_end(self, run):
    """Decides what a task's end means for the run."""
    failure = Failure(run.task, run.code, run.num_restarts)
    is_killed_to_restart = run.restart_time is not None
    chief = self._runs.get(tasks_lib.CHIEF)
    is_complete = self._max_restarts and chief and chief.code == 0
    if is_complete and run is chief:
      for waiting in self._waiting:
        waiting.restart_time = None
        name = waiting.task.name
        self._say(f'{name} is not restarted: the training is complete')
    elif is_complete and run.code:
      self._say(f'{failure}: not restarted, as the training is complete')
    elif run.code in _FINAL_CODES:
      self.failure = failure
    elif run.code and not is_killed_to_restart:
      if run.num_restarts == self._max_restarts:
        self.failure = failure
      elif not self.signals:
        self._plan_restart(run, failure)

  def _plan_restart(self, run, failure):
    now = time.monotonic()
    if now - run.start_time >= STEADY_SECS:
      run.backoff_secs = FIRST_BACKOFF_SECS
    secs, restart_time = run.backoff_secs, now + run.backoff_secs
    run.backoff_secs = min(MAX_BACKOFF_SECS, 2 * run.backoff_secs)
    run.num_restarts += 1
    note = f'restart {run.num_restarts} of {self._max_restarts}'
    run.restart_at(restart_time, note)
    has_ps = any(r.task.job_name == 'ps' for r in self._runs.values())
    others = [] if has_ps else [r for r in self._runs.values() if r is not run]
    with_all = ', with all other workers' if others else ''
    self._say(f'{failure}: {note} in {secs:g} s{with_all}')
    self._signal([r.task for r in others if r.is_running], signal.SIGKILL)
    for other in others:
      other.restart_at(restart_time, f'started again with {run.task.name}')

  def _restart_due(self):
    """Starts whose time has come; not before all who start again have ended."""
    waiting = self._waiting
    if any(run.is_running for run in waiting):
      return
    now = time.monotonic()
    due = [run for run in waiting if run.restart_time <= now]
    if any(run.task.name == tasks_lib.CHIEF for run in due):
      done = [run for run in self._runs.values() if run.is_done]
      for run in done:
        run.restart_at(now, f'started again with {tasks_lib.CHIEF}')
        self._say(f'{run.task.name} is {run.restart_note}')
      due += done
    for run in due:
      self._start(run)

  def _signal(self, tasks, signum):
    self._client.signal([task.name for task in tasks], signum)


def _write_separator(log, note):
  """Appends a line between two attempts; the first may have left one open."""
  size = log.seek(0, os.SEEK_END)
  log.seek(max(0, size - 1))
  start = b'' if log.read() in (b'', b'\n') else b'\n'
  log.write(start + f'--- {note} ---\n'.encode())
  log.flush()
