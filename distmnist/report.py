"""What a run says of itself at the end: readable lines and report.json."""

import collections
import dataclasses
import json
import os

from distmnist import checkpoints

# What a report has of each worker and of all together.
_SUMMED = (
  'images',
  'local_steps',
  'pushes',
  'bytes_pulled',
  'bytes_pushed',
  'bytes_sent',
  'bytes_received',
)


@dataclasses.dataclass
class WorkerStats:
  """What one worker did.

  Attributes:
    worker: int, its task_index.
    local_steps: int, its session.run calls of the train_op.
    images: int, local_steps * batch_size.
    train_secs: float, seconds in the loop after the first run, which also
      sets up the graph on the devices.
    timed_steps: int, the local steps in them.
    pushes: int, its steps that sent something to the center.
    bytes_pulled, bytes_pushed: int, of variables read from the center, and of
      gradients or variables sent there.
    bytes_sent, bytes_received: int, what this process's sockets moved in the
      loop after the first run; 0 where the system does not count it. Of the
      chief also what evaluations and checkpoints fetched.
    staleness: Counter, how many of its pushes had which staleness, in updates.
  """

  worker: int
  local_steps: int = 0
  images: int = 0
  train_secs: float = 0.0
  timed_steps: int = 0
  pushes: int = 0
  bytes_pulled: int = 0
  bytes_pushed: int = 0
  bytes_sent: int = 0
  bytes_received: int = 0
  staleness: collections.Counter = dataclasses.field(
    default_factory=collections.Counter
  )

  @property
  def step_secs(self):
    """Mean seconds of a local step."""
    return self.train_secs / max(1, self.timed_steps)

  def to_message(self):
    """Returns a dict that JSON can hold; its keys are strings there."""
    return {**vars(self), 'staleness': dict(sorted(self.staleness.items()))}

  @classmethod
  def from_message(cls, message):
    """The inverse of `to_message`, also after a trip through JSON."""
    histogram = {int(s): n for s, n in message['staleness'].items()}
    return cls(**{**message, 'staleness': collections.Counter(histogram)})


def summarize_staleness(workers):
  """Returns (mean, max) over all pushes of `workers`; (None, None) if none."""
  total = sum((w.staleness for w in workers), collections.Counter())
  if not total:
    return None, None
  return compute_mean(total), max(total)


def compute_mean(counts):
  """Returns the mean of {number: how often}, which is not empty."""
  return sum(s * n for s, n in counts.items()) / sum(counts.values())


def compose(settings, outcome, workers, max_staleness):
  """Returns the report as a dict that JSON can hold.

  Args:
    settings: dict, what was run.
    outcome: dict, what came of it: test_accuracy, global_step, ...
    workers: list of WorkerStats of those that were heard of.
    max_staleness: int, what was staler was dropped; None if nothing was.
  """
  mean, largest = summarize_staleness(workers)
  each = []
  for stats in workers:
    row = {**stats.to_message(), 'step_secs': stats.step_secs}
    if max_staleness is not None:
      row['gradients_dropped'] = sum(
        n for s, n in stats.staleness.items() if s > max_staleness
      )
    each.append(row)
  return {
    **settings,
    **outcome,
    **{name: sum(getattr(w, name) for w in workers) for name in _SUMMED},
    'staleness_mean': mean,
    'staleness_max': largest,
    'workers': each,
  }


def format_lines(report):
  """Returns the last lines of a run, a list of str."""
  lines = []

  def add(label, text):
    lines.append(f'{label:<20}{text}')

  if report['best_step'] is not None:
    add('best step', f'{report["best_step"]} (early stopping on validation)')
  if report['validation_accuracy'] is not None:
    add('validation accuracy', f'{report["validation_accuracy"]:.4f}')
  add('test accuracy', f'{report["test_accuracy"]:.4f}')
  add(
    'total time',
    f'{report["total_secs"]:.1f} s (training {report["train_secs"]:.1f} s)',
  )
  if report['final_cost'] is not None:
    add('final cost', f'{report["final_cost"]:.4f}')
  if report['images_per_sec'] is not None:
    add('images/s', f'{report["images_per_sec"]:,.0f}')
  add(
    'work',
    f'{report["global_step"]} global steps, {report["local_steps"]} local '
    f'steps, {report["images"]:,} images',
  )
  add(
    'traffic',
    f'{report["pushes"]} pushes, '
    f'{report["bytes_pushed"] / 1e6:,.1f} MB pushed, '
    f'{report["bytes_pulled"] / 1e6:,.1f} MB pulled',
  )
  if report['bytes_sent']:
    add(
      'sockets',
      f'{report["bytes_sent"] / 1e6:,.1f} MB sent, '
      f'{report["bytes_received"] / 1e6:,.1f} MB received by the workers',
    )
  if report['recoveries']:
    add(
      'recoveries',
      f'{report["recoveries"]}, {report["steps_lost"]} global steps lost',
    )
  if report['staleness_mean'] is not None:
    add(
      'staleness',
      f'mean {report["staleness_mean"]:.2f}, max {report["staleness_max"]}',
    )
  for row in report['workers']:
    dropped = row.get('gradients_dropped')
    add(
      f'worker {row["worker"]}',
      f'{row["local_steps"]} local steps, {1000 * row["step_secs"]:.2f} ms/step'
      + (f', {dropped} gradients dropped' if dropped is not None else ''),
    )
  for worker in report['workers_not_heard_of']:
    add(f'worker {worker}', 'not heard of at the end')
  return lines


def write(report, logdir):
  """Writes logdir/report.json, whole or not at all; returns its path."""
  path = checkpoints.report_path(logdir)
  with open(path + '.new', 'w', encoding='utf-8') as file:
    json.dump(report, file, indent=2)
    file.write('\n')
  os.replace(path + '.new', path)
  return path
