"""The result of a trial, from its report, and the metric that judges it."""

import sys

from distmnist.common import cli

# What a trial's result takes from train's report.json, besides the metric that
# judges it: 'judged_by', and that metric's values in validation and test.
_REPORTED = 'final_cost', 'global_step', 'images_per_sec'
_JUDGED_BY = '+accuracy'  # if a report does not say


def is_number(value):
  """Whether a value of any type is a number that a float can hold."""
  return (
    isinstance(value, (int, float))
    and not isinstance(value, bool)
    and abs(value) <= sys.float_info.max
  )


def is_result(value):
  """Whether a value of any type is one that `take` may have returned."""
  if not isinstance(value, dict):
    return False
  metric = value.get('judged_by', _JUDGED_BY)
  if not isinstance(metric, str) or metric[:1] not in ('+', '-'):
    return False
  validation, test = _name_metric(metric)
  return (
    value.keys() <= {'judged_by', validation, test, *_REPORTED}
    and is_number(value.get(test))
    and isinstance(value.get('global_step', 0), int | None)
    and all(
      number is None or is_number(number)
      for name, number in value.items()
      if name != 'judged_by'
    )
  )


def _name_metric(judged_by):
  return f'validation_{judged_by[1:]}', f'test_{judged_by[1:]}'


def read_metric(results):
  """Returns the (key, sign) by which the results of trials are compared.

  Args:
    results: list of dict.

  Returns:
    str, 'validation_' and the metric's name if all have it, else 'test_' and
    its name; int, 1 if higher is better, -1 if lower is.

  Raises:
    cli.RunError: they are not all judged by the same metric.
  """
  judged_by = sorted({r.get('judged_by', _JUDGED_BY) for r in results})
  if len(judged_by) > 1:
    raise cli.RunError(
      f'some trials are judged by {judged_by[0]!r} and others by'
      f' {judged_by[1]!r}: `best` of the problem has changed since the sweep'
      ' began; give another --sweep_dir, which runs all trials anew'
    )
  metric = judged_by[0] if judged_by else _JUDGED_BY
  validation, test = _name_metric(metric)
  has_all = results and all(r.get(validation) is not None for r in results)
  return validation if has_all else test, 1 if metric[0] == '+' else -1


def choose_value(result: dict) -> tuple[str, float]:
  """Returns what one result is judged by, and its value: higher is better."""
  key, sign = read_metric([result])
  name = key.replace('_', ' ', 1)
  return name if sign > 0 else f'-{name}', sign * result[key]


def take(report):
  """Returns a trial's result (dict), taken from a report.

  Raises:
    ValueError: the report lacks the metric that is to judge it, or that is not
      finite.
  """
  metric = report.get('judged_by', _JUDGED_BY)
  name = metric[1:]
  result = {name: report.get(name) for name in _REPORTED}
  result |= {'judged_by': metric} if metric != _JUDGED_BY else {}
  for split in 'validation', 'test':
    found = report.get(f'{split}_metrics') or {}
    key = f'{split}_{name}'
    result[key] = found.get(name, report.get(key))
    if name in found and found[name] is None:
      raise ValueError(f'its {key} is not a finite number')
  if result[key] is None:
    raise ValueError(f'it has no {key}')
  if not is_result(result):
    raise ValueError(f'not all are numbers: {result}')
  return result
