"""This task's metrics.jsonl, and what TensorBoard shows of the same lines."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import secrets
import signal
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from absl import flags

from distmnist.cluster import stop_request
from distmnist.common import layout, owner
from distmnist.exchange.rounds import round_waits
from distmnist.logdir import logdirs
from distmnist.storage import urls
from distmnist.training.telemetry import summaries
from distmnist.watching import metrics_file, stop_file

if TYPE_CHECKING:
  from distmnist.lifecycle import task as task_lib

_log = logging.getLogger(__name__)

_LOG_SECS = flags.DEFINE_float(
  'log_secs',
  2,
  'Seconds from one progress line to the next, and from one line of '
  'LOGDIR/TASK/metrics.jsonl to the next (at least 0.5 for the latter).',
  lower_bound=0,
)
_STORE_SECS = 5.0
# Of a task that has nothing else to report yet.
_STATES = {'ps': 'serving', 'worker': 'starting', 'evaluator': 'evaluating'}
# Fields of a ps's sample that become curves.
_CURVES = (
  'sent_bytes_per_sec',
  'received_bytes_per_sec',
  'cpu_cores',
  'rss_bytes',
)


def secs_from_flags() -> float:
  """Returns --log_secs."""
  return _LOG_SECS.value


@contextlib.contextmanager
def kept(task: task_lib.Task) -> Iterator[None]:
  """Writes this task's metrics while it is open, if there is a --logdir.

  Args:
    task: a ps or a worker is already serving.
  """
  cluster, logdir = task.cluster, logdirs.from_flags()
  every_secs = _LOG_SECS.value
  is_in_store = bool(logdir) and urls.is_remote(logdir)
  if is_in_store:
    # A request each; what is there is for the report alone.
    every_secs = max(_STORE_SECS, every_secs)
    logdir = logdir if cluster.job_name == 'worker' else None
  stopped = None
  with contextlib.ExitStack() as stack:
    sinks, state = [], _STATES[cluster.job_name]
    collect = functools.partial(dict, state=state)
    if logdir and not is_in_store:
      stop = functools.partial(_stop, task, logdir)
      stack.enter_context(stop_file.Watch(logdir, stop))
      sinks.append(stack.enter_context(contextlib.closing(Curves(logdir))))
      if cluster.job_name == 'ps':
        waiting = round_waits.WaitingWorkers(cluster, task.server)
        stack.enter_context(contextlib.closing(waiting))

        def collect() -> dict[str, Any]:
          return {'state': state, 'waiting': waiting.find()}

    # An evaluator serves nobody, and has no watchdog.
    is_alone = cluster.job_name == 'evaluator'
    life = secrets.token_hex(8) if is_alone else task.watchdog.life
    metrics = stack.enter_context(
      task.metrics.kept(logdir, cluster.name, life, every_secs, collect, sinks)
    )
    try:
      yield
    except stop_request.StoppedError as error:  # No failure of this life.
      stopped = error
    if metrics and task.stop.is_requested:
      metrics.ending = 'stopped'
  if stopped:
    raise stopped


def _stop(task: task_lib.Task, logdir: str, who: str, is_taken: bool) -> bool:
  """Obeys a request to stop this run, unless a launcher does so.

  The exit code is 0, so that what started this task does not restart it.

  Returns:
    Whether somebody obeys it: a launcher that does not may be gone, and
    will then be known to be.
  """
  if is_taken:
    return True
  if owner.has_launcher(logdir):
    return False
  _log.info(f'{who} asks this run to stop')
  task.stop.request(signal.SIGINT, exit_code=0)
  return True


class Curves:
  """A sink for a task's lines: makes TensorBoard curves of what has none yet.

  A ps is a run of its own, whose steps are seconds since its first line ever.
  The evaluations of an evaluator and the chief's last ones are runs, too.
  """

  def __init__(self, logdir: str) -> None:
    self._logdir = logdir
    self._writers: dict[str, summaries.Writer] = {}
    # (the file's inode, the time of its first line).
    self._first: tuple[int | None, float] = None, 0.0

  def __call__(self, line: Mapping[str, Any]) -> None:
    if not os.path.isdir(self._logdir):
      return
    is_evaluator = line['task'].startswith('evaluator')
    if line['kind'] == 'sample' and line['task'].startswith('ps'):
      scalars = {n: line[n] for n in _CURVES if line.get(n) is not None}
      scalars['workers_waiting'] = len(line.get('waiting', ()))
      self._write(line['task'], scalars, self._find_secs(line))
    elif line['kind'] == 'evaluation':
      metrics = {n: x for n, x in line['metrics'].items() if x is not None}
      if is_evaluator:
        self._write(line['task'], metrics, line['step'])
      elif line.get('is_final'):
        self._write(line['split'], metrics, line['step'])

  def _find_secs(self, line: Mapping[str, Any]) -> int:
    """Returns the seconds since the first line of any life."""
    path = metrics_file.path_of(self._logdir, line['task'])
    try:
      inode = os.stat(path).st_ino
    except OSError:
      inode = None
    if self._first[0] != inode or inode is None:
      # An earlier run's file may have been moved aside.
      time = metrics_file.read_first_time(path) or line['time']
      self._first = inode, time
    return int(line['time'] - self._first[1])

  def _write(self, run: str, scalars: Mapping[str, float], step: int) -> None:
    if run not in self._writers:
      folder = layout.metrics_dir(self._logdir, run)
      self._writers[run] = summaries.Writer(folder)
      # An earlier life may have been further, or have written this very step.
      self._writers[run].begin_session(step - 1)
    self._writers[run].write_scalars(scalars, step)

  def close(self) -> None:
    for writer in self._writers.values():
      writer.close()
