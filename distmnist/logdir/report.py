"""What a run reports at its end: report.json (report_text.py has the lines).

With sparse tables it has numbers on their rows as well.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from distmnist.common import cli, files, names
from distmnist.watching import metrics_line
from distmnist.watching.metrics_line import Line

# What a report has for each life, for each worker and for all together.
SUMMED = (
  'examples',
  'local_steps',
  'pushes',
  'nonfinite_pushes',
  'bytes_pulled',
  'bytes_pushed',
  'bytes_sent',
  'bytes_received',
)
# The lines name at most this many tables; report.json has all.
_MAX_TABLES = 5


@dataclasses.dataclass
class WorkerStats:
  """What one worker did in one life, that is, in one process.

  Attributes:
    worker: its task_index.
    local_steps: its session.run calls of the train_op.
    examples: local_steps * batch_size.
    train_secs: seconds in the loop after the first run, which also sets up the
      graph on the devices.
    timed_steps: the local steps in train_secs.
    pushes: its steps that sent something to the center.
    bytes_pulled, bytes_pushed: of variables read from the center, and of
      gradients or variables sent there.
    bytes_sent, bytes_received: what this process's sockets moved in the loop
      after the first run; 0 where the system does not count it. For the chief,
      also what evaluations and checkpoints fetched.
    staleness: how many of its pushes had which staleness, in updates.
    nonfinite_pushes: its pushes in which something was not finite, and went as
      zeros.
    batch_size: examples in a batch of this worker.
    life: different in each process.
    start: when that process began, in seconds since 1970.
    sessions: [first, last] for each session that it trained in: the global step
      at its start, and the last one that it saw.
    has_ended: whether its loop came to an orderly end. What a killed worker did
      after its last sample is not known.
    rows: for a model with sparse tables: {name: number}, summed over its steps;
      see ROWS in common/names.py.
    timed_examples_of_all: examples of all workers: those of the global steps
      that it saw made in train_secs.
  """

  # Held while a step is counted, and while all is copied in another thread.
  lock: ClassVar[threading.Lock] = threading.Lock()

  worker: int
  local_steps: int = 0
  examples: int = 0
  train_secs: float = 0.0
  timed_steps: int = 0
  pushes: int = 0
  bytes_pulled: int = 0
  bytes_pushed: int = 0
  bytes_sent: int = 0
  bytes_received: int = 0
  staleness: collections.Counter[int] = dataclasses.field(
    default_factory=collections.Counter
  )
  nonfinite_pushes: int = 0
  batch_size: int = 0
  life: str = ''
  start: float = 0.0
  sessions: list[list[int]] = dataclasses.field(default_factory=list)
  has_ended: bool = False
  rows: collections.Counter[str] = dataclasses.field(
    default_factory=collections.Counter
  )
  timed_examples_of_all: int = 0

  @classmethod
  def from_line(cls, line: Line) -> WorkerStats:
    """Returns what the last sample of a life says; see `to_fields`.

    Raises:
      KeyError: the line has no sums, as the life has made no step.
    """
    sums = {name: line[_IN_LINES.get(name, name)] for name in _OF_A_LIFE}
    return cls.from_message(
      {
        **sums,
        'worker': int(line['task'].split()[1]),
        'life': line['life'],
        'has_ended': line['state'] == ENDING,
      }
    )

  def to_fields(self) -> dict[str, Any]:
    """Returns what a sample of this life has of these sums."""
    message = self.to_message()
    return {_IN_LINES.get(name, name): message[name] for name in _OF_A_LIFE}

  @property
  def step_secs(self) -> float:
    """Mean seconds of a local step."""
    return self.train_secs / max(1, self.timed_steps)

  def copy(self) -> WorkerStats:
    """Returns the sums as they are now, between two steps."""
    with self.lock:
      return dataclasses.replace(
        self,
        staleness=self.staleness.copy(),
        rows=self.rows.copy(),
        sessions=[list(session) for session in self.sessions],
      )

  def to_message(self) -> dict[str, Any]:
    """Returns what JSON can hold; all its keys are strings there."""
    return {**vars(self), 'staleness': dict(sorted(self.staleness.items()))}

  @classmethod
  def from_message(cls, message: Mapping[str, Any]) -> WorkerStats:
    """The inverse of `to_message`, also after a trip through JSON."""
    histogram = {int(s): n for s, n in message['staleness'].items()}
    return cls(
      **{
        **message,
        'staleness': collections.Counter(histogram),
        'rows': collections.Counter(message.get('rows')),
      }
    )


# What a sample in metrics.jsonl has of each, and the names that differ there;
# the rest is in other fields of the line.
_OF_A_LIFE = [
  field.name
  for field in dataclasses.fields(WorkerStats)
  if field.name not in ('worker', 'life', 'has_ended')
]
_IN_LINES = {'start': 'begun'}
# The state of a worker whose loop has ended in order.
ENDING = 'ending'


def compute_rate(lives: Sequence[WorkerStats]) -> float | None:
  """Returns the examples per second of all workers over a run, by its chief.

  None if no life of the chief, worker 0, made more than one run, as the first
  of each is not timed.
  """
  own = [stats for stats in lives if stats.worker == 0]
  examples = sum(stats.timed_examples_of_all for stats in own)
  secs = sum(stats.train_secs for stats in own)
  return examples / secs if examples and secs else None


def summarize_staleness(
  workers: Sequence[WorkerStats],
) -> tuple[float | None, int | None]:
  """Returns (mean, max) over all pushes of `workers`; (None, None) if none."""
  total = sum((w.staleness for w in workers), collections.Counter())
  if not total:
    return None, None
  return compute_mean(total), max(total)


def compute_mean(counts: Mapping[int, int]) -> float:
  """Returns the mean of {number: how often}, which is not empty."""
  return sum(s * n for s, n in counts.items()) / sum(counts.values())


def sum_steps_lost(lives: Sequence[WorkerStats]) -> int:
  """Returns how many global steps had to be repeated.

  When the center is restored, a worker that saw it before sees the step go
  back. The worker that lost most counts: it saw the latest steps. Each worker's
  lives are in order of start.
  """
  lost = collections.Counter()
  for worker, mine in _group(lives).items():
    sessions = [session for stats in mine for session in stats.sessions]
    for (_, last), (first, _) in itertools.pairwise(sessions):
      lost[worker] += max(0, last - first)
  return max(lost.values(), default=0)


def compose(
  settings: Mapping[str, Any],
  outcome: Mapping[str, Any],
  lives: Sequence[WorkerStats],
  max_staleness: int | None,
) -> dict[str, Any]:
  """Returns the report, as JSON can hold it.

  Args:
    settings: what was run.
    outcome: what came of it: test_accuracy, global_step, ...
    lives: all that are known, each worker's in order of start; worker 0 is the
      chief.
    max_staleness: staler pushes were dropped; None if none were.
  """
  mean, largest = summarize_staleness(lives)
  sessions = [session for stats in lives for session in stats.sessions]
  return {
    **settings,
    **outcome,
    'examples_per_sec': compute_rate(lives),
    'first_step': min((first for first, _ in sessions), default=None),
    'recoveries': sum(
      max(0, len(stats.sessions) - 1) for stats in lives if stats.worker == 0
    ),
    'steps_lost': sum_steps_lost(lives),
    'is_complete': _is_complete(lives),
    **{name: sum(getattr(s, name) for s in lives) for name in SUMMED},
    'staleness_mean': mean,
    'staleness_max': largest,
    'rows': compose_rows(lives),
    'workers': [
      _compose_row(mine, max_staleness) for mine in _group(lives).values()
    ],
  }


def _is_complete(lives: Sequence[WorkerStats]) -> bool:
  """Whether no life was killed: of such a one the last steps are missing."""
  return all(stats.has_ended or not stats.local_steps for stats in lives)


def _group(lives: Sequence[WorkerStats]) -> dict[int, list[WorkerStats]]:
  """Returns {worker: its lives}, in order."""
  groups: dict[int, list[WorkerStats]] = {}
  for stats in lives:
    groups.setdefault(stats.worker, []).append(stats)
  return groups


def _compose_row(
  lives: Sequence[WorkerStats], max_staleness: int | None
) -> dict[str, Any]:
  """Returns what is reported for one worker, whose `lives` these are."""
  sums: dict[str, Any] = {
    name: sum(getattr(s, name) for s in lives) for name in SUMMED
  }
  whole = WorkerStats(
    lives[0].worker,
    train_secs=sum(stats.train_secs for stats in lives),
    timed_steps=sum(stats.timed_steps for stats in lives),
    staleness=sum((stats.staleness for stats in lives), collections.Counter()),
    **sums,
  )
  row = _compose_numbers(whole, max_staleness)
  row['lives'] = []
  for stats in lives:
    first, last = None, None
    if stats.sessions:
      first, last = stats.sessions[0][0], stats.sessions[-1][1]
    row['lives'].append(
      {
        'life': stats.life,
        'start': stats.start,
        'first_step': first,
        'last_step': last,
        'sessions': stats.sessions,
        'has_ended': stats.has_ended,
        'batch_size': stats.batch_size,
        **_compose_numbers(stats, max_staleness),
      }
    )
  return row


def _compose_numbers(
  stats: WorkerStats, max_staleness: int | None
) -> dict[str, Any]:
  """Returns what is reported for both a life and a worker."""
  message = stats.to_message()
  numbers = {name: message[name] for name in ('worker', *SUMMED)}
  for name in ('train_secs', 'timed_steps', 'staleness'):
    numbers[name] = message[name]
  numbers['step_secs'] = stats.step_secs
  if max_staleness is not None:
    numbers['gradients_dropped'] = sum(
      n for s, n in stats.staleness.items() if s > max_staleness
    )
  return numbers


def write(report: Mapping[str, Any], path: str) -> str:
  """Writes a report as JSON, whole or not at all; returns the path.

  A number that is not finite becomes null, as JSON has none.

  Raises:
    cli.RunError: it cannot be written.
  """
  try:
    with files.replacing(path) as file:
      json.dump(metrics_line.clean(report), file, indent=2, allow_nan=False)
      file.write('\n')
  except OSError as error:
    kept = 'and nothing of it kept, without a --logdir'
    if report['flags'].get('logdir'):
      kept = (
        f'and its checkpoint of step {report["global_step"]} saved: make room,'
        ' and the same command writes the report'
      )
    raise cli.choose_error(error)(
      f'{path} cannot be written: {error.strerror}; the training is done {kept}'
    ) from error
  return path


def compose_rows(lives: Sequence[WorkerStats]) -> dict[str, Any] | None:
  """Returns the part of a report on rows; None for a model without tables.

  ids_per_step, rows_per_step: float, a worker's mean per step: the ids it
  looked up, and the different rows among them, which were sent.
  share_different: float, rows over ids. bytes_by_table: {name: int}, both ways,
  of all workers. rows_by_ps: list of int, rows of each ps; empty without a ps.
  """
  counts: collections.Counter[str] = collections.Counter()
  for stats in lives:
    counts.update(stats.rows)
  if not counts[names.ROW_IDS]:
    return None
  steps = sum(stats.local_steps for stats in lives if stats.rows)
  ids, rows = counts[names.ROW_IDS], counts[names.ROWS_DIFFERENT]
  of_ps = _choose(counts, names.ROWS_OF_PS)
  num_ps = max(map(int, of_ps), default=-1) + 1
  return {
    'ids_per_step': ids / steps,
    'rows_per_step': rows / steps,
    'share_different': rows / ids,
    'bytes_by_table': _choose(counts, names.ROW_BYTES_OF),
    'rows_by_ps': [of_ps.get(str(i), 0) for i in range(num_ps)],
  }


def _choose(counts: Mapping[str, float], prefix: str) -> dict[str, int]:
  """Returns {rest of the name: int} for names that begin with `prefix`."""
  return {
    name.removeprefix(prefix): int(n)
    for name, n in counts.items()
    if name.startswith(prefix)
  }


def format_row_lines(
  found: Mapping[str, Any] | None,
) -> Iterator[tuple[str, str]]:
  """Yields (label, text) for what `compose_rows` returned."""
  if not found:
    return
  yield (
    'rows a step',
    f'{found["ids_per_step"]:,.0f} ids, of which {found["rows_per_step"]:,.0f} '
    f'({found["share_different"]:.0%}) are different',
  )
  by_ps = found['rows_by_ps']
  if len(by_ps) > 1:
    whole = max(1, sum(by_ps))
    shares = ', '.join(
      f'ps {i} {rows / whole:.0%}' for i, rows in enumerate(by_ps)
    )
    yield 'rows by ps', shares
  by_table: collections.Counter[str] = collections.Counter(
    found['bytes_by_table']
  )
  largest = ', '.join(
    f'{name} {n / 1e6:,.1f} MB' for name, n in by_table.most_common(_MAX_TABLES)
  )
  more = len(by_table) - _MAX_TABLES
  yield 'tables', largest + (f', and {more} more' if more > 0 else '')
