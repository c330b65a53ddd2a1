"""The result of a trial, from its report, and the metric that judges it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from distmnist.common import cli
from distmnist.common.names import SPLITS

# What a trial's result takes from train's report.json, besides the metric that
# judges the problem: its values on each split.
_REPORTED = (
  *('final_loss', 'global_step', 'examples_per_sec', 'examples'),
  *('staleness_mean', 'bytes_pulled', 'bytes_pushed'),
)
_JUDGED_BY = '+accuracy'  # if a report does not say
# The values of --judge.
METRIC, SPEED = JUDGES = 'metric', 'examples_per_sec'
# Which of them may compare trials, the first that all have; others are shown.
_JUDGING = 'validation', 'test', 'train'
_NO_SPEED = (
  ': worker 0 has made no step after its first session.run, which is not timed;'
  ' give train more steps, or --train_secs=10'
)


def is_number(value: object) -> bool:
  """Whether a value of any type is a number that a float can hold."""
  return (
    isinstance(value, (int, float))
    and not isinstance(value, bool)
    and abs(value) <= sys.float_info.max
  )


def is_result(value: Any) -> bool:
  """Whether a value of any type is one that `take` may have returned."""
  if not isinstance(value, dict):
    return False
  metric = value.get('judged_by', _JUDGED_BY)
  if not isinstance(metric, str) or metric[:1] not in ('+', '-'):
    return False
  numbers = {key: n for key, n in value.items() if key != 'judged_by'}
  return (
    all(k in _REPORTED or k.partition('_')[0] in SPLITS for k in numbers)
    and any(is_number(value.get(key)) for key in _name_keys(metric))
    and isinstance(value.get('global_step', 0), int | None)
    and all(n is None or is_number(n) for n in numbers.values())
  )


def _name_keys(judged_by: str) -> list[str]:
  """Returns what may compare trials, best first."""
  name = judged_by[1:]
  return [name] if name == SPEED else [f'{split}_{name}' for split in _JUDGING]


def describe(key: str) -> str:
  """Returns a key of a result as a person reads it: 'test accuracy'."""
  return key if key in _REPORTED else key.replace('_', ' ', 1)


def read_metric(results: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
  """Returns the (key, sign) by which the results of trials are compared.

  Args:
    results: see `take`.

  Returns:
    The key is 'examples_per_sec' under that --judge, else the metric's name
    after that of the split, such as 'validation_loss': the first of validation,
    test and train whose metric all have. The sign is 1 if higher is better, -1
    if lower is.

  Raises:
    cli.RunError: they are not all judged by the same metric, or on the same
      split.
  """
  judged_by = sorted({r.get('judged_by', _JUDGED_BY) for r in results})
  if len(judged_by) > 1:
    raise cli.RunError(
      f'some trials are judged by {judged_by[0]!r} and others by'
      f' {judged_by[1]!r}: `best` of the problem has changed since the sweep'
      ' began; give another --sweep_dir, which runs all trials anew'
    )
  metric = judged_by[0] if judged_by else _JUDGED_BY
  for key in _name_keys(metric):
    if all(r.get(key) is not None for r in results):
      return key, 1 if metric[0] == '+' else -1
  raise cli.RunError(
    f'some trials have the {metric[1:]} of other examples than others: give '
    'each the same data, and another --sweep_dir, which runs all trials anew'
  )


def choose_value(result: Mapping[str, Any]) -> tuple[str, float]:
  """Returns what one result is judged by, and its value: higher is better."""
  key, sign = read_metric([result])
  name = describe(key)
  return name if sign > 0 else f'-{name}', sign * result[key]


def take(report: Mapping[str, Any], judge: str = METRIC) -> dict[str, Any]:
  """Returns a trial's result, taken from a report.

  Args:
    report: train's report.json.
    judge: a value of --judge.

  Raises:
    ValueError: the report lacks the number that is to judge it, or that is not
      finite.
  """
  metric = report.get('judged_by', _JUDGED_BY)
  name = metric[1:]
  result = {name: report.get(name) for name in _REPORTED}
  judged_by = metric if judge == METRIC else f'+{judge}'
  result |= {'judged_by': judged_by} if judged_by != _JUDGED_BY else {}
  for split in SPLITS:
    found = report.get(f'{split}_metrics') or {}
    key = f'{split}_{name}'
    if split != 'train' or name in found:
      result[key] = found.get(name, report.get(key))
    if judge == METRIC and name in found and found[name] is None:
      raise ValueError(f'its {key} is not a finite number')
  keys = _name_keys(judged_by)
  if all(result.get(key) is None for key in keys):
    why = _NO_SPEED if keys == [SPEED] else ''
    raise ValueError(f'it has no {name if keys != [SPEED] else SPEED}{why}')
  if not is_result(result):
    raise ValueError(f'not all are numbers: {result}')
  return result
