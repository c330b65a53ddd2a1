"""Another worker, and how this one averages both copies.

The training session has device filters that keep the other workers out, so that
none of them can hold it up. An exchange with one of them runs in a separate
session of just the two:

  d = (x^i - x^j) / 2;  x^j += d;  x^i -= d

x^i travels to worker j, where d is computed, and d comes back. Both copies
are only ever added to, and each addition locks its variable: whoever else adds
in between, the sum of all copies stays what it was. A peer that does not answer
is left alone for a second, and a lost one is looked for in the background: a
step waits only for the first search for a peer and for an exchange under way.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf

from distmnist import tf_internals
from distmnist.cluster import errors
from distmnist.transport import wire

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster
  from distmnist.exchange.copies.local_copies import LocalCopies


_log = logging.getLogger(__name__)

# Time limit of an exchange: this, plus what its bytes take on a slow link.
_LIMIT_SECS = 5.0
_SLOW_BYTES_PER_SEC = 10e6
_AGAIN_SECS = 1.0


class Peer:
  """One other worker, as seen from this one.

  Attributes:
    num_failures: the searches and exchanges that failed.
  """

  def __init__(
    self,
    cluster: Cluster,
    index: int,
    copies: LocalCopies,
    num_visits: tf.Variable,
  ) -> None:
    """
    Args:
      index: of the other worker.
      copies: the peer's have the same names.
      num_visits: int64 local variable that counts the exchanges which others
        have begun with this worker; likewise.
    """
    self._cluster = cluster
    self._there = dataclasses.replace(cluster, task_index=index)
    self._copies = copies
    self._num_visits = num_visits
    secs = _LIMIT_SECS + 2 * copies.num_bytes / _SLOW_BYTES_PER_SEC
    self._limit_secs = secs
    self._target = self._config = None
    self._session = self._exchange = None
    self._look = None
    self._next_look = 0.0
    self.num_failures = 0

  def connect(self, session: tf.Session) -> None:
    """Makes the server of `session` the one through which to reach the peer."""
    self._target = session.sess_str
    self._config = tf.ConfigProto()
    self._config.CopyFrom(tf_internals.get_config(session))
    del self._config.device_filters[:]
    self._config.device_filters.extend(
      [self._cluster.task_device, self._there.task_device]
    )
    self._config.operation_timeout_in_ms = round(1000 * self._limit_secs)

  def meet(self) -> bool:
    """Exchanges with the peer; returns whether that succeeded."""
    if self._session is None:
      self._find()
    session = self._session
    if session is None:
      return False
    try:
      session.run(self._exchange)
      return True
    except (tf.errors.OpError, RuntimeError) as error:
      _log.info(
        f'{self._there.name} does not answer and is left out until it is back: '
        f'{_explain(error)}'
      )
      self._fail(session)
      return False

  def leave(self) -> None:
    """Ends the session with the peer, if there is one."""
    session, self._session = self._session, None
    if session:
      _close(session)

  def _find(self) -> None:
    """Looks for the peer unless a search is under way or has just failed."""
    if self._look and self._look.is_alive():
      return
    if time.monotonic() < self._next_look:
      return
    is_first = self._look is None
    self._look = threading.Thread(target=self._try, daemon=True)
    self._look.start()
    if is_first:
      self._look.join(self._limit_secs)

  def _try(self) -> None:
    """Opens a session with the peer if it is there and has begun."""
    with tf.Graph().as_default() as graph:
      exchange, is_ready = self._build()
    session = tf.Session(self._target, graph, self._config)
    try:
      if all(session.run(is_ready)):
        self._exchange, self._session = exchange, session
        if self.num_failures:
          _log.info(f'{self._there.name} answers again')
        return
    except (tf.errors.OpError, RuntimeError):
      pass
    self._fail(session)

  def _fail(self, session: tf.Session) -> None:
    self._session = None
    self._next_look = time.monotonic() + _AGAIN_SECS
    self.num_failures += 1
    _close(session)

  def _build(self) -> tuple[tf.Operation, list[tf.Tensor]]:
    """Returns (the op of an exchange, bool tensors: has the peer begun)."""
    here, there = (c.compute_device for c in (self._cluster, self._there))
    to_there, to_here = map(wire.Wire, (self._there, self._cluster))
    mine, theirs = (
      [_build_handle(x, device) for x in self._copies.variables]
      for device in (here, there)
    )
    visits = _build_handle(self._num_visits, self._there.cpu_device)
    arrived = to_there.to_worker([_read(x) for x in mine], [here] * len(mine))
    with tf.device(there):
      is_ready = [
        tf.raw_ops.VarIsInitializedOp(resource=x) for x in [*theirs, visits]
      ]
      # Everything has arrived before any of it is used.
      with tf.control_dependencies(arrived):
        pairs = list(zip(arrived, map(_read, theirs), strict=True))
      # The same d here and there, even where it is rounded when sent.
      changes = [to_here.round((x - y) / 2) for x, y in pairs]
      # Neither worker passes on a number that is not finite.
      changes = [tf.debugging.check_numerics(d, 'not finite') for d in changes]
      with tf.control_dependencies(changes):
        added = [
          tf.raw_ops.AssignAddVariableOp(resource=x, value=d)
          for x, d in zip(theirs, changes, strict=True)
        ]
    with tf.device(self._there.cpu_device), tf.control_dependencies(changes):
      count = tf.raw_ops.AssignAddVariableOp(
        resource=visits, value=tf.constant(1, tf.int64)
      )
    with tf.device(there), tf.control_dependencies([*added, count]):
      changes = [tf.identity(d) for d in changes]
    brought = to_here.to_worker(changes, [there] * len(changes))
    with tf.device(here), tf.control_dependencies(brought):
      moved = [
        tf.raw_ops.AssignSubVariableOp(resource=x, value=d)
        for x, d in zip(mine, brought, strict=True)
      ]
    return tf.group(*moved), is_ready


def _build_handle(variable: tf.Variable, device: str) -> tf.Tensor:
  """Returns the handle of the variable of the same name on `device`."""
  with tf.device(device):
    return tf.raw_ops.VarHandleOp(
      dtype=variable.dtype.base_dtype,
      shape=variable.shape,
      shared_name=variable.handle.op.get_attr('shared_name'),
    )


def _read(handle: tf.Tensor) -> tf.Tensor:
  with tf.device(handle.device):
    dtype = handle.op.get_attr('dtype')
    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)
    return tf.ensure_shape(value, handle.op.get_attr('shape'))


def _explain(error: tf.errors.OpError | RuntimeError) -> str:
  is_op = isinstance(error, tf.errors.OpError)
  return errors.explain(error) if is_op else str(error)


def _close(session: tf.Session) -> None:
  """Closes a session, in a thread: with a suspended peer it can hang."""

  def close() -> None:
    with contextlib.suppress(tf.errors.OpError, RuntimeError):
      session.close()

  threading.Thread(target=close, daemon=True).start()
