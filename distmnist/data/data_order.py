"""The order of the training images: which image is at which place.

The images of an epoch come in an order drawn from (seed, epoch), known to all
workers. Epoch follows epoch in one stream of places 0, 1, 2, ..., which is cut
into batches, so a batch may straddle the end of an epoch and no image is left
out. Where each worker passes over all images, each has a stream of its own,
drawn from (seed, epoch, worker).

Examples that are read from files on demand lie there in blocks. Then the blocks
come in a drawn order, and the examples of a window of some blocks are shuffled
together, so that what is read at a time lies in few places.

This is pure NumPy; training/batches/dispatcher.py decides which worker takes
which batch.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np


class Blocks(NamedTuple):
  """How examples lie in files.

  Attributes:
    sizes: how many examples each block has, in order.
    window: how many blocks are mixed with each other.
  """

  sizes: Sequence[int]
  window: int


class Order:
  """The image at each place of a stream."""

  def __init__(
    self,
    num_images: int,
    seed: int,
    worker: int | None = None,
    blocks: Blocks | None = None,
  ) -> None:
    """
    Args:
      num_images: of an epoch.
      worker: whose stream it is, or None for the stream of all.
      blocks: None: all images are mixed.
    """
    self._num_images = num_images
    self._seed = seed
    # The entropy [s, e] gives the same draws as [s, e, 0].
    self._worker = 0 if worker is None else worker + 1
    self._blocks = blocks
    self._epochs: dict[int, Callable[[np.ndarray], np.ndarray]] = {}

  def find_images(self, places: np.ndarray) -> np.ndarray:
    """Returns the images at `places`, int64 arrays of the same shape."""
    epochs, ranks = np.divmod(np.asarray(places, np.int64), self._num_images)
    if epochs.size and epochs.min() == epochs.max():
      return self._draw(int(epochs.flat[0]))(ranks)
    images = np.empty_like(ranks)
    for epoch in np.unique(epochs).tolist():
      chosen = epochs == epoch
      images[chosen] = self._draw(epoch)(ranks[chosen])
    return images

  def _draw(self, epoch: int) -> Callable[[np.ndarray], np.ndarray]:
    """Returns what gives the images of an epoch by their ranks."""
    if epoch not in self._epochs:
      while len(self._epochs) > 1:  # A batch may span two.
        del self._epochs[min(self._epochs)]
      entropy = [self._seed, epoch, self._worker]
      if self._blocks:
        self._epochs[epoch] = _Windows(self._blocks, entropy).find
      else:
        generator = np.random.default_rng(entropy)
        order = generator.permutation(self._num_images)
        self._epochs[epoch] = order.__getitem__
    return self._epochs[epoch]


class _Windows:
  """An epoch in which some blocks at a time are mixed."""

  def __init__(self, blocks: Blocks, entropy: Sequence[int]) -> None:
    sizes = np.asarray(blocks.sizes, np.int64)
    order = np.random.default_rng(entropy).permutation(len(sizes))
    self._entropy = entropy
    self._window = blocks.window
    self._sizes = sizes[order]
    self._firsts = (np.cumsum(sizes) - sizes)[order]
    cuts = np.arange(0, len(sizes), blocks.window)
    self._edges = np.cumsum([0, *np.add.reduceat(self._sizes, cuts)])
    self._drawn: dict[int, np.ndarray] = {}

  def find(self, ranks: np.ndarray) -> np.ndarray:
    """Returns the examples at `ranks`, int64 arrays of the same shape."""
    windows = np.searchsorted(self._edges, ranks, 'right') - 1
    found = np.empty_like(ranks)
    for window in np.unique(windows).tolist():
      chosen = windows == window
      found[chosen] = self._draw(window)[ranks[chosen] - self._edges[window]]
    return found

  def _draw(self, window: int) -> np.ndarray:
    if window not in self._drawn:
      while len(self._drawn) > 2:
        del self._drawn[next(iter(self._drawn))]
      part = slice(window * self._window, (window + 1) * self._window)
      examples = [
        np.arange(first, first + size)
        for first, size in zip(
          self._firsts[part], self._sizes[part], strict=True
        )
      ]
      generator = np.random.default_rng([*self._entropy, window + 1])
      self._drawn[window] = generator.permutation(np.concatenate(examples))
    return self._drawn[window]


class Rest:
  """The places of a stream that are still to be read, in their order.

  First some ranges that an earlier life has left, then all from one place on.
  Batches are numbered within the rest: ticket t has its places from
  t * batch_size to (t + 1) * batch_size.

  Attributes:
    next_place: all places from here on are to be read.
    ranges: (first, end) of disjoint ranges of places before it.
  """

  def __init__(
    self, next_place: int = 0, ranges: Iterable[tuple[int, int]] = ()
  ) -> None:
    self.next_place = next_place
    self.ranges = [(int(a), int(b)) for a, b in ranges if a < b]
    sizes = [end - first for first, end in self.ranges]
    self._starts = [0, *itertools.accumulate(sizes)]

  def count_read(self) -> int:
    """Returns how many places are not in the rest."""
    return self.next_place - self._starts[-1]

  def find_places(self, first: int, end: int) -> np.ndarray:
    """Returns the places first..end of the rest, int64."""
    return np.concatenate(
      [np.arange(a, b, dtype=np.int64) for a, b in self.find_ranges(first, end)]
      or [np.zeros(0, np.int64)]
    )

  def find_ranges(self, first: int, end: int) -> list[tuple[int, int]]:
    """Returns the same places as (first, end) of the stream."""
    found, total = [], self._starts[-1]
    i = bisect.bisect_right(self._starts, first) - 1
    while first < min(end, total):
      offset = first - self._starts[i]
      start, stop = self.ranges[i]
      taken = min(stop - start - offset, end - first)
      found.append((start + offset, start + offset + taken))
      first += taken
      i += 1
    if first < end:
      found.append(
        (self.next_place + first - total, self.next_place + end - total)
      )
    return found

  def after(self, end: int, undone: Iterable[tuple[int, int]] = ()) -> Rest:
    """Returns the Rest once all before `end` is read except some ranges.

    Args:
      end: a place of this rest.
      undone: (first, end) of parts of this rest, disjoint and before `end`.
    """
    total = self._starts[-1]
    left = [ours for a, b in sorted(undone) for ours in self.find_ranges(a, b)]
    if end < total:
      left += self.find_ranges(end, total)
    return Rest(self.next_place + max(0, end - total), _merge(left))

  def join_nearest(self, most: int) -> Rest:
    """Returns a Rest with at most `most` ranges, which lacks none of this one.

    If this one has more, those with the fewest places between them become one,
    and what lies between is read again. The ranges are in order.

    Args:
      most: 1 or more.
    """
    num_joined = max(0, len(self.ranges) - most)
    gaps = [b[0] - a[1] for a, b in itertools.pairwise(self.ranges)]
    joined = set(np.argsort(gaps, kind='stable')[:num_joined].tolist())
    ranges = []
    for i, (first, end) in enumerate(self.ranges):
      if i - 1 in joined:
        first = ranges.pop()[0]
      ranges.append((first, end))
    return Rest(self.next_place, ranges)


def _merge(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
  """Returns the ranges sorted, with those that touch each other merged."""
  merged: list[tuple[int, int]] = []
  for first, end in sorted(ranges):
    if merged and merged[-1][1] == first:
      merged[-1] = (merged[-1][0], end)
    else:
      merged.append((first, end))
  return merged
