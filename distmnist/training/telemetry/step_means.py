"""Means over a worker's steps, from which learning curves are drawn."""

import collections
from collections.abc import Callable, Iterable

# A line when the steps have grown by 1/20: after n steps there are about
# 20 + 20 ln(n / 20) lines, closest where a curve is steep, and nobody needs to
# know where the training ends.
_PART = 20


class StepMeans:
  """Adds up the loss and the metrics, and writes their means now and then.

  A line is written after each of the first 20 steps, then whenever the steps
  have grown by 5 %, and at each epoch's end: no line is of two epochs.
  """

  def __init__(
    self,
    names: Iterable[str],
    find_epoch: Callable[[int], int],
    write: Callable,
  ):
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
    self._sums = collections.Counter()
    self._counts = collections.Counter()
    self._last = None  # (global step, epoch) of the last step.

  def add(self, values: dict) -> None:
    """Adds a step.

    Args:
      values: {name: number}, with `global_step`; of `names` those that were
        fetched.
    """
    step = values['global_step']
    epoch = self._find_epoch(step)
    if self._last and epoch != self._last[1]:
      self.flush()
    self._last = step, epoch
    self._num_steps += 1
    for name in self._names:
      if name in values:
        self._sums[name] += float(values[name])
        self._counts[name] += 1
    fresh = self._num_steps - self._num_written
    if fresh >= max(1, self._num_written // _PART):
      self.flush()

  def flush(self) -> None:
    """Writes a line of the steps that no line has."""
    if self._num_steps == self._num_written:
      return
    step, epoch = self._last
    self._write(
      step=step,
      epoch=epoch,
      steps=self._num_steps - self._num_written,
      metrics={n: self._sums[n] / count for n, count in self._counts.items()},
    )
    self._num_written = self._num_steps
    self._sums.clear()
    self._counts.clear()
