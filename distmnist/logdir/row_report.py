"""What a run reports about the rows of its sparse tables."""

import collections

from distmnist.common import names

# The lines name at most this many tables; report.json has all.
_MAX_TABLES = 5


def compose(lives):
  """Returns the dict of a report, or None for a model without tables.

  ids_per_step, rows_per_step: float, a worker's mean per step: the ids it
  looked up, and the different rows among them, which were sent.
  share_different: float, rows over ids. bytes_by_table: {name: int}, both ways,
  of all workers. rows_by_ps: list of int, rows of each ps; empty without a ps.

  Args:
    lives: list of report.WorkerStats.
  """
  counts = collections.Counter()
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


def _choose(counts, prefix):
  """Returns {rest of the name: int} for names that begin with `prefix`."""
  return {
    name.removeprefix(prefix): int(n)
    for name, n in counts.items()
    if name.startswith(prefix)
  }


def format_lines(found):
  """Yields (label, text) for what `compose` returned.

  Args:
    found: dict or None.
  """
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
  by_table = collections.Counter(found['bytes_by_table'])
  largest = ', '.join(
    f'{name} {n / 1e6:,.1f} MB' for name, n in by_table.most_common(_MAX_TABLES)
  )
  more = len(by_table) - _MAX_TABLES
  yield 'tables', largest + (f', and {more} more' if more > 0 else '')
