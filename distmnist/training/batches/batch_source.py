"""The batches of this worker, run by run.

A session.run is fed the places and image indices of its batches, some hundred
numbers each; the images themselves are on the worker (data/input_pipeline.py),
or are read there during the previous run (data/streamed.py).
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distmnist.data import data_order, streamed
from distmnist.training.batches import batch_table, tickets

if TYPE_CHECKING:
  import tensorflow.compat.v1 as tf

  from distmnist.logdir import history as history_lib
  from distmnist.training.batches import leases
  from distmnist.training.problems import problem_data

# Workers' own streams are so far apart that no two batches share random draws.
_STREAM_DISTANCE = 1 << 44
# How many places to look up at a time: NumPy's calls cost about as much for one
# batch as for many, and a step of a small net takes two milliseconds.
_NUM_AHEAD = 1 << 13


class BatchSource:
  """Feeds batches to each session.run, and knows how many may be run.

  Attributes:
    dealing: its last step may change with the session.
    images_per_epoch: what all workers read in an epoch.
  """

  def __init__(
    self,
    dealing: batch_table.Dealing,
    examples: problem_data.Examples,
    seed: int,
    worker: int,
    fed: tf.Tensor,
    history: history_lib.History,
  ) -> None:
    """
    Args:
      examples: one epoch's.
      fed: int64 placeholder [num_batches, 1 + batch_size]; see
        step_rows.StepRows.
    """
    self.dealing = dealing
    self.worker = worker
    self._num_streams = dealing.num_workers if dealing.has_own_streams else 1
    self.images_per_epoch = examples.num_examples * self._num_streams
    self._stream = worker if dealing.has_own_streams else None
    self._first_draw = _STREAM_DISTANCE * (self._stream or 0)
    self._streamed: streamed.Streamed | None = None
    blocks = None
    if isinstance(examples, streamed.Streamed):
      self._streamed, blocks = examples, examples.blocks
      # The first tickets of runs that are being read.
      self._announced = collections.deque(maxlen=examples.num_threads)
    self._order = data_order.Order(
      examples.num_examples, seed, self._stream, blocks
    )
    self._fed = fed
    self._history = history
    self._rest, self._base_step = data_order.Rest(), 0
    self._rows, self._index = np.empty([0, 1], np.int64), {}
    if dealing.is_lock_step:
      self.tickets = tickets.LockStep(dealing, worker)
    else:
      self.tickets = tickets.Leased(dealing)

  @property
  def left(self) -> int:
    """The number of batches that the next runs may have in total."""
    return self.tickets.left

  @property
  def until_end(self) -> float:
    """About how many batches are left to this worker in all."""
    return self.tickets.until_end

  def begin(
    self, global_step: int, table: np.ndarray, lease: leases.Lease | None = None
  ) -> None:
    """Begins a session, or a lease.

    Args:
      table: int64 array, the dispatcher's.
      lease: None in lock-step.
    """
    self._rest = batch_table.read_rest(table, self.worker)
    self._base_step = int(table[0, 0])
    self._index = {}
    if isinstance(self.tickets, tickets.LockStep):
      self.tickets.begin(global_step, self._base_step, self.dealing)
      return
    if lease is None:
      raise ValueError('no lease, and the steps are not in lock-step')
    self.tickets.begin(global_step, lease, self.dealing)
    size = self.dealing.batch_size
    places = self._rest.find_places(lease.first * size, lease.end * size)
    self._tell_taken(places[::size], step=global_step, gone=lease.gone)

  def count_images(self, global_step: int) -> int:
    """Returns how many images all workers have read up to a step.

    Steps before this life of the center may have had other numbers of images.
    """
    steps = global_step - self._base_step
    return (
      self._rest.count_read() * self._num_streams
      + steps * self.dealing.images_per_step
    )

  def make_feed(self, num_batches: int) -> dict[tf.Tensor, np.ndarray]:
    """Takes batches; returns the feed_dict of a run of `num_batches` steps."""
    rows = self._find_rows(self.tickets.take(num_batches))
    self._fed_rows = rows
    self._places = (rows[:, 0] - self._first_draw).tolist()
    if self.dealing.is_lock_step:
      self._tell_taken(self._places)
    if self._streamed:
      self._streamed.announce(rows)
      self._announce_coming(self._streamed, num_batches)
    return {self._fed: rows}

  def find_row(self, place: int) -> np.ndarray:
    """Returns what a batch was fed, int64 [1 + batch_size]; step_rows.StepRows.

    Args:
      place: of the batch in the last run.
    """
    return self._fed_rows[place]

  def _announce_coming(
    self, examples: streamed.Streamed, num_batches: int
  ) -> None:
    """Starts reading for the next runs, each of `num_batches` batches."""
    num_coming = examples.num_threads * num_batches
    coming = self.tickets.peek(num_coming)
    for i in range(0, len(coming), num_batches):
      if coming[i] not in self._announced:
        rows = self._find_rows(coming[i : i + num_batches], num_coming)
        examples.announce(rows)
        self._announced.append(coming[i])

  def _find_rows(
    self, tickets_of_run: Sequence[int], num_coming: int = 0
  ) -> np.ndarray:
    """Returns what a run is fed, int64 [num_batches, 1 + batch_size].

    Args:
      num_coming: the run is among this many next batches. As many are looked up
        beyond them, or each of the next runs would need a lookup.
    """
    if not all(ticket in self._index for ticket in tickets_of_run):
      num_beyond = max(num_coming, _NUM_AHEAD // self.dealing.batch_size)
      coming = self.tickets.peek(num_coming + num_beyond)
      self._look_up([*tickets_of_run, *coming])
    return self._rows[[self._index[ticket] for ticket in tickets_of_run]]

  def _look_up(self, wanted: Iterable[int]) -> None:
    """Looks up and keeps the rows of these tickets, and no others."""
    self._index = {ticket: i for i, ticket in enumerate(dict.fromkeys(wanted))}
    places = np.stack([self._find_places(ticket) for ticket in self._index])
    self._rows = np.empty([len(places), 1 + places.shape[1]], np.int64)
    self._rows[:, 0] = places[:, 0] + self._first_draw
    self._rows[:, 1:] = self._order.find_images(places)

  def make_blank_feed(self, num_batches: int) -> dict[tf.Tensor, np.ndarray]:
    """Returns the feed_dict of a run without any effect."""
    shape = [num_batches, 1 + self.dealing.batch_size]
    return {self._fed: np.zeros(shape, np.int64)}

  def note(self, global_steps: Sequence[int]) -> None:
    """Notes the global_step after each step of the run."""
    self._tell('ran', self._places, step=global_steps[-1])
    if thrown := self.tickets.note(global_steps):
      self._tell('undone', [self._find_places(t)[0] for t in thrown])

  def _find_places(self, ticket: int) -> np.ndarray:
    size = self.dealing.batch_size
    return self._rest.find_places(ticket * size, (ticket + 1) * size)

  def _tell_taken(self, places: Iterable[int], **fields: Any) -> None:
    per_push = self.dealing.batches_per_push
    self._tell('took', places, per_push=per_push, **fields)

  def _tell(self, event: str, places: Iterable[int], **fields: Any) -> None:
    """Records which batches of the whole training an event concerns."""
    size = self.dealing.batch_size
    told = [int(place) // size for place in places]
    self._history.write(event, tickets=told, stream=self._stream, **fields)
