"""This machine as the place where trials run, sharing its cores and GPUs."""

import contextlib
import dataclasses
import glob
import math
import os
import signal
import time

from absl import flags

from distmnist.common import cli, files, stop_grace
from distmnist.common.names import LAUNCHERS
from distmnist.launching import gpus as gpus_lib
from distmnist.launching.forking import fork_client
from distmnist.sweeps import runners

_SPARK = f'{LAUNCHERS}.spark'
# How often to look whether a command has left its queue.
_LOOK_SECS = 0.5


@dataclasses.dataclass(frozen=True)
class LocalBackend(runners.Backend):
  """Trials on this machine, or launched from it.

  Attributes:
    gpus: list of str, devices that the trials share; None to set nothing.
    forked_module: dotted name of the module that trials are forked with, or ''.
  """

  gpus: list | None
  forked_module: str

  def check_ready(self):
    pass

  def make_runner(self, folder, lock, stop_grace_secs):
    log = os.path.join(folder, 'fork_server.log')
    return LocalRunner(self.forked_module, log, lock, stop_grace_secs)

  def find_env(self, slot):
    if self.gpus is None:
      return {}
    mine = share_gpus(self.gpus, self.num_parallel, slot)
    return {'CUDA_VISIBLE_DEVICES': ','.join(mine)}

  def find_data_dir(self, train_flags):
    return []  # The trials inherit our environment.


def from_flags(num_parallel, module, is_launched):
  """Returns a LocalBackend.

  Args:
    num_parallel: int, how many trials run at the same time.
    module: dotted name, what a trial runs.
    is_launched: whether each trial is a `distmnist.launch`.

  Raises:
    cli.UsageError: a flag is for another runner, or asks for too many GPUs.
  """
  values = flags.FLAGS
  if values.launcher != 'spark':
    for flag in values.flags_by_module_dict()[_SPARK]:
      if flag.present:
        raise cli.UsageError(
          f'--{flag.name} is for --runner=spark, and this is --runner=local: '
          'leave it out, or give --runner=spark'
        )
  num_cores = max(1, len(os.sched_getaffinity(0)) // num_parallel)
  return LocalBackend(
    num_parallel,
    # Other machines have cores of their own.
    num_cores if values.launcher == 'local' else None,
    gpus_lib.find_gpus(values.gpus, os.environ),
    module if values.fork_tasks and not is_launched else '',
  )


def share_gpus(gpus, num_parallel, slot):
  """Returns the `gpus` that belong to a slot, 0 <= slot < num_parallel.

  With fewer GPUs than slots, some slots share one.
  """
  return gpus[slot::num_parallel] or gpus[slot % max(1, len(gpus)) :][:1]


class _Queue:
  """Where a command waits until something is written to a log in a folder."""

  def __init__(self, folder):
    self._pattern = os.path.join(glob.escape(folder), '*_[0-9]*.log')
    self._job_log = os.path.join(folder, 'slurm.log')
    self._before = self._look()  # An earlier run may have written there.

  def is_left(self):
    return not self._look() <= self._before

  def _look(self):
    """Returns a set with an entry for each log that is not empty."""
    found = set()
    for path in (*glob.glob(self._pattern), self._job_log):
      with contextlib.suppress(OSError):
        at = os.stat(path)
        found |= {(path, at.st_ino, at.st_size)} if at.st_size else set()
    return found


@dataclasses.dataclass
class _Running:
  """A running command.

  Attributes:
    command: runners.Command.
    deadline: float, when (by time.monotonic) it is told to leave or, once told,
      killed.
    queue: _Queue in which it waits, or None.
    is_late: whether it was told to leave because it took too long.
  """

  command: runners.Command
  deadline: float
  queue: _Queue | None = None
  is_late: bool = False


class LocalRunner(runners.Runner):
  """Runs commands on this machine, as children of one fork server."""

  def __init__(
    self, module, log, lock, stop_grace_secs=stop_grace.DEFAULT_SECS
  ):
    """
    Args:
      module: dotted name to import before the first fork, or '' for a new
        Python for each command.
      log: str, path of the fork server's own log.
      lock: file; it stays open until the last process is gone.
      stop_grace_secs: float, train's.
    """
    super().__init__()
    self._log = log
    self._client = fork_client.ForkServerClient(
      module,
      log,
      os.environ,
      'the trials',
      kept_fds=[lock.fileno()],
      grace_secs=stop_grace.for_orphans(stop_grace_secs),
    )
    self.signals = self._client.signals

  def __enter__(self):
    # The log covers only this run.
    open(self._log, 'wb', opener=files.no_follow).close()
    self._client.__enter__()
    return self

  def __exit__(self, *error):
    self._client.__exit__(*error)

  def stop(self, signum, grace_secs):
    if not self._client.is_ready:
      # The import is not done: no command has begun, and none will.
      self._client.kill()
      return self._give_up()
    return super().stop(signum, grace_secs)

  def _begin(self, command):
    has_queue = command.logs_dir and command.limit.secs < math.inf
    queue = _Queue(command.logs_dir) if has_queue else None
    self._client.start(command.name, command.argv, command.env, command.log)
    secs = math.inf if queue else command.limit.secs
    return _Running(command, time.monotonic() + secs, queue)

  def _turn(self, secs=math.inf):
    if self._look_at_queues():
      secs = min(secs, _LOOK_SECS)
    self._end_overdue()
    first = min(running.deadline for running in self._running.values())
    secs = max(0.0, min(secs, first - time.monotonic()))
    ended = self._client.poll(None if secs == math.inf else secs)
    return [(name, self._note_end(name, code)) for name, code in ended]

  def _tell(self, signum, grace_secs):
    # A second signal would mean "leave at once".
    untold = [name for name, one in self._running.items() if not one.is_late]
    self._client.signal(untold, signum)
    for running in self._running.values():
      running.deadline, running.queue = math.inf, None  # `stop` decides.

  def _kill(self, signum):
    self._client.signal(self._running, signal.SIGKILL)

  def _look_at_queues(self):
    """Starts the time of what has left its queue; returns what waits."""
    waiting = [one for one in self._running.values() if one.queue]
    for running in waiting:
      if running.queue.is_left():
        running.queue = None
        running.deadline = time.monotonic() + running.command.limit.secs
    return [one for one in waiting if one.queue]

  def _end_overdue(self):
    """Tells overdue commands to leave, and kills those that do not."""
    now = time.monotonic()
    for name, running in self._running.items():
      if now < running.deadline:
        continue
      if running.is_late:
        self._client.signal([name], signal.SIGKILL)
        running.deadline = math.inf
      else:
        self._client.signal([name], signal.SIGTERM)
        running.is_late = True
        running.deadline = now + running.command.limit.grace_secs

  def _note_end(self, name, code):
    running = self._running.pop(name)
    command = running.command
    return command.limit.note(command.log, code) if running.is_late else code
