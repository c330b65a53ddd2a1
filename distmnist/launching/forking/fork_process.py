"""The process of a fork server, and how to wait for other processes to end."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

from distmnist.common import files, owner_file
from distmnist.common.names import FORK_SERVER
from distmnist.launching.forking import fork_server, message_socket


class ServerProcess:
  """The process of a fork server, which may be started more than once.

  Attributes:
    process: subprocess.Popen of the last start.
    module: str, what it imports before the first fork, or ''.
    log: str, the path of its own log.
  """

  def __init__(self, module, log, env, kept_fds=(), namespace_fds=()):
    """
    Args:
      module: str, dotted.
      log: str.
      env: dict, the environment of the server.
      kept_fds: descriptors to keep open while the server or a task runs.
      namespace_fds: descriptors of a network_namespace.Namespace.
    """
    self.module = module
    self.log = log
    self._env = dict(env)
    if module:
      # Otherwise importing NumPy starts threads, which no fork can inherit.
      self._env['OPENBLAS_NUM_THREADS'] = '1'
    self._namespace_fds = list(map(str, namespace_fds))
    self._fds = [*kept_fds, *namespace_fds]

  def start(self):
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

  def wait_for_end(self, timeout_secs):
    """Waits for it to exit, and kills it if it does not; returns its code."""
    try:
      code = self.process.wait(timeout_secs)
    except subprocess.TimeoutExpired:
      self.process.kill()
      code = self.process.wait()
    # A user may have removed the folder, or made it read-only: how the run has
    # ended counts, not whether an empty log stays.
    with contextlib.suppress(OSError):
      if not os.path.getsize(self.log):
        os.remove(self.log)
    return code


@contextlib.contextmanager
def _blocking(signums):
  """Keeps signals from this thread, and from what it starts, for a while."""
  before = signal.pthread_sigmask(signal.SIG_BLOCK, signums)
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_orphans(pid, deadline):
  """Waits for the end of a task whose server is gone, and kills its group.

  The kernel kills the task, but not what the task has started: that is left in
  the task's process group. No process gets the number of a group that has a
  member, so that a living process of this number means that the group was empty
  and that the number has gone to somebody else.

  Args:
    pid: int, of the task, the leader of its group.
    deadline: float, of time.monotonic, for the end of the task.
  """
  wait_for_end(pid, deadline)
  if owner_file.read_start(pid) is None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
      os.killpg(pid, signal.SIGKILL)


def wait_for_end(pid, deadline):
  """Waits until `deadline` for a process that is not our child to end."""
  try:
    fd = os.pidfd_open(pid)
  except OSError:  # It is gone, or the kernel is older than 5.3.
    return
  poll = select.poll()
  poll.register(fd, select.POLLIN)
  poll.poll(1000 * max(0, deadline - time.monotonic()))
  os.close(fd)
