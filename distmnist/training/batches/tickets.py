"""The tickets of the batches that a worker runs next.

In lock-step they follow from the global_step and the worker; otherwise they
come from a lease (leases.py).
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  from distmnist.training.batches import batch_table, leases


class LockStep:
  """The tickets of a worker, as they follow from the global_step."""

  def __init__(self, dealing: batch_table.Dealing, worker: int) -> None:
    self._unit = dealing.batches_per_push
    self._dealing = dealing
    self._stride, self._offset = dealing.num_workers, worker
    if dealing.has_own_streams:
      self._stride, self._offset = 1, 0

  def begin(
    self,
    global_step: int,
    base_step: int,
    dealing: batch_table.Dealing | None = None,
  ) -> None:
    """Begins a session, at the first local step of a global step.

    Args:
      dealing: batch_table.Dealing from now on, if its last step has changed.
    """
    self._dealing = dealing or self._dealing
    self._step = global_step
    self._next = (global_step - base_step) * self._unit
    self._again = collections.deque()
    self._pushed_next = []

  @property
  def left(self) -> int:
    """The number of batches up to the last global step."""
    num_steps = self._dealing.last_step - self._step
    return num_steps * self._unit - len(self._pushed_next)

  until_end = left  # It ends there.

  def peek(self, num_batches: int) -> list[int]:
    """Returns the tickets that `take` would return."""
    again = list(self._again)[:num_batches]
    new = range(self._next, self._next + num_batches - len(again))
    return self._find_tickets([*again, *new])

  def take(self, num_batches: int) -> list[int]:
    """Returns the list of tickets of the next batches."""
    self._taken = []
    for _ in range(num_batches):
      if self._again:
        self._taken.append(self._again.popleft())
      else:
        self._taken.append(self._next)
        self._next += 1
    return self._find_tickets(self._taken)

  def note(self, global_steps: Sequence[int]) -> list[int]:
    """Notes the global_step after each step of the run.

    A round that starts over discards what was pushed to it, so its batches are
    read again.

    Returns:
      The tickets that were discarded.
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

  def _find_tickets(self, numbers: Iterable[int]) -> list[int]:
    return [number * self._stride + self._offset for number in numbers]


class Leased:
  """The tickets of a lease, one after the other."""

  def __init__(self, dealing: batch_table.Dealing) -> None:
    self._dealing = dealing
    self._next = self._end = self._step = 0

  def begin(
    self,
    global_step: int,
    lease: leases.Lease,
    dealing: batch_table.Dealing | None = None,
  ) -> None:
    """Begins a leases.Lease; for `dealing` see LockStep."""
    self._dealing = dealing or self._dealing
    self._step = global_step
    self._next, self._end = lease.first, lease.end

  @property
  def in_hand(self) -> tuple[int, int]:
    """(first, end) of the tickets that are not yet taken to run."""
    return self._next, self._end

  def forget(self) -> None:
    """Gives up what is left of the lease."""
    self._end = self._next

  @property
  def left(self) -> int:
    """The number of batches that may run before another look at the table."""
    left, dealing = self._end - self._next, self._dealing
    if dealing.is_exact:
      return left
    # All may push to the same updates, and none may go past the last one.
    pushes = dealing.count_pushes_left(self._step)
    return min(
      left, max(1, pushes // dealing.num_workers) * dealing.batches_per_push
    )

  @property
  def until_end(self) -> float:
    """About how many batches are left to this worker in all."""
    dealing = self._dealing
    pushes = dealing.count_pushes_left(self._step)
    return pushes * dealing.batches_per_push / dealing.num_workers

  def peek(self, num_batches: int) -> list[int]:
    """Returns the tickets of this lease that `take` would return."""
    return list(range(self._next, min(self._next + num_batches, self._end)))

  def take(self, num_batches: int) -> list[int]:
    """Returns the list of tickets of the next batches."""
    first = self._next
    self._next += num_batches
    return list(range(first, self._next))

  def note(self, global_steps: Sequence[int]) -> list[int]:
    """Notes the global_step after each step of the run; see LockStep."""
    self._step = global_steps[-1]
    return []
