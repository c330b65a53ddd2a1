"""The host of tasks on this machine: a fork server, with us as its launcher.

It never blocks on sending and always hears signals, so that a launcher of many
tasks can be told to stop.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping

from distmnist.common import cli, files, signals, stop_grace
from distmnist.common.names import FORK_SERVER
from distmnist.launching import child_process, network_namespace
from distmnist.launching import host as host_lib
from distmnist.launching.forking import fork_server, message_socket
from distmnist.launching.supervisor import failures
from distmnist.storage import process_tag

# How long to wait for tasks that the kernel has killed with their server.
_ORPHAN_SECS = 10.0


class ServerDiedError(host_lib.HostDiedError):
  """The fork server is gone, and the kernel has killed its tasks with it."""

  def __init__(self, cause: str, what: str, log: str) -> None:
    super().__init__(
      f'the fork server has died, and {what} with it ({cause}; log: {log})',
      cause,
    )


class ForkServerClient(host_lib.Host):
  """A fork server of our own (fork_server.py), and us as its launcher.

  Attributes:
    is_ready: whether the module is imported; nothing starts before that.
    server: its process, once the context is entered.
    pids: name -> pid of each running task whose pid is known.
  """

  name = 'fork server'

  def __init__(
    self,
    server: ServerProcess,
    what: str,
    grace_secs: float,
  ) -> None:
    """
    Args:
      server: started and ended here.
      what: what it starts, for error messages: 'its tasks'.
      grace_secs: from SIGTERM to SIGKILL for tasks that still run when we are
        gone.
    """
    super().__init__()
    self._server = server
    self._what = what
    self._grace_secs = grace_secs
    self.pids: dict[str, int] = {}

  @property
  def server(self) -> subprocess.Popen[bytes]:
    return self._server.process

  @property
  def pid(self) -> int:
    return self.server.pid

  def __enter__(self) -> ForkServerClient:
    with contextlib.ExitStack() as stack:
      self._wake = stack.enter_context(signals.waking(self.signals))
      self._selector = stack.enter_context(selectors.DefaultSelector())
      self._selector.register(self._wake, selectors.EVENT_READ)
      self._start_server()
      self._at_exit = stack.pop_all()
    return self

  def _start_server(self) -> None:
    self.is_ready = False
    try:
      ours = self._server.start()
    except OSError as error:
      kind = cli.choose_error(error)
      raise kind(
        f'the fork server cannot be started: {error.strerror}; see ulimit -u '
        'and -n, and the limits of the container'
      ) from error
    self._socket = message_socket.MessageSocket(ours, self._selector)

  def restart(self) -> None:
    """Waits up to 10 s for the old tasks to end, then starts a new server.

    Raises:
      cli.PassingError: the system refuses one now.
    """
    self._socket.close()
    self._end_orphans()
    self._start_server()

  def __exit__(self, *error: object) -> None:
    self._selector.close()
    self._socket.close()  # the server ends what still runs, then exits
    if self._server.wait_for_end(self._grace_secs + 2):
      self._end_orphans()
    self._at_exit.close()

  def _end_orphans(self) -> None:
    """Ends what a server that was killed has left."""
    deadline = time.monotonic() + _ORPHAN_SECS
    for pid in self.pids.values():
      end_orphans(pid, deadline)
    self.pids.clear()

  def start(self, request: host_lib.Request) -> None:
    try:
      self._socket.send(
        {
          'start': request.name,
          'argv': request.argv,
          'env': dict(request.env),
          'log': os.path.abspath(request.log),
          'isolate': request.is_isolated,
          'title': request.title,
          'grace_secs': self._grace_secs,
        }
      )
    except ValueError as error:
      raise cli.RunError(
        f'the command of {request.name} is too long ({error}): name fewer or'
        ' shorter hosts, and put long flags of train into a --flagfile'
      ) from error

  def signal(self, names: Iterable[str], signum: int) -> None:
    for name in names:
      self._socket.send({'signal': int(signum), 'name': name})

  def kill(self) -> None:
    self.server.kill()

  def poll(
    self, timeout_secs: float | None = None
  ) -> list[tuple[str, int | None]]:
    ended: list[tuple[str, int | None]] = []
    for key, events in self._selector.select(timeout_secs):
      if key.fileobj is self._wake:
        self._wake.recv(4096)
        continue
      if events & selectors.EVENT_WRITE:
        self._socket.flush()
      if events & selectors.EVENT_READ:
        ended += self._receive()
    return ended

  def _receive(self) -> list[tuple[str, int | None]]:
    ended: list[tuple[str, int | None]] = []
    # Bounded, so that a flood of messages delays no signal.
    for _ in range(100):
      try:
        message = self._socket.receive()
      except BlockingIOError:
        break
      except ConnectionResetError:
        # It left with requests unread. The error comes once, before the
        # server's last messages: the next turn reads those.
        break
      if message is None:
        if ended:
          break  # Report these first: the next turn reads the end again.
        self._socket.stop_listening()
        cause = failures.describe_end(self.server.wait())
        raise ServerDiedError(cause, self._what, self._server.log)
      if 'error' in message:
        raise cli.RunError(
          f'cannot import {self._server.module}: {message["error"]}'
          f' (traceback in {self._server.log})'
        )
      self.is_ready = True
      if 'code' in message:
        if 'reason' in message:
          self.reasons[message['name']] = message['reason']
        ended.append((message['name'], message['code']))
        self.pids.pop(message['name'], None)
      elif 'pid' in message:
        self.pids[message['name']] = message['pid']
        self.begun.append((message['name'], message['pid']))
    return ended


class ServerProcess:
  """The process of a fork server, which may be started more than once.

  Attributes:
    process: that of the last start.
  """

  def __init__(
    self,
    module: str,
    log: str,
    env: Mapping[str, str],
    kept_fds: Iterable[int] = (),
    namespace_fds: Iterable[int] = (),
  ) -> None:
    """
    Args:
      module: its dotted name, imported before the first fork; or '' to run each
        task in a new Python process.
      log: path of the server's own log; removed at the end if empty.
      env: the environment of the server.
      kept_fds: descriptors to keep open while the server or a task runs.
      namespace_fds: descriptors of a network_namespace.Namespace, for isolated
        tasks.
    """
    self.module = module
    self.log = log
    self._env = dict(env)
    if module:
      # Otherwise importing NumPy starts threads, which no fork can inherit.
      self._env['OPENBLAS_NUM_THREADS'] = '1'
    namespace_fds = [*namespace_fds]
    self._namespace_fds = [str(fd) for fd in namespace_fds]
    self._fds = [*kept_fds, *namespace_fds]

  def start(self) -> socket.socket:
    """Returns our end of a new server's messages, a socket."""
    # A user may have removed the folder.
    os.makedirs(os.path.dirname(os.path.abspath(self.log)), exist_ok=True)
    ours, theirs = message_socket.make_pair()
    end = theirs.fileno()
    words = [str(end), self.module, *self._namespace_fds, fork_server.PADDING]
    with contextlib.ExitStack() as unless_started:
      unless_started.enter_context(ours)
      with (
        theirs,
        open(self.log, 'ab', opener=files.no_follow) as log,
        _blocking(fork_server.UNHEARD),  # Inherited: in force from its start.
      ):
        self.process = subprocess.Popen(
          [sys.executable, '-m', FORK_SERVER, *words],
          env=self._env,
          stdin=subprocess.DEVNULL,
          stdout=log,
          stderr=log,
          pass_fds=[end, *self._fds],
          start_new_session=True,
        )
      unless_started.pop_all()
    return ours

  def wait_for_end(self, timeout_secs: float) -> int:
    """Waits for it to exit, and kills it if it does not; returns its code."""
    code = child_process.end(self.process, timeout_secs)
    # A user may have removed the folder, or made it read-only: how the run has
    # ended counts, not whether an empty log stays.
    with contextlib.suppress(OSError):
      if not os.path.getsize(self.log):
        os.remove(self.log)
    return code


