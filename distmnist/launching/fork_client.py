"""The host of tasks on this machine: a fork server, with us as its launcher.

Never waits to send and always hears signals: a launcher of many tasks can be
told to stop.
"""

import contextlib
import os
import select
import selectors
import socket
import subprocess
import sys
import time

from distmnist.common import cli, files, signals
from distmnist.common.names import FORK_SERVER
from distmnist.launching import (
  failures,
  fork_server,
  message_socket,
  task_host,
)

# Of tasks that the kernel has killed with their server.
_ORPHAN_SECS = 10.0


class ServerDiedError(task_host.HostDiedError):
  """The fork server is gone, and by the kernel's hand its tasks with it."""

  def __init__(self, cause, what, log):
    super().__init__(
      f'the fork server has died, and {what} with it ({cause}; log: {log})',
      cause,
    )


class ForkServerClient(task_host.TaskHost):
  """A fork server of our own (fork_server.py), and us as its launcher.

  Attributes:
    is_ready: whether the module is imported: nothing starts before.
    server: subprocess.Popen, once the context is entered.
    pids: dict, name -> pid of what was started and runs, as far as known.
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
      module: dotted name to import before the first fork, or '' for a new
        Python a task.
      log: str, path of the server's own log; removed in the end if empty.
      env: dict, the environment of the server.
      what: str, what it starts, for an error: 'its tasks'.
      kept_fds: descriptors to be open as long as the server or a task runs.
      namespace_fds: those of a network_namespace.Namespace, for tasks that
        want it.
      grace_secs: float, from SIGTERM to SIGKILL for who still runs when we are
        gone.
    """
    super().__init__()
    self._module = module
    self._log = log
    self._env = dict(env)
    if module:
      # Else the import of NumPy starts threads, which no fork can take along.
      self._env['OPENBLAS_NUM_THREADS'] = '1'
    self._what = what
    self._grace_secs = grace_secs
    self._kept_fds = list(kept_fds)
    self._namespace_fds = list(namespace_fds)
    self.pids = {}

  @property
  def pid(self):
    return self.server.pid

  def __enter__(self):
    self._wake, self._wake_writer = socket.socketpair()
    self._wake_writer.setblocking(False)
    self._collecting = signals.collecting(
      self.signals, self._wake_writer.fileno()
    )
    self._collecting.__enter__()
    self._selector = selectors.DefaultSelector()
    self._selector.register(self._wake, selectors.EVENT_READ)
    try:
      self._start_server()
    except BaseException:
      # Without us in between a signal is to end this process again.
      self._collecting.__exit__(None, None, None)
      raise
    return self

  def _start_server(self):
    ours, theirs = message_socket.make_pair()
    self._socket = message_socket.MessageSocket(ours, self._selector)
    command = [sys.executable, '-m', FORK_SERVER]
    command += [str(theirs.fileno()), self._module]
    command += map(str, self._namespace_fds)
    command.append(fork_server.PADDING)
    self.is_ready = False
    with theirs, open(self._log, 'ab', opener=files.no_follow) as log:
      self.server = subprocess.Popen(
        command,
        env=self._env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=[theirs.fileno(), *self._kept_fds, *self._namespace_fds],
        start_new_session=True,
      )

  def restart(self):
    """Starts a new server; waits up to 10 s for the end of the old tasks."""
    self._socket.close()
    deadline = time.monotonic() + _ORPHAN_SECS
    for pid in self.pids.values():
      _wait_for_end(pid, deadline)
    self.pids.clear()
    self._start_server()

  def __exit__(self, *error):
    self._selector.close()
    self._socket.close()  # the server ends what still runs, and leaves
    try:
      self.server.wait(self._grace_secs + 2)
    except subprocess.TimeoutExpired:
      self.kill()
      self.server.wait()
    # The folder may be gone: a user has removed it.
    with contextlib.suppress(FileNotFoundError):
      if not os.path.getsize(self._log):
        os.remove(self._log)
    self._collecting.__exit__(*error)
    self._wake.close()
    self._wake_writer.close()

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
    # Bounded, so that a flood of messages keeps nobody from our signals.
    for _ in range(100):
      try:
        message = self._socket.receive()
      except BlockingIOError:
        break
      except ConnectionResetError:
        # It left with requests unread. The error comes once, and before what
        # the server had still to say: the next turn reads that.
        break
      if message is None:
        if ended:
          break  # These first: the end of the stream is read once more.
        self._socket.stop_listening()
        cause = failures.describe_end(self.server.wait())
        raise ServerDiedError(cause, self._what, self._log)
      if 'error' in message:
        raise cli.RunError(
          f'cannot import {self._module}: {message["error"]}'
          f' (traceback in {self._log})'
        )
      self.is_ready = True
      if 'code' in message:
        ended.append((message['name'], message['code']))
        self.pids.pop(message['name'], None)
      elif 'pid' in message:
        self.pids[message['name']] = message['pid']
        self.on_pid(message['name'], message['pid'])
    return ended


def _wait_for_end(pid, deadline):
  """Waits until a process that is no child of ours is gone."""
  try:
    fd = os.pidfd_open(pid)
  except OSError:  # It is gone, or the kernel is older than 5.3.
    return
  poll = select.poll()
  poll.register(fd, select.POLLIN)
  poll.poll(1000 * max(0, deadline - time.monotonic()))
  os.close(fd)
