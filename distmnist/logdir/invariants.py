"""How the numbers of a report must relate, whatever has happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from distmnist.logdir import report as report_lib


def check_invariants(report: Mapping[str, Any]) -> list[str]:
  """Returns what is inconsistent in a report, in sentences.

  Args:
    report: of report.json.
  """
  broken: list[str] = []

  def expect(what: str, found: int, expected: int | str) -> None:
    if found != expected:
      broken.append(f'{what}: {found}, expected {expected}')

  for name in report_lib.SUMMED:
    expect(name, report[name], sum(row[name] for row in report['workers']))
  for row in report['workers']:
    for name in report_lib.SUMMED:
      expect(
        f'{name} of worker {row["worker"]}',
        row[name],
        sum(life[name] for life in row['lives']),
      )
    for life in row['lives']:
      _check_life(expect, life)
  if _is_undisturbed(report):
    expect(
      'pushes that were not dropped',
      sum(_count_accepted(row) for row in report['workers']),
      report['pushes_per_update']
      * (report['global_step'] - report['first_step']),
    )
  return broken


def _check_life(
  expect: Callable[[str, int, int | str], None], life: Mapping[str, Any]
) -> None:
  """Checks what a life reports, even one that was killed."""
  name = f'worker {life["worker"]}, life {life["life"]}'
  expect(
    f'examples of {name}',
    life['examples'],
    life['batch_size'] * life['local_steps'],
  )
  if life['staleness']:
    # Each push was accepted or dropped, by its staleness.
    expect(
      f'pushes with a staleness of {name}',
      sum(life['staleness'].values()),
      life['pushes'],
    )
  # Rows of a table may be pushed in steps that push nothing else.
  most = life['local_steps'] if life.get('rows') else life['pushes']
  if life['nonfinite_pushes'] > most:
    expect(
      f'pushes that were not finite of {name}',
      life['nonfinite_pushes'],
      f'at most {most}',
    )


def _count_accepted(row: Mapping[str, Any]) -> int:
  return row['pushes'] - row.get('gradients_dropped', 0)


def _is_undisturbed(report: Mapping[str, Any]) -> bool:
  """Whether each push is known, and was for an update that took place."""
  return (
    report['first_step'] is not None
    and not report['recoveries']
    and not report['workers_not_heard_of']
    # A killed life told nobody what it did last. One whose session was cut
    # off does not know whether its last push arrived.
    and all(
      len(row['lives']) == 1
      and row['lives'][0]['has_ended']
      and len(row['lives'][0]['sessions']) <= 1
      for row in report['workers']
    )
    # If an update takes more pushes than workers, some may be left over.
    and report['pushes_per_update'] <= len(report['workers'])
  )
