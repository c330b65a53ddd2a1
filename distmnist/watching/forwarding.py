"""The numbers in metrics.jsonl that a logger takes. Pure."""

import re

_SCALARS = (
  'cost',
  'examples_per_sec',
  'staleness_mean',
  'received_bytes_per_sec',
  'sent_bytes_per_sec',
  'cpu_cores',
  'rss_bytes',
)


def find_numbers(lines):
  """Yields (run, time, global step or None, {name: number}).

  A run is a task such as 'ps 0', or 'validation' or 'test' for evaluations on
  that split.

  Args:
    lines: list of dict.
  """
  for line in lines:
    metrics = line.get('metrics') or {}
    if line['kind'] == 'sample':
      found = {name: line.get(name) for name in _SCALARS} | metrics
      name = line['task']
    elif line['kind'] == 'evaluation':
      found, name = metrics, line['split']
    else:
      continue
    found = {n: x for n, x in found.items() if isinstance(x, (int, float))}
    if found:
      yield name, line['time'], line.get('step'), found


def find_flags(run):
  """Returns {name: value}, the flags of train that the launcher was given.

  Args:
    run: watched_run.WatchedRun.
  """
  launcher = run.state.launcher or {}
  found, name = {}, None
  for word in launcher.get('flags', []):
    if _is_flag(word):
      name, _, value = word.lstrip('-').partition('=')
      found[name] = value
    elif name:
      found[name] = word  # Of `--name value`.
  return found


def _is_flag(word):
  """Whether a word of a command line begins a flag, unlike -5."""
  return bool(re.match(r'--?[A-Za-z]', word))
