"""The batches of this worker: from the step in lock-step, or by leases.

A session.run is fed with the places and images of its batches, some hundred
numbers each; the images themselves are on the worker (input_pipeline.py).
"""

import collections
import contextlib
import time

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist import data_order, dispatcher, preemption

# A worker with nothing to do looks so often whether the others are done.
_FIRST_LOOK_SECS = 0.01
_LOOK_SECS = 0.1
# And after so many looks at the step, at the table.
_LOOKS_PER_TABLE = 3
# Streams of their own are so far apart that no two batches share their draws.
_STREAM_DISTANCE = 1 << 44


class LockStep:
  """The tickets of a worker that follow from the global_step."""

  def __init__(self, dealing, worker):
    """
    Args:
      dealing: dispatcher.Dealing.
      worker: int.
    """
    self._unit = dealing.batches_per_push
    self._last_step = dealing.last_step
    self._stride, self._offset = dealing.num_workers, worker
    if dealing.has_own_streams:
      self._stride, self._offset = 1, 0

  def begin(self, global_step, base_step):
    """Begins a session, at the first local step of a global one."""
    self._step = global_step
    self._next = (global_step - base_step) * self._unit
    self._again = collections.deque()
    self._pushed_next = []

  @property
  def left(self):
    """int, the batches up to the last global step."""
    return (self._last_step - self._step) * self._unit - len(self._pushed_next)

  def take(self, num_batches):
    """Returns the list of tickets of the next batches."""
    self._taken = []
    for _ in range(num_batches):
      if self._again:
        self._taken.append(self._again.popleft())
      else:
        self._taken.append(self._next)
        self._next += 1
    return self._find_tickets(self._taken)

  def note(self, global_steps):
    """Notes the global_step after each step of the run.

    A round that begins anew throws away what was given, and so its batches
    are read again.

    Returns:
      list of the tickets of what was thrown away.
    """
    thrown = []
    for number, step in zip(self._taken, global_steps, strict=True):
      self._pushed_next.append(number)
      if len(self._pushed_next) < self._unit:
        continue
      if step > self._step:
        self._step = step
      else:
        self._again.extendleft(reversed(self._pushed_next))
        thrown += self._pushed_next
      self._pushed_next = []
    return self._find_tickets(thrown)

  def _find_tickets(self, numbers):
    return [number * self._stride + self._offset for number in numbers]


