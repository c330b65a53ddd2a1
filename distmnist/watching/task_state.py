"""What is known of the last life of a task, from its lines of metrics.jsonl."""

import collections

from distmnist.watching import metrics_file


class TaskState:
  """The last life of a task.

  Attributes:
    start, end: lines (dict) of these kinds, or None.
    first, last: samples (dict), or None; `first` is the first one from which
      its work can be counted.
    every_secs: float, from one sample to the next; 0 if it is not known.
    attempt: int, 1 and one more after each restart.
    has_exited: bool, whether its launcher saw its process end, with `exit_code`
      (int).
  """

  def __init__(self):
    self.start = self.first = self.last = self.end = None
    self.every_secs = 0.0
    self.attempt = 1
    self.exit_code = None
    self.has_exited = False
    self._staleness = collections.Counter()

  def begin(self, line):
    """Takes in the first line of another life."""
    self.__init__()
    self.start, self.attempt = line, line.get('attempt', 1)
    self.every_secs = line.get('every_secs', 0.0)

  def take_sample(self, line):
    if metrics_file.has_begun(line):
      self.first = self.first or line
    self.last = line
    for staleness, n in line.get('staleness', {}).items():
      self._staleness[int(staleness)] += n

  def find_rates(self, is_live):
    """Returns (examples/s, staleness, bytes in/s, bytes out/s), or None each.

    Args:
      is_live: bool; if so they are of the last sample, else of the whole life.
    """
    names = ('examples', 'received_bytes', 'sent_bytes')
    first, last = self.first, self.last
    if not first:
      return (None,) * 4
    if is_live:
      rates = [last.get(f'{name}_per_sec') for name in names]
      return rates[0], last.get('staleness_mean'), *rates[1:]
    secs = last['time'] - first['time']
    rates = [
      (last[name] - first[name]) / secs
      if secs > 0 and None not in (last.get(name), first.get(name))
      else None
      for name in names
    ]
    return rates[0], self._compute_staleness(), *rates[1:]

  def _compute_staleness(self):
    total = sum(self._staleness.values())
    if not total:
      return None
    return sum(s * n for s, n in self._staleness.items()) / total
