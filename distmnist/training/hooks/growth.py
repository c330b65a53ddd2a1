"""Counts of the rows that tables have created, and of those that are left."""

from __future__ import annotations

import logging
import time

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.tables import key_shard, new_rows
from distmnist.training.telemetry import summaries

_log = logging.getLogger(__name__)

# Between two looks at the counts of the ps, a few KB each.
_LOOK_SECS = 10.0


class Growth:
  """Follows the tables that create rows; logs once when one is full.

  Attributes:
    tables: {name: {'rows', 'capacity', 'keys_without_row': int}} as last seen:
      the rows created, how many there is room for in any case, and how often a
      step had a key for which no row was left. Where keys take over others'
      rows, 'rows_reused' counts how often they did.
  """

  def __init__(self, summary_dir: str | None) -> None:
    """
    Args:
      summary_dir: the folder for events.
    """
    self._summary_dir = summary_dir
    self._next_look = 0.0
    self._counted: dict[tuple[str, str], tuple[int, int]] = {}
    self._said: set[str] = set()
    self.tables: dict[str, dict[str, int]] = {}

  def build(self) -> None:
    """Builds what is read of the tables, and opens the file of events."""
    self._kinds, self._counts = key_shard.get_counts()
    self._global_step = tf.train.get_global_step()
    self._writer = None
    if self._summary_dir and self._counts:
      self._writer = summaries.Writer(self._summary_dir)

  def begin_session(self) -> None:
    if self._writer:
      self._writer.begin_session()  # The worker's summaries say from where.

  def look_if_due(self, session: tf.Session) -> None:
    """Looks at the tables some seconds after the last look."""
    now = time.monotonic()
    if self._counts and now >= self._next_look:
      self._next_look = now + _LOOK_SECS
      self._look(session)

  def look(self, session: tf.Session) -> None:
    """Looks at the tables, if there are any."""
    if self._counts:
      self._look(session)

  def _look(self, session: tf.Session) -> None:
    found, step = session.run([self._counts, self._global_step])
    for name, counts in found.items():
      kind, total = (
        self._kinds[name],
        np.sum([part.sum(0) for part in counts], 0),
      )
      num_buckets = sum(len(part) for part in counts)
      made = int(total[0]) - num_buckets * new_rows.NUM_RESERVED
      without = self._add_up(name, 'keys_without_row', int(total[1]))
      self.tables[name] = {
        'rows': made,
        'capacity': kind.capacity,
        'keys_without_row': without,
      }
      if kind.unseen_steps:
        reused = self._add_up(name, 'rows_reused', int(total[2]))
        self.tables[name]['rows_reused'] = reused
      if without and name not in self._said:
        self._said.add(name)
        _log.info(
          f'the table {name!r} is full: {made:,} keys have a row of their own, '
          f'and new ones share {new_rows.NUM_BUCKETS} rows; resume with a '
          f'capacity of NewRows above {kind.capacity:,}'
        )
    if self._writer:
      shown = {
        f'tables/{name}/{what}': table[what]
        for name, table in self.tables.items()
        for what in table
        if what != 'capacity'
      }
      self._writer.write_scalars(shown, int(step))

  def _add_up(self, name: str, what: str, counted: int) -> int:
    """Returns the total of what the ps have `counted`, restarts included.

    They start counting again when the center is restored.
    """
    before, last = self._counted.get((name, what), (0, 0))
    if counted < last:
      before += last
    self._counted[name, what] = before, counted
    return before + counted
