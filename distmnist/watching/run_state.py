"""What is known of each task of a run, from the lines of metrics.jsonl."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from distmnist.common import owner_file
from distmnist.watching import metrics_file, table_text
from distmnist.watching.metrics_line import Line

# For a sample every 2 s; with a longer --log_secs, this many missed samples.
_SILENT_SECS, _SILENT_SAMPLES = 15.0, 4
# Of a task that may still be in the queue of another system.
NOT_SEEN_YET = 'not seen yet'
_SILENT = 'silent'
_JOBS = ('ps', 'worker', 'evaluator')


class Row(NamedTuple):
  """A task as a table shows it; None means not known.

  Attributes:
    examples_per_sec: since the last sample, or over the whole life if it has
      ended; likewise the next three.
    staleness: a mean, in updates.
    received_per_sec, sent_per_sec: bytes.
    is_live: whether it still runs, as far as is known.
    is_silent: whether it may run and says nothing.
  """

  task: str
  state: str
  step: int | None = None
  examples_per_sec: float | None = None
  staleness: float | None = None
  received_per_sec: float | None = None
  sent_per_sec: float | None = None
  rss_bytes: int | None = None
  restarts: int = 0
  is_live: bool = True

  @property
  def is_silent(self) -> bool:
    return self.state.startswith(_SILENT)


class TaskState:
  """The last life of a task.

  Attributes:
    start, end: lines of these kinds.
    first, last: samples; `first` is the first one from which its work can be
      counted.
    every_secs: from one sample to the next; 0 if it is not known.
    attempt: 1 and one more after each restart.
    has_exited: whether its launcher saw its process end, with `exit_code`.
  """

  def __init__(self) -> None:
    self.start: Line | None = None
    self.first: Line | None = None
    self.last: Line | None = None
    self.end: Line | None = None
    self.every_secs = 0.0
    self.attempt = 1
    self.exit_code: int | None = None
    self.has_exited = False

  def begin(self, line: Line) -> None:
    """Takes in the first line of another life."""
    self.__init__()
    self.start, self.attempt = line, line.get('attempt', 1)
    self.every_secs = line.get('every_secs', 0.0)

  def take_sample(self, line: Line) -> None:
    if metrics_file.has_begun(line):
      self.first = self.first or line
    self.last = line

  def find_rates(
    self, is_live: bool
  ) -> tuple[float | None, float | None, float | None, float | None]:
    """Returns (examples/s, staleness, bytes in/s, bytes out/s), or None each.

    Args:
      is_live: if so they are of the last sample, else of the whole life.
    """
    names = ('examples', 'received_bytes', 'sent_bytes')
    first, last = self.first, self.last
    if not (first and last):
      return None, None, None, None
    if is_live:
      examples, received, sent = (last.get(f'{n}_per_sec') for n in names)
      return examples, last.get('staleness_mean'), received, sent
    secs = last['time'] - first['time']
    examples, received, sent = (
      (last[name] - first[name]) / secs
      if secs > 0 and None not in (last.get(name), first.get(name))
      else None
      for name in names
    )
    return examples, _compute_staleness(last), received, sent


def _compute_staleness(sample: Line) -> float | None:
  counts = sample.get('staleness') or {}
  total = sum(counts.values())
  if not total:
    return None
  return sum(int(s) * n for s, n in counts.items()) / total


class RunState:
  """The tasks of a run.

  Attributes:
    tasks: by their names.
    launcher: the first line of the last launcher.
    has_left: whether it has left its tasks to another system.
    evaluations: {split: the last line of an evaluation on it}.
    written: {task: when its file was written last}, seconds since 1970 by one
      clock for all, the file server's; by default each task's own clock counts.
    clock_ahead: by how many seconds the clock of this host is ahead of
      the file server's. None: not measured, and taken from the tasks of several
      hosts: most of their clocks are like ours.
  """

  def __init__(self) -> None:
    self.tasks: dict[str, TaskState] = {}
    self.launcher: Line | None = None
    self.launcher_end: Line | None = None
    self.has_left = False
    self.evaluations: dict[str, Line] = {}
    self.written: dict[str, float] = {}
    self.clock_ahead: float | None = None
    # The lives of tasks that are of earlier launches.
    self._over: set[str] = set()

  def take(self, lines: Iterable[Line]) -> RunState:
    """Takes in lines by time, as of metrics_file.read_state; returns itself."""
    for line in lines:
      if line['task'] == metrics_file.LAUNCHER:
        self._take_launcher(line)
        continue
      if line['life'] in self._over:
        continue  # It ends late, or its clock is ahead.
      kind = line['kind']
      if kind == 'start' and self.launcher_end and _is_by_hand(line):
        self.launcher = self.launcher_end = None
        self.tasks = _choose_tasks(self.tasks, None, self._over)
      task = self.tasks.setdefault(line['task'], TaskState())
      if kind == 'start':
        task.begin(line)
      elif task.start and line['life'] != task.start['life']:
        continue  # A process that was suspended while another took its place.
      elif kind == 'sample':
        task.take_sample(line)
      elif kind == 'end':
        task.end = line
      elif kind == 'evaluation':
        self.evaluations[line['split']] = line
    return self

  def _take_launcher(self, line: Line) -> None:
    if line['kind'] == 'start':
      self.launcher, self.launcher_end = line, None
      self.has_left = False
      self.tasks = _choose_tasks(self.tasks, line.get('launch'), self._over)
    elif line['kind'] == 'end':
      self.launcher_end = line
    elif line['kind'] == 'event':
      self.has_left |= line['event'] == 'left'
      if line.get('about') is None:
        return
      task = self.tasks.setdefault(line['about'], TaskState())
      if line['event'] == 'started':
        attempt = line.get('attempt', 1)
        if task.start and task.start.get('attempt', 1) < attempt:
          self._over.add(task.start['life'])
          task = self.tasks[line['about']] = TaskState()
        task.has_exited, task.attempt = False, attempt
      elif line['event'] == 'ended':
        task.has_exited, task.exit_code = True, line['code']

  @property
  def has_no_launcher(self) -> bool:
    """Whether the launcher has ended: it said so, or is known dead."""
    process = self.launcher and self.launcher.get('process')
    is_dead = process and owner_file.is_known_dead(process)
    return bool(self.launcher_end or self.has_left or is_dead)

  @property
  def unit(self) -> str:
    """What examples are called."""
    units = (t.last.get('unit') for t in self.tasks.values() if t.last)
    return next(filter(None, units), 'examples')

  @property
  def last_step(self) -> int | None:
    """The global step at which the run ends; None if none is known."""
    steps = (t.last.get('last_step') for t in self.tasks.values() if t.last)
    return next(filter(None, steps), None)

  @property
  def step(self) -> int | None:
    """The latest global step that a task has seen."""
    steps = (t.last.get('step') for t in self.tasks.values() if t.last)
    return max((step for step in steps if step is not None), default=None)

  def find_secs_left(self, now: float | None = None) -> float | None:
    """Returns about how many seconds of training are left; None if unknown.

    At the pace of the fastest worker's global steps since its life's first.

    Args:
      now: seconds since 1970; by default the clock of this host.
    """
    now, last_step = time.time() if now is None else now, self.last_step
    found = []
    for name, task in self.tasks.items():
      first, last = task.first, task.last
      if last_step is None or not (first and last):
        continue
      if not self._find_state(name, task, now)[1]:
        continue
      steps = (last.get('step') or 0) - (first.get('step') or 0)
      if steps > 0:
        secs = (last['time'] - first['time']) / steps
        found.append(max(0.0, secs * (last_step - last['step'])))
    return min(found, default=None)

  def find_names(self) -> list[str]:
    """Returns the names of the tasks of the run, ps first."""
    names = set(self.tasks)
    # Those that write nothing yet, and those that were started by hand.
    names |= set((self.launcher or {}).get('tasks', ()))
    known = [name for name in names if name.split()[0] in _JOBS]
    return sorted(known, key=_order)

  def make_rows(self, now: float | None = None) -> list[Row]:
    """Returns a row for each task.

    Args:
      now: seconds since 1970; by default the clock of this host.
    """
    now = time.time() if now is None else now
    return [
      self._make_row(name, self.tasks.get(name, TaskState()), now)
      for name in self.find_names()
    ]

  def _make_row(self, name: str, task: TaskState, now: float) -> Row:
    state, is_live = self._find_state(name, task, now)
    last = task.last or {}
    rates = task.find_rates(is_live)
    return Row(
      name,
      state,
      last.get('step'),
      *rates,
      last.get('rss_bytes') if is_live or task.end else None,
      task.attempt - 1,
      is_live,
    )

  def _find_clock_ahead(self) -> float:
    """Returns by how many seconds the clocks of hosts are ahead."""
    if self.clock_ahead is not None:
      return self.clock_ahead
    found: dict[str | None, float] = {}
    for name, task in self.tasks.items():
      if name in self.written and task.start and task.last:
        host = task.start.get('host')
        found[host] = task.last['time'] - self.written[name]
    # Of one host, it may be its own clock that is wrong.
    return statistics.median(found.values()) if len(found) > 1 else 0.0

  def _find_state(
    self, name: str, task: TaskState, now: float
  ) -> tuple[str, bool]:
    """Returns (what a task does, whether it runs)."""
    if task.end:
      done = 'ended' if task.end['ok'] else 'failed'
      return task.end['text'] if task.end['text'] == 'stopped' else done, False
    if task.has_exited:
      return _describe_code(task.exit_code or 0), False
    last = task.last or task.start
    if not last:
      if self.has_left:
        return NOT_SEEN_YET, False
      return ('never seen' if self.has_no_launcher else 'starting'), False
    process = task.start and task.start.get('process')
    if process and owner_file.is_known_dead(process):
      return 'gone', False
    secs = now - last['time']
    if name in self.written:
      secs = now - self._find_clock_ahead() - self.written[name]
    if secs > max(_SILENT_SECS, _SILENT_SAMPLES * task.every_secs):
      return f'{_SILENT} {table_text.format_secs(secs)}', False
    return last.get('state', 'starting'), True


def _choose_tasks(
  tasks: Mapping[str, TaskState], launch: str | None, over: set[str]
) -> dict[str, TaskState]:
  """Returns those of a launch that begins.

  Some may already be known: their clocks may be behind that of the launcher.

  Args:
    tasks: by their names.
    launch: its name; None for tasks without a launcher.
    over: the lives of tasks of other launches are added to it.
  """
  kept: dict[str, TaskState] = {}
  for name, task in tasks.items():
    own = task.start.get('launch') if task.start else None
    if own and own == launch:
      kept[name] = task
    elif task.start and own:
      over.add(task.start['life'])
  return kept


def _is_by_hand(start: Line) -> bool:
  """Whether a ps or a worker, whose first line is `start`, has no launcher.

  An evaluator may join the run of one.
  """
  return not (start.get('launch') or start['task'].startswith('evaluator'))


def _describe_code(code: int) -> str:
  """Returns the state that an exit code means; -n stands for signal n."""
  if code < 0:
    return 'killed'
  return {0: 'ended', 130: 'stopped', 143: 'stopped'}.get(code, 'failed')


def _order(name: str) -> tuple[int, int]:
  job, index = name.split()
  return _JOBS.index(job), int(index)
