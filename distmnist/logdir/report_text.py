"""What a run reports at its end, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from distmnist.common.names import SPLITS
from distmnist.logdir import report as report_lib


def format_metric(value: float) -> str:
  """Returns a number as text: four decimals, else four digits in all."""
  is_plain = value == 0 or 0.001 <= abs(value) < 1000
  return f'{value:.4f}' if is_plain else f'{value:.4g}'


def format_metrics(metrics: Mapping[str, float]) -> str:
  """Returns metrics by name as a line, such as 'mse 0.0123, mae 0.0801'."""
  return ', '.join(f'{n} {format_metric(x)}' for n, x in metrics.items())


def format_lines(report: Mapping[str, Any]) -> list[str]:
  """Returns the last lines of a run."""
  # Of a life that was killed the last seconds are not known.
  least = '' if report.get('is_complete', True) else 'at least '
  lines: list[str] = []

  def add(label: str, text: str) -> None:
    lines.append(f'{label:<19} {text}')

  if report['best_step'] is not None:
    add('best step', _describe_best(report))
  for split in SPLITS:
    for name, value in (report.get(f'{split}_metrics') or {}).items():
      add(f'{split} {name}', format_metric(value))
  add(
    'total time',
    f'{report["total_secs"]:.1f} s (training {report["train_secs"]:.1f} s)',
  )
  if report['final_loss'] is not None:
    add('final loss', f'{report["final_loss"]:.4f}')
  if report['examples_per_sec'] is not None:
    add(f'{report["unit"]}/s', f'{report["examples_per_sec"]:,.0f}')
  if report['first_step']:
    add('counted', f'from global step {report["first_step"]} on')
  steps = f'{report["global_step"]} steps'
  if least or report['local_steps'] != report['global_step']:
    local = f'{least}{report["local_steps"]} local steps'
    steps = f'{report["global_step"]} global steps, {local}'
  if least:
    add(
      'missing',
      'what killed processes did after their last sample (--log_secs) is in '
      'no sum',
    )
  add('work', f'{steps}, {report["examples"]:,} {report["unit"]}')
  add(
    'traffic',
    f'{report["pushes"]} pushes, '
    f'{report["bytes_pushed"] / 1e6:,.1f} MB pushed, '
    f'{report["bytes_pulled"] / 1e6:,.1f} MB pulled',
  )
  for label, text in report_lib.format_row_lines(report.get('rows')):
    add(label, text)
  if report['bytes_sent']:
    add(
      'sockets',
      f'{report["bytes_sent"] / 1e6:,.1f} MB sent, '
      f'{report["bytes_received"] / 1e6:,.1f} MB received by the workers',
    )
  if report['recoveries'] or report['steps_lost']:
    add(
      'recoveries',
      f'{report["recoveries"]}, {least}{report["steps_lost"]} global steps '
      'lost',
    )
  if report['staleness_mean'] is not None:
    add(
      'staleness',
      f'mean {report["staleness_mean"]:.2f}, max {report["staleness_max"]}',
    )
  for name, text in [*_describe_tables(report), *_describe_workers(report)]:
    add(name, text)
  return lines


def _describe_best(report: Mapping[str, Any]) -> str:
  """Returns which step is the best, and why there were others after it."""
  metric = report.get('judged_by', '')[1:]
  text = f'{report["best_step"]}, by validation {metric}'
  if (step := report.get('early_stop_step')) is None:
    return text
  text += f'; early stopping at step {step}'
  more = report['global_step'] - step
  return text + (f', {more} more until all workers ended' if more > 0 else '')


def _describe_tables(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  """Yields (name, how it has grown) for each table."""
  for name, table in report.get('tables', {}).items():
    without, reused = table['keys_without_row'], table.get('rows_reused')
    yield (
      f'table {name}',
      f'{table["rows"]:,} rows, room for {table["capacity"]:,}'
      + (f'; {reused:,} times a key took that of another' if reused else '')
      + (f'; {without:,} times a key found none left' if without else ''),
    )


def _describe_workers(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  """Yields (name, what it did), for all lives and each worker."""
  num_lives = sum(len(row['lives']) for row in report['workers'])
  if num_lives > len(report['workers']):
    yield (
      'lives',
      f'{num_lives} processes of {len(report["workers"])} workers: work, '
      f'traffic and {report["unit"]}/s are sums over all, loss and times are '
      'those of the last',
    )
  for row in report['workers']:
    dropped, num_lives = row.get('gradients_dropped'), len(row['lives'])
    yield (
      f'worker {row["worker"]}',
      f'{row["local_steps"]} local steps, {1000 * row["step_secs"]:.2f} ms/step'
      + (f', {dropped} gradients dropped' if dropped is not None else '')
      + (f', in {num_lives} lives' if num_lives > 1 else ''),
    )
  for worker in report['workers_not_heard_of']:
    yield f'worker {worker}', 'sent no final report'
