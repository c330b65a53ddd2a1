"""The end: which task waits for which, and how each reports its end.

Workers tell the chief that their loop has ended, and all tell each ps when they
are done. No task waits for a worker that is no longer alive.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.cluster import errors, message_queue, probing, stop_request
from distmnist.common import cli, console
from distmnist.logdir import report, saving

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib

_log = logging.getLogger(__name__)

# A slow ps is given this long to hear that a worker is done.
_TELL_SECS = 10.0
# The chief's pause between two reads of what the others say at the end, and how
# often it looks who is still there.
_PAUSE_SECS, _LOOK_SECS = 0.05, 0.5


@contextlib.contextmanager
def reporting_end_to_ps(
  cluster: cluster_lib.Cluster,
  server: tf.train.Server | None,
  stop: stop_request.StopRequest,
) -> Iterator[None]:
  """Tells every ps how this worker's work in the `with` block has ended.

  A worker that was asked to stop says nothing, as it may come back; it is no
  error if the stop cut off its step or its wait. The error for which the work
  was given up is reported, but not raised here.

  Raises:
    cli.LostError: another task is gone.
  """
  error = None
  try:
    yield
  except stop_request.StoppedError:
    pass
  except errors.GONE as gone:
    error = cli.LostError(f'another task is gone: {errors.explain(gone)}')
  except (tf.errors.OpError, RuntimeError) as failure:
    error = failure  # RuntimeError: the session was closed to end a wait.
  except BaseException as failure:
    if not stop.is_requested:
      _say_done(cluster, server, failure)
    elif isinstance(failure, saving.SaveError):
      unsaved = stop.find_unsaved() or 'the last steps are not saved'
      raise cli.NotSavedError(f'{failure}; {unsaved}') from failure
    raise
  if not stop.is_requested:
    _say_done(cluster, server, error)
    if error:
      raise error
  elif stop.error:
    _say_done(cluster, server, stop.error)


def _say_done(
  cluster: cluster_lib.Cluster,
  server: tf.train.Server | None,
  error: BaseException | None,
) -> None:
  """Tells each ps that this worker is done, and whether `error` ended it.

  To be called after the training session is closed.

  A ps that left earlier would take the session with it. One that is gone need
  not be told, and the call fails at once; a slow one must hear of a good end,
  or it would go on waiting.
  """
  # An error that is not the user's may be over when the worker starts again.
  is_final = isinstance(error, (cli.RunError, cli.UsageError, type(None)))
  is_lost = isinstance(error, cli.RunError) and error.exit_code == cli.LOST
  message = {
    'done': cluster.name,
    'ok': error is None,
    'comes_back': not is_final or is_lost,
  }
  for i in range(cluster.num_ps):
    with (
      contextlib.suppress(tf.errors.OpError),
      open_done_queue(cluster, server, i) as box,
    ):
      box.send(message, timeout_secs=2.0 if error else _TELL_SECS)


def open_done_queue(
  cluster: cluster_lib.Cluster, server: tf.train.Server | None, ps_index: int
) -> message_queue.MessageQueue:
  place = f'/job:ps/task:{ps_index}'
  return message_queue.MessageQueue(
    cluster, server, place, f'done_ps{ps_index}'
  )


def _size(box: message_queue.MessageQueue | None) -> int:
  """Returns how many messages a queue holds, if there is one."""
  if not box:
    return 0
  try:
    return box.size()
  except tf.errors.OpError:
    return 0  # The training session meets the same error, and recovers.


class Others:
  """Messages between the workers; none if there is only one worker.

  They go through ps 0 or, where there is none, through worker 0, which is
  the last to leave.
  """

  def __init__(
    self,
    cluster: cluster_lib.Cluster,
    server: tf.train.Server | None,
    secs_silent: Callable[[str], float | None] = lambda name: None,
  ) -> None:
    """
    Args:
      server: None for one process.
      secs_silent: the seconds that a task has not beaten, see Absences.
    """
    self._cluster = cluster
    self._server = server
    self._secs_silent = secs_silent
    self._addresses = cluster.other_addresses('worker')
    self._stop_queue: message_queue.MessageQueue | None = None
    self._end_queue: message_queue.MessageQueue | None = None
    self._save_queue: message_queue.MessageQueue | None = None
    if self._addresses:
      self._stop_queue = self._open('stop')
      self._end_queue = self._open('end')
    if cluster.num_ps and cluster.is_chief:
      self._save_queue = self._open('save')

  def _open(self, name: str) -> message_queue.MessageQueue:
    place = self._cluster.coordinator_device
    return message_queue.MessageQueue(self._cluster, self._server, place, name)

  def stop_all(self) -> None:
    """Asks every worker to end its loop."""
    if self._stop_queue:
      self._stop_queue.send({})

  def is_stop_for_all(self) -> bool:
    return _size(self._stop_queue) > 0

  @functools.cached_property
  def _saved_queue(self) -> message_queue.MessageQueue | None:
    # Not opened at the start: few rules need it, and only at their end.
    return self._open('saved') if self._addresses else None

  def say_saved(self) -> None:
    """Chief: tells the others that the last step is saved."""
    if self._saved_queue:
      self._saved_queue.send({})

  def is_saved(self) -> bool:
    """Whether the chief has said that the last step is saved."""
    return _size(self._saved_queue) > 0

  def is_save_wanted(self) -> bool:
    """Whether a ps that must stop waits for a checkpoint."""
    return _size(self._save_queue) > 0

  def confirm_save(self, step: int | None) -> None:
    """Tells every ps that waits for a checkpoint which `step` is saved."""
    wanted = self._save_queue
    while wanted and _size(wanted):
      with contextlib.suppress(tf.errors.OpError):
        index = wanted.take()['ps']
        with open_done_queue(self._cluster, self._server, index) as box:
          box.send({'saved': step}, timeout_secs=2.0)

  def send_stats(self, stats: report.WorkerStats) -> None:
    """Tells the chief, if it is another, that this worker has left its loop."""
    if self._end_queue:
      self._end_queue.send(stats.to_message())

  def num_left(self) -> int:
    """Chief: returns how many workers have left their loops already."""
    return _size(self._end_queue)

  def wait_at_end(
    self,
    timeout_secs: float,
    pause: Callable[[float], object],
    get_on: Callable[[list[str]], bool] = lambda names: False,
  ) -> list[report.WorkerStats]:
    """Chief: waits until every other worker has left its loop or is gone.

    Args:
      timeout_secs: the longest wait.
      pause: called with seconds, between two looks; may raise to end the wait.
      get_on: given the names of those waited for, at each look: whether they
        get on; then the longest wait begins anew.

    Returns:
      What each has done; those that are gone are not in it.
    """
    missing = dict(self._addresses)
    found: list[report.WorkerStats] = []
    wait = console.Wait(timeout_secs)
    absences, next_look = probing.Absences(self._secs_silent), 0.0

    def take_messages() -> None:
      for message in self._take_ended():
        found.append(report.WorkerStats.from_message(message))
        missing.pop(f'worker {found[-1].worker}', None)

    while True:
      take_messages()
      if not missing:
        return found
      now = time.monotonic()
      if now >= next_look:
        next_look = now + _LOOK_SECS
        if get_on(list(missing)):
          wait = console.Wait(timeout_secs)
        if gone := absences.find_gone(missing):
          take_messages()  # What they have sent before they went.
        for name in sorted(gone.keys() & missing.keys()):
          _log.info(f'{name} is gone: ending without it')
          del missing[name]
      names = errors.list_tasks(missing)
      if missing and wait.is_over(f'at the end for {names}'):
        _log.info(
          f'ending without {names}: not done after {timeout_secs:g} s '
          '(--end_timeout_secs)'
        )
        return found
      pause(_PAUSE_SECS)

  def _take_ended(self) -> Iterator[dict[str, Any]]:
    """Yields the messages in the end queue; none if its task is away."""
    box = self._end_queue
    with contextlib.suppress(tf.errors.OpError):
      while box and _size(box):
        yield box.take()


def choose_absence_error(is_first: bool) -> type[cli.RunError]:
  """Returns the error of a task that misses another."""
  return cli.PassingError if is_first else cli.LostError
