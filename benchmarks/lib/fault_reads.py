"""Whether each batch of a training was read once, whatever was done to it.

A read counts if its push did. It does not if a restore undid it, or if the push
was discarded. Where a life or a session was lost, either may hold for what had
been run but not yet pushed, and for what was being run and has no line.
"""

import collections
import dataclasses
import itertools
import math

# A checkpoint may hold this many steps more than its name says, or lack the
# marks of as many.
SLACK_STEPS = 2


@dataclasses.dataclass
class _Read:
  """One read of a batch.

  Attributes:
    session_time: float, when its session began.
    steps: (first, last), bounds of the global step of its push; inf if it has
      none.
    least, most: int, how often it counts, at least and at most.
  """

  session_time: float
  steps: tuple = (math.inf, math.inf)
  least: int = 1
  most: int = 1


@dataclasses.dataclass
class _Restore:
  """Takes all before `time` back to a step between `first` and `last`."""

  time: float
  first: int
  last: int


def check(events, may_leave=False):
  """Returns a list of str: what was read too often or never.

  Args:
    events: list of dicts, see fault_checker.py.
    may_leave: bool, whether batches that a worker still holds at the end may
      stay unread, as where an update takes only R of the workers' pushes.
  """
  counts, left = count(events)
  numbers = {}
  for stream, ticket in counts:
    numbers[stream] = max(numbers.get(stream, 0), ticket + 1)
  never, twice = [], []
  for stream, number in numbers.items():
    for key in ((stream, ticket) for ticket in range(number)):
      least, most = counts.get(key, (0, 0))
      if least > 1:
        twice.append(key)
      if not most and not (may_leave and key in left):
        never.append(key)
  return [
    f'{len(keys)} batches {what}: {_shorten(keys)}'
    for what, keys in (('never read', never), ('read twice', twice))
    if keys
  ]


def count(events):
  """Counts the reads that took effect.

  Returns:
    (counts, left): {(stream, ticket): (least, most)}, and the set of what the
    workers still held at the end.
  """
  reads, in_flight, left = _find_reads(events)
  restores = _find_restores(events)
  counts = {}
  for key, found in reads.items():
    for read in found:
      _undo(read, restores)
    least = sum(read.least for read in found)
    most = sum(read.most for read in found) + in_flight[key]
    counts[key] = least, most
  for key in in_flight:
    counts.setdefault(key, (0, in_flight[key]))
  return counts, left


def _find_reads(events):
  """Finds what the lives did.

  Returns:
    (reads, in_flight, left): {(stream, ticket): list of _Read}; a Counter of
    how often a batch may have been read without a line for it; the set of
    what each worker still held at the end, by the last of its lives that took
    any: one that starts as training ends takes none.
  """
  reads, in_flight = collections.defaultdict(list), collections.Counter()
  lives, owners, left = {}, {}, {}
  num_in_run = max(
    (len(e['tickets']) for e in events if e['event'] == 'ran'), default=1
  )
  for event in events:
    if event['event'] == 'start':
      continue  # It may come too late to take anything over.
    name = event['worker'], event['life']
    life = lives.get(name)
    if life is None:
      life = lives[name] = _Life(name, num_in_run, reads, in_flight, owners)
    life.take_in(event)
  for (worker, _), life in lives.items():
    if life.held is not None:
      left[worker] = life.held
    if not life.has_ended:
      life.lose()
  return reads, in_flight, {*itertools.chain(*left.values())}


class _Life:
  """The batches that one life of a worker holds.

  Attributes:
    held: list of (stream, ticket), what it was given last and has not used,
      also once its session is lost; None if it was given none.
    has_ended: bool, whether it ended in order.
  """

  def __init__(self, name, num_in_run, reads, in_flight, owners):
    self.held, self.has_ended = None, False
    self._is_lost = True  # Whether its session may no longer use them.
    self._name = name
    self._num_in_run = num_in_run
    self._reads, self._in_flight = reads, in_flight
    self._owners = owners
    self._waiting = []  # Reads whose push is still to come.
    self._session_time, self._step, self._per_push = 0.0, 0, 1

  def take_in(self, event):
    kind, stream = event['event'], event.get('stream')
    if kind == 'session':
      self.lose()
      self._session_time, self._step = event['time'], event['step']
    elif kind == 'took':
      self.held = [(stream, ticket) for ticket in event['tickets']]
      self._is_lost = False
      self._owners.update(dict.fromkeys(self.held, self._name))
      self._per_push = event.get('per_push', 1)
    elif kind == 'ran':
      self._run(event, [(stream, ticket) for ticket in event['tickets']])
    elif kind == 'undone':
      for ticket in event['tickets']:
        read = self._reads[stream, ticket][-1]
        read.least = read.most = 0
    elif kind == 'end':
      self.has_ended = True
      # If it was told to stop, another life repeats these local steps.
      for read in self._waiting:
        read.least = 0

  def _run(self, event, keys):
    # If a run makes several steps, only the last one's number is known.
    last = event['step']
    first = last if len(keys) == 1 else min(self._step + 1, last)
    for key in keys:
      read = _Read(self._session_time)
      if key in self._hand and self._owners[key] != self._name:
        read.least = 0  # It was held up, and another life has it now.
      self._reads[key].append(read)
      self._waiting.append(read)
      if len(self._waiting) == self._per_push:
        for pushed in self._waiting:
          pushed.steps = first, last
        self._waiting = []
    done = {*keys}
    self.held = [key for key in self.held or () if key not in done]
    self._step = last

  def lose(self):
    """Drops what was in flight: nobody can say what came of it."""
    self._in_flight.update(self._hand[: self._num_in_run])
    for read in self._waiting:
      read.least = 0
    self._is_lost, self._waiting = True, []

  @property
  def _hand(self):
    return [] if self._is_lost else self.held


def _find_restores(events):
  """Returns the list of _Restore."""
  found, begun, waiting = [], {}, {}
  for event in events:
    kind, life = event['event'], event['life']
    if kind == 'restoring':
      begun[life] = event['time']
    elif kind == 'restored':
      step = event['step']
      restore = _Restore(begun.pop(life, event['time']), step, step)
      waiting[life] = restore
      found.append(restore)
    elif kind == 'session' and life in waiting:
      restore = waiting.pop(life)
      restore.last = max(restore.last, event['step'])
  return found


def _undo(read, restores):
  first, last = read.steps
  for restore in restores:
    if read.session_time < restore.time:
      if last > restore.first - SLACK_STEPS:
        read.least = 0
      if math.inf > first > restore.last + SLACK_STEPS:
        read.most = 0


def _shorten(keys):
  shown = ', '.join(
    str(ticket) if stream is None else f'{ticket} of worker {stream}'
    for stream, ticket in keys[:8]
  )
  return shown + (', ...' if len(keys) > 8 else '')
