"""Means over a worker's steps, from which learning curves are drawn."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

# A line when the steps have grown by 1/20: after n steps there are about
# 20 + 20 ln(n / 20) lines, closest where a curve is steep, and nobody needs to
# know where the training ends.
_PART = 20
# Lines at the ends of epochs: so many, then one in so many seconds, as with one
# each a run of many short epochs would write without end.
_MOST_EPOCHS = 500
_EPOCH_SECS = 10.0


class StepMeans:
  """Adds up the loss and the metrics, and writes their means now and then.

  A line is written after each of the first 20 steps, then whenever the steps
  have grown by 5 %, and at each epoch's end, so that no line is of two epochs.
  After the first 500 epochs it may be of several that took less than 10 s.
  """

  def __init__(
    self,
    names: Iterable[str],
    find_epoch: Callable[[int], int],
    write: Callable[..., None],
  ) -> None:
    """
    Args:
      names: of the loss and the metrics, among the values of a step.
      find_epoch: gives the number of the epoch, from 1, in which the step was
        made that led to a global step.
      write: called with the fields of a line of kind `means`.
    """
    self._names = list(names)
    self._find_epoch = find_epoch
    self._write = write
    self._num_steps = self._num_written = 0
    self._sums: dict[str, float] = collections.defaultdict(float)
    self._counts: collections.Counter[str] = collections.Counter()
    # (global step, epoch) of the last step.
    self._last: tuple[int, int] | None = None
    self._first_epoch = 0  # Of the steps that no line has.
    self._num_epochs = 0  # Lines at the end of one.
    self._time = time.monotonic()

  def add(self, values: Mapping[str, Any]) -> None:
    """Adds a step.

    Args:
      values: {name: number}, with `global_step`; of `names` those that were
        fetched.
    """
    step = values['global_step']
    epoch = self._find_epoch(step)
    if self._last and epoch != self._last[1]:
      self._end_epoch(is_back=epoch < self._last[1])
    self._last = step, epoch
    if self._num_steps == self._num_written:
      self._first_epoch = epoch
    self._num_steps += 1
    for name in self._names:
      if name in values:
        self._sums[name] += float(values[name])
        self._counts[name] += 1
    fresh = self._num_steps - self._num_written
    if fresh >= max(1, self._num_written // _PART):
      self.flush()

  def _end_epoch(self, is_back: bool) -> None:
    if self._num_steps == self._num_written:
      return
    is_late = time.monotonic() - self._time >= _EPOCH_SECS
    if is_back or is_late or self._num_epochs < _MOST_EPOCHS:
      self._num_epochs += 1
      self.flush()

  def flush(self) -> None:
    """Writes a line of the steps that no line has."""
    if self._last is None or self._num_steps == self._num_written:
      return
    step, epoch = self._last
    self._time = time.monotonic()
    first = self._first_epoch
    self._write(
      **({'first_epoch': first} if first < epoch else {}),
      step=step,
      epoch=epoch,
      steps=self._num_steps - self._num_written,
      metrics={n: self._sums[n] / count for n, count in self._counts.items()},
    )
    self._num_written = self._num_steps
    self._sums.clear()
    self._counts.clear()