class Leased:
  """The tickets of a lease, one after the other."""

  def __init__(self, dealing):
    self._dealing = dealing
    self._next = self._end = self._step = 0

  def begin(self, global_step, lease):
    """Begins a dispatcher.Lease."""
    self._step = global_step
    self._next, self._end = lease.first, lease.end

  @property
  def in_hand(self):
    """(first, end) of the tickets that are not done."""
    return self._next, self._end

  def forget(self):
    """Gives up what is left of the lease."""
    self._end = self._next

  @property
  def left(self):
    """int, the batches that may be run without another look."""
    left, dealing = self._end - self._next, self._dealing
    if dispatcher.is_exact(dealing):
      return left
    # All may give to the same updates, and none shall go past the last.
    pushes = (dealing.last_step - self._step) * dealing.pushes_per_step
    return min(
      left, max(1, pushes // dealing.num_workers) * dealing.batches_per_push
    )

  def take(self, num_batches):
    """Returns the list of tickets of the next batches."""
    first = self._next
    self._next += num_batches
    return list(range(first, self._next))

  def note(self, global_steps):
    """Notes the global_step after each step of the run; see LockStep."""
    self._step = global_steps[-1]
    return []


class BatchSource:
  """Feeds each session.run with batches, and knows how many there may be."""

  def __init__(self, dealing, num_images, seed, worker, fed, history):
    """
    Args:
      dealing: dispatcher.Dealing.
      num_images: int, of an epoch.
      seed: int.
      worker: int.
      fed: int64 placeholder [num_batches, 1 + batch_size]; see
        fed_rows.FedRows.
      history: history.History.
    """
    self.dealing = dealing
    self.worker = worker
    self._stream = worker if dealing.has_own_streams else None
    self._order = data_order.Order(num_images, seed, self._stream)
    self._fed = fed
    self._history = history
    self._rest = data_order.Rest()
    if dealing.is_lock_step:
      self.tickets = LockStep(dealing, worker)
    else:
      self.tickets = Leased(dealing)

  @property
  def left(self):
    """int, the batches that the next runs may have together."""
    return self.tickets.left

  def begin(self, global_step, table, lease=None):
    """Begins a session, or a lease.

    Args:
      global_step: int.
      table: int64 array, of the dispatcher.
      lease: dispatcher.Lease, or None in lock-step.
    """
    self._rest = dispatcher.read_rest(table, self.worker)
    if lease is None:
      self.tickets.begin(global_step, int(table[0, 0]))
      return
    self.tickets.begin(global_step, lease)
    size = self.dealing.batch_size
    places = self._rest.find_places(lease.first * size, lease.end * size)
    self._tell_taken(places[::size], step=global_step, gone=lease.gone)

  def make_feed(self, num_batches):
    """Takes batches; returns the feed_dict of a run that has so many steps."""
    size = self.dealing.batch_size
    rows = np.empty([num_batches, 1 + size], np.int64)
    self._places = []
    for row, ticket in zip(rows, self.tickets.take(num_batches), strict=True):
      places = self._find_places(ticket)
      row[0] = places[0] + _STREAM_DISTANCE * (self._stream or 0)
      row[1:] = self._order.find_images(places)
      self._places.append(int(places[0]))
    if self.dealing.is_lock_step:
      self._tell_taken(self._places)
    return {self._fed: rows}

  def make_blank_feed(self, num_batches):
    """Returns the feed_dict of a run of which nothing comes."""
    shape = [num_batches, 1 + self.dealing.batch_size]
    return {self._fed: np.zeros(shape, np.int64)}

  def note(self, global_steps):
    """Notes the global_step (list of int) after each step of the run."""
    self._tell('ran', self._places, step=global_steps[-1])
    if thrown := self.tickets.note(global_steps):
      self._tell('undone', [self._find_places(t)[0] for t in thrown])

  def _find_places(self, ticket):
    size = self.dealing.batch_size
    return self._rest.find_places(ticket * size, (ticket + 1) * size)

  def _tell_taken(self, places, **fields):
    per_push = self.dealing.batches_per_push
    self._tell('took', places, per_push=per_push, **fields)

  def _tell(self, event, places, **fields):
    """Writes which batches of the whole training an event was about."""
    size = self.dealing.batch_size
    tickets = [int(place) // size for place in places]
    self._history.write(event, tickets=tickets, stream=self._stream, **fields)


class BatchHook(tf.train.SessionRunHook):
  """Takes leases, and waits where there is nothing left to take."""

  def __init__(
    self,
    source,
    table,
    steps,
    strategy,
    lost_workers,
    is_stop_for_all,
    watchdog,
    stop,
  ):
    """
    Args:
      source: BatchSource.
      table: dispatcher.Table.
      steps: steps.Steps.
      strategy: strategy.Strategy, told when this worker pauses.
      lost_workers: lost_workers.LostWorkers.
      is_stop_for_all: callable -> bool.
      watchdog: watchdog.Watchdog, whose stalls are told of waits.
      stop: preemption.StopRequest.
    """
    self._source = source
    self._table = table
    self._steps = steps
    self._strategy = strategy
    self._lost_workers = lost_workers
    self._is_stop_for_all = is_stop_for_all
    self._watchdog = watchdog
    self._stop = stop
    self._last_run = time.monotonic()

  def after_create_session(self, session, coord):
    source, dealing = self._source, self._source.dealing
    step, table = self._table.look(session)
    if dealing.is_lock_step:
      source.begin(step, table)
      return
    while step < dealing.last_step:
      lease = dispatcher.choose_entry(table, step, source.worker, dealing)
      if self._table.take(session, table, lease):
        source.begin(step, table, lease)
        break
      step, table = self._table.look(session)
    if not source.left and not self._take_more(session):
      coord.request_stop()

  def after_run(self, run_context, run_values):
    if run_context.stop_requested or self._source.dealing.is_lock_step:
      return
    now = time.monotonic()
    is_late = now - self._last_run > self._watchdog.warn_secs
    self._last_run = now
    if self._source.left and not (
      is_late and self._has_lost_lease(run_context)
    ):
      return
    if not self._take_more(run_context.session):
      run_context.request_stop()
    self._last_run = time.monotonic()

  def _has_lost_lease(self, run_context):
    """Whether another worker took this one, which was held up, for gone."""
    _, table = self._table.look(run_context.session)
    tickets = self._source.tickets
    if dispatcher.is_owner(table, self._source.worker, *tickets.in_hand):
      return False
    tickets.forget()
    return True

  def _take_more(self, session):
    """Returns whether there is another lease; waits until it is known."""
    source, dealing = self._source, self._source.dealing
    wait_secs, num_looks, is_waiting = _FIRST_LOOK_SECS, 0, False
    try:
      while True:
        if num_looks % _LOOKS_PER_TABLE:
          step = self._table.look_at_step(session)
        else:
          step, table = self._table.look(session)
        if step >= dealing.last_step:
          self._steps.know(step)
          return False
        if not num_looks % _LOOKS_PER_TABLE:
          lease = dispatcher.choose_lease(table, step, source.worker, dealing)
          if lease is None and is_waiting:
            lease = dispatcher.choose_from_gone(
              table, source.worker, self._lost_workers.find(), dealing
            )
          if lease and self._table.take(session, table, lease):
            source.begin(step, table, lease)
            return True
          if lease:
            continue  # Another worker was quicker.
        if self._stop.is_requested or self._is_stop_for_all():
          return False
        if not is_waiting:
          is_waiting = True
          self._watchdog.stalls.busy('the wait for the last batches')
          self._strategy.pause(session)
        num_looks += 1
        with contextlib.suppress(preemption.StoppedError):
          self._stop.wait(wait_secs)  # The session then ends in order.
        wait_secs = min(_LOOK_SECS, 2 * wait_secs)
    finally:
      if is_waiting:
        self._watchdog.stalls.busy('what follows a step')
        if source.left:
          self._strategy.resume(session)
