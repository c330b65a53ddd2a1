"""Rows whose keys have long been in no batch, which new keys may take.

Beside each row is the time of its last lookup, counted in lookups of its shard,
one in each step of each worker. If a bucket is full, a hand goes round it, as
in the clock algorithm of page replacement: a new key looks at the next few rows
and takes the one that was seen least recently, if that was long ago.

No row is taken while a checkpoint is written: its keys and its rows, which are
read one after the other, would be of different keys.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator

import tensorflow.compat.v1 as tf

from distmnist import graph_record
from distmnist.tables import new_rows
from distmnist.transport import ps_state

# How many rows a new key looks at.
_WINDOW = 8

# How often each session is in `held`: a save in a thread of its own may be, and
# an evaluation meanwhile.
_num_holding: weakref.WeakKeyDictionary[tf.Session, int] = (
  weakref.WeakKeyDictionary()
)
_holding = threading.Lock()


class RowReuse:
  """The ages of the rows of a shard; in no checkpoint."""

  def __init__(self, rows: tf.Variable, start: new_rows.Start) -> None:
    """
    Args:
      rows: [rows, width], where the ages are.
    """
    self._in_bucket = start.new_rows.rows_in_bucket
    self._unseen_steps = start.new_rows.unseen_steps
    self._num_rows = int(rows.shape[0])
    self._seen, self._now, self._hands, self._least_age = (
      ps_state.Variable(tf.int64, shape, f'{rows.op.name}/{name}')
      for name, shape in (
        ('last_seen', [self._num_rows]),
        ('lookups', []),
        ('hands', [self._num_rows // self._in_bucket]),
        ('least_age', []),
      )
    )

  def reset(self) -> list[tf.Operation]:
    """Returns the ops after which all rows count as just seen."""
    num_buckets = self._num_rows // self._in_bucket
    return [
      self._seen.assign(tf.zeros([self._num_rows], tf.int64)),
      self._now.assign(0),
      self._hands.assign(tf.zeros([num_buckets], tf.int64)),
      self._least_age.assign(self._unseen_steps),
    ]

  def touch(self, rows: tf.Tensor) -> tf.Operation:
    """Returns the op that counts a lookup of `rows`, int64 [n]."""
    with tf.control_dependencies([self._now.add(1)]):
      return self.note(rows)

  def note(self, rows: tf.Tensor) -> tf.Operation:
    """Returns the op after which `rows`, int64 [n], count as just seen."""
    return self._seen.scatter(rows, tf.fill(tf.shape(rows), self._now.read()))

  def choose(
    self, buckets: tf.Tensor, ranks: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds rows for keys whose bucket has none left, one caller at a time.

    Args:
      buckets: int64 [n], the bucket of each key.
      ranks: int64 [n], 0 for the first key of its bucket, 1 for the next one.

    Returns:
      (int64 [n], bool [n]): a place in the bucket, and whether the key may take
      it. No place is taken twice.
    """
    room = self._in_bucket - new_rows.NUM_RESERVED
    window = min(_WINDOW, room)
    hands = self._hands.gather(buckets) + ranks
    places = hands[:, tf.newaxis] * window + tf.range(window, dtype=tf.int64)
    places = places % room + new_rows.NUM_RESERVED
    rows = buckets[:, tf.newaxis] * self._in_bucket + places
    ages = self._now.read() - self._seen.gather(rows)
    oldest = tf.argmax(ages, 1)
    is_old = tf.reduce_max(ages, 1) >= self._least_age.read()
    is_first_round = (ranks + 1) * window <= room
    with tf.control_dependencies([hands]):
      moved = self._hands.scatter_add(buckets, tf.ones_like(buckets))
    with tf.control_dependencies([moved]):
      return (
        tf.gather(places, oldest, batch_dims=1),
        is_old & is_first_round,
      )

  def add_hold(self, build_fence: Callable[[], tf.Operation]) -> None:
    """Makes `held` hold these rows, once all that are taking some have run."""
    held = self._least_age.assign(tf.int64.max)
    with tf.control_dependencies([held]):
      held = build_fence()
    ended = self._least_age.assign(self._unseen_steps)
    graph_record.current().row_holds.append((held, ended))


@contextlib.contextmanager
def held(session: tf.Session) -> Iterator[None]:
  """The context in which no new key takes another's row in a session's graph.

  Several threads of a session may be in it: the last one to leave ends it. A
  chief lost in it leaves the rows held until its successor has ended one.
  """
  holds = graph_record.of(session.graph).row_holds
  if not holds:
    yield
    return
  begin, end = zip(*holds, strict=True)
  with _holding:
    if not _num_holding.get(session):
      session.run(begin)
    _num_holding[session] = _num_holding.get(session, 0) + 1
  try:
    yield
  finally:
    with _holding:
      _num_holding[session] -= 1
      if not _num_holding[session]:
        session.run(end)
