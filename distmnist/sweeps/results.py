"""The result of a trial, from its report, and the metric that judges it."""

# What a trial's result takes from train's report.json, besides the metric that
# judges it: 'judged_by', and that metric's values in validation and test.
_REPORTED = 'final_cost', 'global_step', 'images_per_sec'
_JUDGED_BY = '+accuracy'  # if a report does not say


def is_number(value):
  return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_result(value):
  if not isinstance(value, dict):
    return False
  metric = value.get('judged_by', _JUDGED_BY)
  if not isinstance(metric, str) or metric[:1] not in ('+', '-'):
    return False
  known = *_REPORTED, *_name_metric(metric)
  return all(
    name == 'judged_by'
    or name in known
    and (number is None or is_number(number))
    for name, number in value.items()
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
  """
  metric = _JUDGED_BY
  for result in results:
    metric = result.get('judged_by', _JUDGED_BY)
  validation, test = _name_metric(metric)
  has_all = results and all(r.get(validation) is not None for r in results)
  return validation if has_all else test, 1 if metric[0] == '+' else -1


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