@contextlib.contextmanager
def _blocking(signums: Iterable[int]) -> Iterator[None]:
  """Keeps signals from this thread, and from what it starts, for a while."""
  before = signal.pthread_sigmask(signal.SIG_BLOCK, signums)
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_orphans(pid: int, deadline: float) -> None:
  """Waits for the end of a task whose server is gone, and kills its group.

  The kernel kills the task, but not what the task has started: that is left in
  the task's process group. No process gets the number of a group that has a
  member, so that a living process of this number means that the group was empty
  and that the number has gone to somebody else.

  Args:
    pid: that of the task, the leader of its group.
    deadline: by time.monotonic, for the end of the task.
  """
  wait_for_end(pid, deadline)
  if process_tag.read_start(pid) is None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(pid, signal.SIGKILL)


def wait_for_end(pid: int, deadline: float) -> None:
  """Waits until `deadline` for a process that is not our child to end."""
  try:
    fd = os.pidfd_open(pid)
  except OSError:  # It is gone, or the kernel is older than 5.3.
    return
  poll = select.poll()
  poll.register(fd, select.POLLIN)
  poll.poll(1000 * max(0, deadline - time.monotonic()))
  os.close(fd)


def make_host(
  module: str,
  logs_dir: str,
  env: Mapping[str, str],
  fork_tasks: bool = True,
  namespace: network_namespace.Namespace | None = None,
  stop_grace_secs: float = stop_grace.DEFAULT_SECS,
  what: str = 'its tasks',
  kept_fds: Iterable[int] = (),
) -> ForkServerClient:
  """Returns the Host for the tasks of a launcher on this machine.

  Args:
    module: dotted name, imported once if `fork_tasks`.
    logs_dir: an existing folder, for the fork server's own log.
    env: the environment of all tasks.
    fork_tasks: whether to fork tasks from one process instead of starting a new
      Python process for each.
    namespace: that of the tasks that serve, or None.
    stop_grace_secs: see TaskGroup.
    what: see ForkServerClient.
    kept_fds: see ServerProcess.
  """
  server = ServerProcess(
    module if fork_tasks else '',
    os.path.join(logs_dir, 'fork_server.log'),
    env,
    kept_fds,
    namespace.fds if namespace else (),
  )
  return ForkServerClient(server, what, stop_grace.for_orphans(stop_grace_secs))
