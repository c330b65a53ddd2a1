"""What goodput.py does and finds: the schedule of faults, and a run's measures.

A run's history is what distmnist.logdir.history.read returns; see
fault_checker.py for its events.
"""

import collections
import dataclasses
import itertools
import math
import random
from typing import NamedTuple

from lib import fault_checker


class Hit(NamedTuple):
  """A fault: when it comes, in seconds, what is hit, and its kind."""

  secs: float
  task: str
  kind: str


@dataclasses.dataclass
class Cell:
  """A row of the table, in pairs of runs.

  Attributes:
    rule: str, a key of fault_training.RULES.
    role: str, 'worker', 'chief' or 'ps': what the faults hit.
    kinds: list of str, the faults.
    share: int, percent of a core for each task; 0 for no limit.
    how: str, how the shares are kept.
    steps: int, the last global step.
    runs: list of dict, see goodput.do_cell.
  """

  rule: str
  role: str
  kinds: list
  share: int
  how: str = ''
  steps: int = 0
  runs: list = dataclasses.field(default_factory=list)

  def __str__(self):
    limit = f', {self.share} % of a core' if self.share else ''
    return f'{self.rule}, {self.role}: {" and ".join(self.kinds)}{limit}'


def find_targets(role, names):
  """Returns the tasks of a role, a list of str; [] if the run has none."""
  if role == 'chief':
    return ['worker 0']
  return [n for n in names if n.startswith(role) and n != 'worker 0']


def draw_hits(seed, tasks, kinds, every_secs):
  """Yields Hit without end: one in each `every_secs`, away from its ends.

  Args:
    seed: str.
    tasks: list of str, of which one is hit.
    kinds: list of str.
    every_secs: float.
  """
  rng = random.Random(seed)
  for number in itertools.count():
    secs = every_secs * (number + rng.uniform(0.25, 0.75))
    yield Hit(secs, rng.choice(tasks), rng.choice(kinds))


def measure(events):
  """Measures a run from the moment at which each worker has made a step.

  Returns:
    dict: `start`, that moment; `secs` from then to the last step; `steps` made
    in them, those that were done again not counted; `batches` run in them, all
    counted; `steps_lost`, the steps that restores took back.
  """
  ran = fault_checker.of_kind(events, 'ran')
  firsts = {}
  for event in ran:
    firsts.setdefault(event['worker'], event['time'])
  start = max(firsts.values())
  begun = max(e['step'] for e in ran if e['time'] <= start)
  last = max(e['step'] for e in ran)
  end = min(e['time'] for e in ran if e['step'] == last)
  lost, step = 0, 0
  for event in fault_checker.of_kind(events, 'ran', 'restored'):
    if event['event'] == 'restored':
      lost += max(0, step - event['step'])
      step = event['step']
    step = max(step, event['step'])
  return {
    'start': start,
    'secs': end - start,
    'steps': last - begun,
    'batches': sum(len(e['tickets']) for e in ran if e['time'] > start),
    'steps_lost': lost,
  }


def count_by_second(events, start):
  """Returns how many batches ended in each second since `start`, a list."""
  counts = collections.Counter()
  for event in fault_checker.of_kind(events, 'ran'):
    counts[math.floor(event['time'] - start)] += len(event['tickets'])
  return [counts[second] for second in range(max(counts, default=-1) + 1)]


def find_pairs(cell):
  """Returns the list of (run without faults, run with) of a Cell.

  A pair in which a run has failed is left out.
  """
  good = {
    (run['pair'], run['has_faults']): run
    for run in cell.runs
    if not run['problem']
  }
  return [
    (good[pair, False], run)
    for (pair, has_faults), run in sorted(good.items(), key=lambda x: x[0])
    if has_faults and (pair, False) in good
  ]


def compute_goodput(pair):
  """Returns the goodput of a pair, a float, 1 for no loss."""
  without, with_faults = (run['steps'] / run['secs'] for run in pair)
  return with_faults / without
