"""Programs that run beside the tasks of a launch, from its start to its end.

TensorBoard, the port for Prometheus: they read the log directory. If one of
them fails, the run goes on; if the launcher ends, even by kill -9, they end
too.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from absl import flags

from distmnist.common import cli
from distmnist.common.names import METRICS_PORT
from distmnist.common.refusals import Refusal
from distmnist.launching import run_record
from distmnist.launching.screen import task_logs
from distmnist.launching.supervisor import failures
from distmnist.storage import urls

FLAGS = flags.FLAGS
_log = logging.getLogger(__name__)

_TENSORBOARD = flags.DEFINE_bool(
  'tensorboard',
  False,
  'Show the --logdir of train in a TensorBoard on 127.0.0.1, on a free port,'
  ' from the start to the end of the run.',
)
_METRICS_PORT = flags.DEFINE_integer(
  'metrics_port',
  None,
  'Port on 127.0.0.1 where Prometheus finds the metrics of all tasks, at'
  ' /metrics, during the run. 0 takes one that is free. Default: none.',
  lower_bound=0,
  upper_bound=65535,
)
# What each has to end, once it is told to.
_END_SECS = 5.0
# Ends the program along with the thread that starts it, the launch's own.
_FOLLOW = (
  'import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15);'
  ' os.getppid() == int(sys.argv[1]) or sys.exit();'
  ' os.execv(sys.executable, [sys.executable, *sys.argv[2:]])'
)


def _make_refusals(flag: str) -> tuple[Refusal, ...]:
  """Returns the rows of a flag that asks for a companion."""

  def is_asked() -> bool:
    return FLAGS[flag].value != FLAGS[flag].default

  return (
    Refusal(
      flag,
      lambda f: is_asked() and f.launcher == 'kubernetes',
      ' reads a --logdir on this machine, and on Kubernetes it is on a volume: '
      'leave it out (docs/launching.md has a TensorBoard for there)',
    ),
    Refusal(
      flag,
      lambda f: is_asked() and f.no_wait,
      lambda f: (
        ' lasts as long as the launcher, which does not wait for the run with '
        f'{f.no_wait}: leave one of them out'
      ),
    ),
    Refusal(
      flag,
      lambda f: is_asked() and not f.logdir,
      ' shows what the tasks write to a --logdir: give train one on this file '
      'system, after the --',
    ),
    Refusal(
      flag,
      lambda f: is_asked() and urls.is_remote(f.logdir),
      lambda f: (
        f' reads a --logdir on this machine, not {f.logdir}: leave one of them '
        'out'
      ),
    ),
  )


# Facts: launcher, str; logdir, str or None, train's flag; no_wait, str or None,
# the flag for which the launcher only submits.
REFUSALS = (
  *_make_refusals('tensorboard'),
  *_make_refusals('metrics_port'),
)


def from_flags() -> list[run_record.Sidecar]:
  """Returns the sidecars that the flags ask for."""
  found = []
  if _TENSORBOARD.value:
    found.append(_run_tensorboard)
  if _METRICS_PORT.value is not None:
    found.append(functools.partial(_run_metrics_port, _METRICS_PORT.value))
  return found


def _run_tensorboard(
  logdir: str, logs_dir: str
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
  with socket.socket() as free:
    free.bind(('127.0.0.1', 0))
    port = free.getsockname()[1]
  _log.info(f'TensorBoard: http://127.0.0.1:{port}/ (in a few seconds)')
  argv = ['-m', 'tensorboard.main', f'--logdir={logdir}', '--host=127.0.0.1']
  return running('tensorboard', [*argv, f'--port={port}'], logs_dir)


@contextlib.contextmanager
def _run_metrics_port(
  port: int, logdir: str, logs_dir: str
) -> Iterator[subprocess.Popen[bytes]]:
  try:
    listener = socket.create_server(('127.0.0.1', port))
  except OSError as error:
    raise cli.RunError(
      f'--metrics_port={port}: {os.strerror(error.errno or 0)}; give a free '
      'one, or 0'
    ) from error
  with contextlib.ExitStack() as stack:
    with listener:
      port, fd = listener.getsockname()[1], listener.fileno()
      argv = ['-m', METRICS_PORT, logdir, str(fd)]
      process = stack.enter_context(
        running('metrics_port', argv, logs_dir, kept_fds=[fd])
      )
    _log.info(f'metrics for Prometheus: http://127.0.0.1:{port}/metrics')
    yield process


@contextlib.contextmanager
def running(
  name: str, argv: list[str], logs_dir: str, kept_fds: Sequence[int] = ()
) -> Iterator[subprocess.Popen[bytes]]:
  """Runs Python with `argv` in this context; logs to NAME.log.

  If it fails, that is said at once. At the end the process gets SIGTERM, and
  _END_SECS to exit. Where an exception ends the context, it is killed at once.
  `kept_fds` are the descriptors that it inherits.
  """
  log = os.path.join(logs_dir, f'{name}.log')
  with open(log, 'wb') as file:
    process = subprocess.Popen(
      [sys.executable, '-c', _FOLLOW, str(os.getpid()), *argv],
      stdin=subprocess.DEVNULL,
      stdout=file,
      stderr=subprocess.STDOUT,
      pass_fds=kept_fds,
      start_new_session=True,  # A Ctrl-C is ours to pass on.
    )
  is_over = threading.Event()

  def tell() -> None:
    if process.wait() and not is_over.is_set():
      _log.info(f'{name} has failed: {_find_cause(process, log)}; log: {log}')

  watcher = threading.Thread(target=tell, daemon=True)
  watcher.start()
  try:
    try:
      yield process
    finally:
      if process.poll() is None:
        is_over.set()
    process.terminate()
    if not _has_ended(process, _END_SECS):
      _log.info(f'{name} has not ended and is killed; log: {log}')
  finally:
    process.kill()  # Of no effect on one that has exited.
    process.wait()
    watcher.join()


def _has_ended(process: subprocess.Popen[bytes], secs: float) -> bool:
  with contextlib.suppress(subprocess.TimeoutExpired):
    process.wait(secs)
  return process.poll() is not None


def _find_cause(process: subprocess.Popen[bytes], log: str) -> str:
  """Returns why a process has failed: what it says, or its code."""
  reason = task_logs.find_reason(task_logs.read_last_lines(log, num_lines=1))
  return reason or failures.describe_end(process.returncode)
