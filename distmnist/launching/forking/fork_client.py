"""The host of tasks on this machine: a fork server, with us as its launcher.

It never blocks on sending and always hears signals, so that a launcher of many
tasks can be told to stop.
"""

import contextlib
import os
import selectors
import time

from distmnist.common import cli, signals
from distmnist.launching.forking import (
  fork_process,
  fork_server,
  message_socket,
)
from distmnist.launching.supervisor import failures, task_host

# How long to wait for tasks that the kernel has killed with their server.
_ORPHAN_SECS = 10.0


class ServerDiedError(task_host.HostDiedError):
  """The fork server is gone, and the kernel has killed its tasks with it."""

  def __init__(self, cause, what, log):
    super().__init__(
      f'the fork server has died, and {what} with it ({cause}; log: {log})',
      cause,
    )


class ForkServerClient(task_host.TaskHost):
  """A fork server of our own (fork_server.py), and us as its launcher.

  Attributes:
    is_ready: whether the module is imported; nothing starts before that.
    server: subprocess.Popen, once the context is entered.
    pids: dict, name -> pid of each running task whose pid is known.
  """

  name = 'fork server'

  def __init__(
    self,
    module,
    log,
    env,
    what,
    kept_fds=(),
    namespace_fds=(),
    grace_secs=fork_server.GRACE_SECS,
  ):
    """
    Args:
      module: dotted name to import before the first fork, or '' to run each
        task in a new Python process.
      log: str, path of the server's own log; removed at the end if empty.
      env: dict, the environment of the server.
      what: str, what it starts, for error messages: 'its tasks'.
      kept_fds: descriptors to keep open while the server or a task runs.
      namespace_fds: descriptors of a network_namespace.Namespace, for isolated
        tasks.
      grace_secs: float, from SIGTERM to SIGKILL for tasks that still run when
        we are gone.
    """
    super().__init__()
    self._server = fork_process.ServerProcess(
      module, log, env, kept_fds, namespace_fds
    )
    self._what = what
    self._grace_secs = grace_secs
    self.pids = {}

  @property
  def server(self):
    return self._server.process

  @property
  def pid(self):
    return self.server.pid

  def __enter__(self):
    with contextlib.ExitStack() as stack:
      self._wake = stack.enter_context(signals.waking(self.signals))
      self._selector = stack.enter_context(selectors.DefaultSelector())
      self._selector.register(self._wake, selectors.EVENT_READ)
      self._start_server()
      self._at_exit = stack.pop_all()
    return self

  def _start_server(self):
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

  def restart(self):
    """Waits up to 10 s for the old tasks to end, then starts a new server.

    Raises:
      cli.PassingError: the system refuses one now.
    """
    self._socket.close()
    self._end_orphans()
    self._start_server()

  def __exit__(self, *error):
    self._selector.close()
    self._socket.close()  # the server ends what still runs, then exits
    if self._server.wait_for_end(self._grace_secs + 2):
      self._end_orphans()
    self._at_exit.close()

  def _end_orphans(self):
    """Ends what a server that was killed has left."""
    deadline = time.monotonic() + _ORPHAN_SECS
    for pid in self.pids.values():
      fork_process.end_orphans(pid, deadline)
    self.pids.clear()

  def start(self, name, argv, env, log, is_isolated=False, title=''):
    try:
      self._socket.send(
        {
          'start': name,
          'argv': argv,
          'env': dict(env),
          'log': os.path.abspath(log),
          'isolate': is_isolated,
          'title': title,
          'grace_secs': self._grace_secs,
        }
      )
    except ValueError as error:
      raise cli.RunError(
        f'the command of {name} is too long ({error}): name fewer or shorter'
        ' hosts, and put long flags of train into a --flagfile'
      ) from error

  def signal(self, names, signum):
    for name in names:
      self._socket.send({'signal': int(signum), 'name': name})

  def kill(self):
    self.server.kill()

  def turn(self, timeout_secs=None):
    ended = []
    for key, events in self._selector.select(timeout_secs):
      if key.fileobj is self._wake:
        self._wake.recv(4096)
        continue
      if events & selectors.EVENT_WRITE:
        self._socket.flush()
      if events & selectors.EVENT_READ:
        ended += self._receive()
    return ended

  def _receive(self):
    ended = []
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
