"""Starts tasks as forks of one process that has already imported TensorFlow.

The import takes 2 to 5 s, and this program pays for it once. Run as
`python -m distmnist.launching.forking.fork_server FD MODULE NS...`, it imports
MODULE, which must start no thread and no server, then forks one task per
request; the child calls `run()` of the module named on its command line. With
an empty MODULE it imports nothing and starts each task as a new Python process:
slower, but without the state that a fork inherits.

The child gets its own log, namespace, environment and random seeds, and keeps
nothing of the server's (`become_task`).

NS... are the descriptors of a network_namespace.Namespace, if there is one. FD
is one end of a SOCK_SEQPACKET pair; a message is one JSON object:

  in:   {"start": name, "argv": [...], "env": {...}, "log": path}, with
        "isolate": true for a task in the namespace, "title": what `ps` shows,
        and "grace_secs": the seconds that all tasks get from SIGTERM to
        SIGKILL once the launcher is gone
        {"signal": number, "name": name}
  out:  {"ready": true} or {"error": the last line of the import's traceback}
        {"name": name, "pid": pid}, and when it ends {"name": name, "code": c},
        where c is the exit code, or -n after signal n; with "reason" if the
        system has refused the task a process

When the stream ends, the launcher is gone, even by kill -9: all tasks get
SIGTERM, then SIGKILL. When this process ends, all tasks get SIGKILL, so it
hears none of the signals that ask to end: a stop that reaches every process
must not cost the tasks their last checkpoint.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn

from distmnist.common import cli, process_title, signals
from distmnist.launching import child_process, network_namespace
from distmnist.launching.forking import message_socket

GRACE_SECS = 10.0
# Blocked rather than ignored: a task inherits the mask, so that what is sent to
# it before it is ready for signals waits, and a launcher may block them for us
# before we begin.
UNHEARD = signals.STOPS
# The last word of our command line, which makes room there for titles.
PADDING = ' ' * 200


class ForkServer:
  """Starts tasks on request and tracks them by name."""

  def __init__(
    self,
    launcher: socket.socket,
    is_imported: bool,
    namespace: network_namespace.Namespace,
  ) -> None:
    """Makes a server that has no task yet.

    Args:
      launcher: our end of message_socket.make_pair.
      is_imported: whether a task's module is imported and called here;
        otherwise each task is a new Python process.
      namespace: that of isolated tasks; without descriptors if there are none.
    """
    self._is_imported = is_imported
    self._namespace = namespace
    self._grace_secs = GRACE_SECS
    self._pids: dict[str, int] = {}
    # A child's end wakes select through this pair: nothing is polled.
    self._wake, wake_writer = socket.socketpair()
    wake_writer.setblocking(False)
    signal.set_wakeup_fd(wake_writer.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    self._selector = selectors.DefaultSelector()
    self._launcher = message_socket.MessageSocket(launcher, self._selector)
    self._selector.register(self._wake, selectors.EVENT_READ)
    self._own = (launcher, self._wake, wake_writer, self._selector)

  def serve(self) -> None:
    """Answers requests until the launcher is gone; then ends all tasks."""
    is_served = True
    while is_served:
      ready = self._select()
      self._reap()
      if ready.get(self._launcher, 0) & selectors.EVENT_READ:
        is_served = self._answer()
    self._end_all()

  def _answer(self) -> bool:
    """Answers the next request; returns whether there may be more."""
    try:
      request = self._launcher.receive()
    except BlockingIOError:
      return True
    except ConnectionResetError:  # It left with answers unread.
      return False
    if request is None:
      return False
    if 'start' in request:
      self._start(request)
    else:
      self._signal(request['name'], request['signal'])
    return True

  def _start(self, request: dict[str, Any]) -> None:
    self._grace_secs = request.get('grace_secs', GRACE_SECS)
    server_pid = os.getpid()
    try:
      pid = os.fork()
    except OSError as error:  # The others must not end with this task.
      self._launcher.send(
        {
          'name': request['start'],
          'code': cli.NOT_STARTED,
          'reason': f'not started, as this machine refuses a new process '
          f'({error.strerror}): see ulimit -u, and the limits of its container',
        }
      )
      return
    if pid == 0:
      if not request.get('isolate'):
        self._namespace.close()
      become_task(
        request, self._namespace, self._own, server_pid, self._is_imported
      )
    self._pids[request['start']] = pid
    self._launcher.send({'name': request['start'], 'pid': pid})

  def _signal(self, name: str, signum: int) -> None:
    # An unreaped child keeps its pid: no other process can be hit.
    pid = self._pids.get(name)
    if pid is None:
      return
    try:
      os.killpg(pid, signum)
    except ProcessLookupError:  # forked, but not yet the leader of a group
      os.kill(pid, signum)

  def _reap(self) -> None:
    for name, pid in list(self._pids.items()):
      if not child_process.has_ended(pid):
        continue
      code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
      del self._pids[name]
      self._launcher.send({'name': name, 'code': code})

  def _end_all(self) -> None:
    self._launcher.stop_listening()
    deadline = time.monotonic() + self._grace_secs
    for name in self._pids:
      self._signal(name, signal.SIGTERM)
    while self._pids and time.monotonic() < deadline:
      self._select(deadline - time.monotonic())
      self._reap()
    for name in self._pids:
      self._signal(name, signal.SIGKILL)
    while self._pids:
      self._select()
      self._reap()

  def _select(self, timeout_secs: float | None = None) -> dict[Any, int]:
    ready = {
      key.fileobj: events for key, events in self._selector.select(timeout_secs)
    }
    if self._wake in ready:
      self._wake.recv(4096)
    if ready.get(self._launcher, 0) & selectors.EVENT_WRITE:
      self._launcher.flush()
    return ready


def main(fd: int, module: str, *namespace_fds: int) -> int:
  """Imports `module` (dotted name), serves on `fd`, returns the exit code."""
  signal.pthread_sigmask(signal.SIG_BLOCK, UNHEARD)
  launcher = socket.socket(fileno=fd)
  namespace = network_namespace.Namespace(namespace_fds)
  try:
    if module:
      importlib.import_module(module)
  except BaseException as error:
    traceback.print_exc()
    last_line = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError) and error.filename:
      last_line += f' ({error.filename}:{error.lineno})'
    launcher.send(json.dumps({'error': last_line}).encode())
    return 1
  # Else the first full look for garbage costs each task 0.3 s, and copies of
  # 64 MiB of the memory that it shares with the server.
  gc.freeze()
  # Python 3.12 warns about threads: those that an import starts hold none of
  # our locks, and the child of an idle server finds everything consistent.
  warnings.filterwarnings('ignore', message='.*fork', category=Warning)
  with contextlib.suppress(OSError):  # The next read says that it is gone.
    launcher.send(json.dumps({'ready': True}).encode())
  ForkServer(launcher, bool(module), namespace).serve()
  return 0


def become_task(
  request: dict[str, Any],
  namespace: network_namespace.Namespace,
  server_files: Iterable[Any],
  server_pid: int,
  is_imported: bool,
) -> NoReturn:
  """Turns the forked child into the task; does not return.

  Args:
    request: a message with "start"; see above.
    namespace: entered here; without descriptors if there is none.
    server_files: the server's open files, which are closed here.
    is_imported: whether the task's module is imported and called here;
      otherwise the task is a new Python process.
  """
  code, has_begun = cli.FAILED, False
  try:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request.get('title'):
      process_title.set_title(request['title'])
    os.setsid()  # a Ctrl-C in the terminal is the launcher's to pass on
    _redirect(request['log'])
    namespace.enter()
    for file in (*server_files, namespace):
      file.close()
    # After `enter`, as a change of credentials clears it.
    child_process.die_with_parent()
    if os.getppid() != server_pid:
      os._exit(1)
    os.environ.update(request['env'])
    _reseed()  # While no signal comes: NumPy may swallow a Ctrl-C here.
    # What was sent to the task until now comes now, and to its own log.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _, _, module, *flags = request['argv']
    call, has_begun = None, True
    if is_imported:
      call = getattr(importlib.import_module(module), 'run', None)
    if call:
      sys.argv = [module, *flags]
      call()
    else:
      os.environ['PYTHONUNBUFFERED'] = '1'
      os.execv(sys.executable, [sys.executable, '-m', module, *flags])
    code = 0
  except SystemExit as end:
    code = _exit_code(end)
  except OSError:  # Its log, say: that may pass.
    traceback.print_exc()
    code = cli.FAILED if has_begun else cli.NOT_STARTED
  except KeyboardInterrupt:  # Before the task's own code heeds it.
    sys.stdout.flush()
    signals.end_as_by_ctrl_c()
    code = 130
  except BaseException:
    traceback.print_exc()
  finally:
    # Not sys.exit: this is a fork in the middle of the server's stack, and
    # the teardown of TensorFlow costs up to 1.4 s.
    with contextlib.suppress(OSError, ValueError):
      sys.stdout.flush()
      sys.stderr.flush()
    os._exit(code)


def _redirect(log: str) -> None:
  # Others may be able to write to the log's folder.
  flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
  for path, mode, targets in (
    (os.devnull, os.O_RDONLY, (0,)),
    (log, flags, (1, 2)),
  ):
    fd = os.open(path, mode, 0o666)
    for target in targets:
      os.dup2(fd, target)
    os.close(fd)
  if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(line_buffering=True)


def _reseed() -> None:
  # Python reseeds `random` after a fork, but NumPy does not: all workers would
  # draw the same numbers.
  if 'numpy' in sys.modules:
    sys.modules['numpy'].random.seed()


def _exit_code(end: SystemExit) -> int:
  if end.code is None or isinstance(end.code, int):
    return (end.code or 0) & 0xFF
  print(end.code, file=sys.stderr)
  return 1


if __name__ == '__main__':
  process_title.set_title('distmnist fork server')
  fd, module, *namespace_fds = (word.strip() for word in sys.argv[1:])
  exit_code = main(int(fd), module, *map(int, filter(None, namespace_fds)))
  sys.stdout.flush()
  os._exit(exit_code)  # spares the launcher the teardown of TensorFlow
