"""Turns the child of a fork server into the requested task.

It gets its own log, namespace, environment and random seeds, and keeps nothing
of the server's. Then it calls `run()` of its module. A module without `run()`
is a script, which a new Python process runs.
"""

import contextlib
import importlib
import os
import signal
import sys
import traceback

from distmnist.common import cli, process_title
from distmnist.launching import child_process


def run(request, namespace, server_files, server_pid, is_imported):
  """Turns the forked child into the task; does not return.

  Args:
    request: dict, as in fork_server.py.
    namespace: network_namespace.Namespace to enter; without descriptors if
      there is none.
    server_files: the server's open files, which are closed here.
    server_pid: int.
    is_imported: bool, whether the task's module is imported and called here;
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
  except BaseException:
    traceback.print_exc()
  finally:
    # Not sys.exit: this is a fork in the middle of the server's stack, and
    # the teardown of TensorFlow costs up to 1.4 s.
    with contextlib.suppress(OSError, ValueError):
      sys.stdout.flush()
      sys.stderr.flush()
    os._exit(code)


def _redirect(log):
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
  sys.stdout.reconfigure(line_buffering=True)


def _reseed():
  # Python reseeds `random` after a fork, but NumPy does not: all workers would
  # draw the same numbers.
  if 'numpy' in sys.modules:
    sys.modules['numpy'].random.seed()


def _exit_code(end):
  if end.code is None or isinstance(end.code, int):
    return (end.code or 0) & 0xFF
  print(end.code, file=sys.stderr)
  return 1
