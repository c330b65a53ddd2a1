"""A run over time, from the lines of metrics.jsonl: curves, lives, waits."""

import collections
import math

from distmnist.watching import metrics_file


def leave_out_earlier(lines):
  """Returns `lines` from the launch on that the first lines of tasks are of.

  Launches before that one are of runs whose tasks' lines were moved aside.

  Args:
    lines: list of dict by time.
  """

  def is_of_launcher(line):
    return line['task'] == metrics_file.LAUNCHER

  first = next((x['time'] for x in lines if not is_of_launcher(x)), math.inf)
  starts = [
    i
    for i, line in enumerate(lines)
    if is_of_launcher(line) and line['kind'] == 'start' and line['time'] < first
  ]
  return lines[starts[-1] :] if starts else lines


class RunHistory:
  """What all tasks did, from the first line on.

  Attributes:
    start: float, the time of the first line, seconds since 1970; all other
      times are seconds after it.
    num_secs: float, until the last line.
    lives: {task: list of (start, end, text)}.
    marks: list of (task or None, time, text): what broke, and recoveries.
    waits: list of (time, task, text), what a task reported of its waits.
    staleness: {worker: Counter of updates}.
    totals: {task: dict}, the last sample of each of its lives, summed.
  """

  def __init__(self, lines):
    """
    Args:
      lines: list of dict by time, not empty.
    """
    self.start = lines[0]['time']
    self.num_secs = lines[-1]['time'] - self.start
    self._lines = lines
    self.staleness = collections.defaultdict(collections.Counter)
    self.marks, self.waits = [], []
    self._lives = {}  # (task, life): [first time, last time, last sample].
    for line in lines:
      self._take(line)

  def _take(self, line):
    task, time = line['task'], line['time'] - self.start
    if line['kind'] == 'event':
      self._take_event(line, time)
    if task == metrics_file.LAUNCHER:
      return
    life = self._lives.setdefault((task, line['life']), [time, time, {}])
    life[1] = time
    if line['kind'] == 'sample':
      life[2] = line
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
    for line in self._lines:
      if line['kind'] != 'sample' or not line['task'].startswith(job):
        continue
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
    for line in self._lines:
      if line['kind'] == 'evaluation':
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
    for line in self._lines:
      if line['kind'] == 'sample' and 'waiting' in line:
        waiting = set(line['waiting'])
        num_samples += bool(waiting)
        counts.update((w, o) for w in waiting for o in workers - waiting)
    return {pair: n / num_samples for pair, n in counts.items()}


def _order(task):
  job, index = task.split()
  return job, int(index)
