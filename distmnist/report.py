"""What a run says of itself at the end: readable lines and report.json."""

import collections
import dataclasses
import json
import os

from distmnist import checkpoints


@dataclasses.dataclass
class WorkerStats:
  """What one worker did.

  Attributes:
    worker: int, its task_index.
    local_steps: int, its session.run calls of the train_op.
    images: int, local_steps * batch_size.
    train_secs: float, seconds in the loop after the first step, which also
      sets up the graph on the devices.
    staleness: Counter, how many of its steps had which staleness, in updates.
  """

  worker: int
  local_steps: int = 0
  images: int = 0
  train_secs: float = 0.0
  staleness: collections.Counter = dataclasses.field(
    default_factory=collections.Counter
  )

  @property
  def step_secs(self):
    """Mean seconds of a local step."""
    return self.train_secs / max(1, self.local_steps - 1)

  def to_message(self):
    """Returns a dict that JSON can hold; its keys are strings there."""
    return {**vars(self), 'staleness': dict(sorted(self.staleness.items()))}

  @classmethod
  def from_message(cls, message):
    """The inverse of `to_message`, also after a trip through JSON."""
    histogram = {int(s): n for s, n in message['staleness'].items()}
    return cls(**{**message, 'staleness': collections.Counter(histogram)})


def summarize_staleness(workers):
  """Returns (mean, max) over all steps of `workers`; (None, None) if none."""
  total = sum((w.staleness for w in workers), collections.Counter())
  if not total:
    return None, None
  count = sum(total.values())
  return sum(s * n for s, n in total.items()) / count, max(total)


def compose(settings, outcome, workers, drops_stale):
  """Returns the report as a dict that JSON can hold.

  Args:
    settings: dict, what was run.
    outcome: dict, what came of it: test_accuracy, global_step, ...
    workers: list of WorkerStats of those that were heard of.
    drops_stale: bool, whether a stale gradient was dropped.
  """
  mean, largest = summarize_staleness(workers)
  each = []
  for stats in workers:
    row = {**stats.to_message(), 'step_secs': stats.step_secs}
    if drops_stale:
      kept = stats.staleness[0]
      row['gradients_dropped'] = stats.local_steps - kept
    each.append(row)
  return {
    **settings,
    **outcome,
    'images': sum(w.images for w in workers),
    'local_steps': sum(w.local_steps for w in workers),
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
  if report['staleness_mean'] is not None:
    add(
      'staleness',
      f'mean {report["staleness_mean"]:.2f}, max {report["staleness_max"]}',
    )
  for row in report['workers']:
    dropped = row.get('gradients_dropped')
    add(
      f'worker {row["worker"]}',
      f'{row["local_steps"]} steps, {1000 * row["step_secs"]:.2f} ms/step'
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
