"""A task that waits on one ps finds out that another ps has restarted.

A step that waits on ps 0 for a token, a permit or a lock has no call open to
ps 1. If ps 1 dies and comes back, nothing tells the step, and what it waits for
may never come: the tasks that would send it have lost their shards.

So each session leaves a mark on every ps, which lasts as long as that process.
When nothing has moved for a second (longer with many workers, as all of them
look), separate sessions check the marks, one per ps, as each ps may be silent;
if a mark is missing, the waiting session is closed, and MonitoredSession
recovers. A step that ends sooner costs nothing.

Where the workers have the variables there is no ps to mark, and the rule is
asked whether they can still go on together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.cluster import errors, polling

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster

_log = logging.getLogger(__name__)

# Look once nothing has moved for this long, and then at this interval; longer
# with many workers.
_LOOK_SECS = 1.0
_TIMEOUT_MS = 5000


class LossWatch:
  """Lets a worker's sessions find out that a task was lost.

  Each error caused by the loss of a task becomes one after which
  MonitoredSession makes a new session, and waits that no error would end are
  ended.
  """

  def __init__(
    self,
    cluster: Cluster,
    server: tf.train.Server | None,
    find_loss: Callable[[], str] | None = None,
  ) -> None:
    """
    Args:
      cluster: this worker's.
      server: None for one process.
      find_loss: returns what has ended a session that stands still, '' if
        nothing; may raise tf.errors.OpError. None without such a rule.
    """
    self._find_loss = find_loss
    self._cluster = cluster
    self._server = server
    self._marks: list[tf.Operation] = []
    self._life = _Life(None, None)
    self._thread: threading.Thread | None = None
    self._is_over = threading.Event()

  def build(self) -> None:
    """Adds the ops by which a session marks each ps to the default graph."""
    ps = range(self._cluster.num_ps)
    self._marks = [build_mark(self._cluster, i).set for i in ps]

  def begin_session(
    self,
    session: tf.Session,
    coord: tf.train.Coordinator,
    run: Callable[..., Any],
  ) -> Callable[..., Any]:
    """Gives up the session before this one; returns what runs this one.

    Args:
      session: the one that begins.
      coord: of that session.
      run: takes what tf.Session.run takes.

    Returns:
      What is called like `run`, with errors that name a loss.
    """
    self._end_unfinished(session)
    self._life = _Life(session, coord)

    def run_naming_losses(*args: Any, **kwargs: Any) -> Any:
      try:
        with errors.naming_losses():
          return run(*args, **kwargs)
      # RuntimeError: a session that was closed before its call.
      except (tf.errors.OpError, RuntimeError) as error:
        life = self._life
        if session is life.session and life.loss:
          raise life.loss from error
        raise

    return run_naming_losses

  def watch_session(self, session: tf.Session) -> None:
    """Marks each ps in the session that `begin_session` was given last."""
    if not (self._marks or self._find_loss):
      return
    if self._marks:
      session.run(self._marks)
    self._life.last_move = time.monotonic()
    if self._thread is None:
      self._thread = threading.Thread(target=self._watch, daemon=True)
      self._thread.start()

  def _end_unfinished(self, session: tf.Session) -> None:
    """Closes the session before this one, if its creation was given up.

    MonitoredSession forgets one that loses a task in its after_create_session.
    A thread that a hook started for it would run on beside its successor:
    two chiefs' threads would each wait for contributions that the other took.
    """
    before = self._life
    if before.coord is not None and before.session is not session:
      before.coord.request_stop()
      with contextlib.suppress(Exception):
        before.session.close()

  def note_move(self) -> None:
    """Notes that a step begins or has ended."""
    if self._life.last_move is not None:
      self._life.last_move = time.monotonic()

  def close(self) -> None:
    """Ends the watch."""
    self._life.last_move = None
    self._is_over.set()

  def _watch(self) -> None:
    finders = [
      _Marked(self._cluster, self._server, i).find_loss
      for i in range(self._cluster.num_ps)
    ]
    if self._find_loss:
      finders.append(self._find_loss)
    looks = [_Look(find_loss) for find_loss in finders]
    secs = polling.compute_interval_secs(self._cluster.num_workers, _LOOK_SECS)
    while not self._is_over.wait(secs):
      life = self._life
      last_move = life.last_move
      if last_move is None or time.monotonic() - last_move < secs:
        continue
      for look in looks:
        look.begin(life, self._end)

  def _end(self, life: _Life, loss: str) -> None:
    """Ends a _Life that cannot go on, by a text; called by any thread."""
    # The main thread may have begun the next life: leave that alone.
    if life is not self._life or life.last_move is None or life.coord is None:
      return
    if tf_internals.is_closed(life.session):
      return  # It has found the loss, too.
    life.loss = tf.errors.AbortedError(
      None, None, f'{loss} while this task waited'
    )
    life.last_move = None
    _log.info(f'{loss}: the wait for another task is over')
    # The main thread wakes with whatever error, and finds this one.
    life.coord.request_stop((type(life.loss), life.loss, None))
    with contextlib.suppress(Exception):
      life.session.close()


@dataclasses.dataclass
class _Life:
  """A session, from its creation to that of the next.

  Attributes:
    session, coord: None before the first.
    loss: the tf.errors.AbortedError that has ended it, or None.
    last_move: when a step of it began or ended, by time.monotonic();
      None while there is nothing to look for.
  """

  session: Any  # tf.Session, or None.
  coord: tf.train.Coordinator | None
  loss: Exception | None = None
  last_move: float | None = None


class Mark(NamedTuple):
  """What a worker leaves on a ps, as long as that process lives.

  Attributes:
    set, clear: leave it, and take it away.
    is_set: bool [].
  """

  set: tf.Operation
  clear: tf.Operation
  is_set: tf.Tensor


def build_mark(cluster: Cluster, ps_index: int) -> Mark:
  """Returns the Mark of this worker on a ps."""
  with tf.device(f'/job:ps/task:{ps_index}/device:CPU:0'):
    table = tf.raw_ops.MutableHashTableV2(
      key_dtype=tf.int64, value_dtype=tf.int64, shared_name='sessions'
    )
    key = tf.constant(cluster.task_index, tf.int64)
    insert = tf.raw_ops.LookupTableInsertV2(
      table_handle=table, keys=key, values=key
    )
    remove = tf.raw_ops.LookupTableRemoveV2(table_handle=table, keys=[key])
    found = tf.raw_ops.LookupTableFindV2(
      table_handle=table, keys=key, default_value=tf.constant(-1, tf.int64)
    )
    return Mark(insert, remove, found >= 0)


class _Look:
  """Looks whether a session can go on, never twice at a time."""

  def __init__(self, find_loss: Callable[[], str]) -> None:
    """
    Args:
      find_loss: see LossWatch; it may never return.
    """
    self._find_loss = find_loss
    self._is_busy = threading.Lock()

  def begin(self, life: _Life, end: Callable[[_Life, str], None]) -> None:
    """Calls end(life, loss) if there is one; does not wait."""
    if not self._is_busy.acquire(blocking=False):
      return  # The task that was asked is silent, as it was at the last look.

    def work() -> None:
      try:
        # Else it is gone, or new, and asked in another session.
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
          if loss := self._find_loss():
            end(life, loss)
      finally:
        self._is_busy.release()

    threading.Thread(target=work, daemon=True).start()


class _Marked:
  """Looks for this worker's mark on one ps."""

  def __init__(
    self, cluster: Cluster, server: tf.train.Server, ps_index: int
  ) -> None:
    self._index = ps_index
    place = f'/job:ps/task:{ps_index}'
    with tf.Graph().as_default() as graph:
      self._is_set = build_mark(cluster, ps_index).is_set
    config = tf.ConfigProto(device_filters=[place, cluster.task_device])
    self._open = lambda: tf.Session(server.target, graph=graph, config=config)
    self._session = None

  def find_loss(self) -> str:
    """Returns what has become of the ps, '' if the mark is there."""
    self._session = self._session or self._open()
    options = tf.RunOptions(timeout_in_ms=_TIMEOUT_MS)
    try:
      is_there = self._session.run(self._is_set, options=options)
    except (tf.errors.OpError, RuntimeError):
      # The ps is gone, or new: the next look uses another session.
      with contextlib.suppress(Exception):
        self._session.close()
      self._session = None
      raise
    return '' if is_there else f'ps {self._index} was started anew'
