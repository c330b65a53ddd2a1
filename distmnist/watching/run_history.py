"""A run over time, from the lines of metrics.jsonl: curves, lives, waits."""

import collections
import itertools

from distmnist.watching import metrics_file

# More points than a chart has.
_NUM_KEPT = 500


class _Thinned:
  """An evenly spread part of many lines, and the last."""

  def __init__(self):
    self._kept, self._last = [], None
    self._num, self._every = 0, 1

  def add(self, line):
    if self._num % self._every == 0:
      self._kept.append(line)
      if len(self._kept) == 2 * _NUM_KEPT:
        self._kept, self._every = self._kept[::2], 2 * self._every
    self._last = line
    self._num += 1

  def __iter__(self):
    yield from self._kept
    if self._kept and self._kept[-1] is not self._last:
      yield self._last


class RunHistory:
  """What all tasks did, from the first line on.

  Launches before the one that the first lines of tasks are of do not count:
  their tasks' lines were moved aside.

  Attributes:
    start: float, the time of the first line, seconds since 1970; all other
      times are seconds after it.
    num_secs: float, until the last line.
    starts: list of dict, the first line of each life.
    lives: {task: list of (start, end, text)}.
    marks: list of (task or None, time, text): what broke, and recoveries.
    waits: list of (time, task, text), what a task reported of its waits.
    staleness: {worker: Counter of updates}.
    totals: {task: dict}, the last sample of each of its lives, summed.
  """

  def __init__(self, lines):
    """
    Args:
      lines: iterable of dict by time, not empty.
    """
    self._begin(0.0)
    for line in lines:
      is_launch = line['task'] == metrics_file.LAUNCHER
      is_launch = is_launch and line['kind'] == 'start'
      if not self._num_lines or (is_launch and not self._lives):
        self._begin(line['time'])
      self._num_lines += 1
      self.num_secs = line['time'] - self.start
      self._take(line)

  def _begin(self, start):
    self.start, self.num_secs = start, 0.0
    self._num_lines = 0
    self.starts, self.marks, self.waits = [], [], []
    self.staleness = collections.defaultdict(collections.Counter)
    self._samples = collections.defaultdict(_Thinned)
    self._evaluations = collections.defaultdict(_Thinned)
    self._waiting = collections.Counter()
    self._lives = {}  # (task, life): [first time, last time, last sample].

  def _take(self, line):
    task, time = line['task'], line['time'] - self.start
    if line['kind'] == 'event':
      self._take_event(line, time)
    elif line['kind'] == 'start':
      self.starts.append(line)
    elif line['kind'] == 'evaluation':
      self._evaluations[line['split']].add(line)
    if task == metrics_file.LAUNCHER:
      return
    life = self._lives.setdefault((task, line['life']), [time, time, {}])
    life[1] = time
    if line['kind'] == 'sample':
      life[2] = line
      self._samples[task].add(line)
      self._waiting[frozenset(line.get('waiting', ()))] += 1
      for staleness, n in line.get('staleness', {}).items():
        self.staleness[task][int(staleness)] += n
    elif line['kind'] == 'end' and not line['ok']:
      self.marks.append((task, time, f'{task}: {line["text"]}'))

  def _take_event(self, line, time):
    event, text = line['event'], line.get('text', '')
    about = line.get('about', line['task'])
    is_fault = event == 'ended' and line.get('code') not in (0, 130, 143)
    if is_fault or event == 'recovered':
      self.marks.append((about, time, f'{about}: {text}'))
    elif event == 'stopping':
      self.marks.append((None, time, f'asked to stop by {text}'))
    elif event == 'wait':
      self.waits.append((time, about, text))

  @property
  def lives(self):
    found = {}
    for (task, life), (first, last, _) in sorted(self._lives.items()):
      found.setdefault(task, []).append((first, last, f'{task}, life {life}'))
    return found

  @property
  def totals(self):
    names = 'local_steps', 'examples', 'bytes_pulled', 'bytes_pushed'
    names += 'sent_bytes', 'received_bytes', 'cpu_secs'
    found = {}
    for (task, _), (_, _, sample) in sorted(self._lives.items()):
      total = found.setdefault(task, collections.Counter())
      total.update({n: sample.get(n) or 0 for n in names})
    return found

  def find_curves(self, name, job, over='time'):
    """Returns {task: list of (x, y)} of one number in a job's samples.

    Args:
      name: str, a field of the samples, or of their `metrics`.
      job: str, 'worker' or 'ps'.
      over: 'time', in seconds, or 'step'.
    """
    found = {}
    mine = (lines for t, lines in self._samples.items() if t.startswith(job))
    for line in itertools.chain.from_iterable(mine):
      y = line.get(name, (line.get('metrics') or {}).get(name))
      x = line['time'] - self.start if over == 'time' else line.get('step')
      if isinstance(y, list):
        y = len(y)
      if x is not None and y is not None:
        found.setdefault(line['task'], []).append((x, y))
    # So that each task has the same colour in all charts.
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))

  def find_evaluations(self):
    """Returns {metric: {split: list of (step, value)}}."""
    found = {}
    for line in itertools.chain.from_iterable(self._evaluations.values()):
      for name, value in line['metrics'].items():
        if value is not None:
          splits = found.setdefault(name, {})
          splits.setdefault(line['split'], []).append((line['step'], value))
    return {
      name: {split: sorted(points) for split, points in splits.items()}
      for name, splits in found.items()
    }

  def find_who_waited(self):
    """Returns {(who, for whom): share of samples}, for rules with rounds.

    In each sample a ps lists the workers that wait there for the end of a
    round; they wait for the workers not listed.
    """
    workers = {t for t in self.lives if t.startswith('worker')}
    counts, num_samples = collections.Counter(), 0
    for waiting, n in self._waiting.items():
      num_samples += n * bool(waiting)
      for pair in itertools.product(waiting, workers - waiting):
        counts[pair] += n
    return {pair: n / num_samples for pair, n in counts.items()}


def _order(task):
  job, index = task.split()
  return job, int(index)
