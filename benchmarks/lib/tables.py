"""Tables of measurements, and the machine on which they were made."""

import contextlib
import json
import os
import pathlib
import platform
import re
import statistics


def describe_machine():
  """Returns one line: processor, cores, Python; no host name."""
  cpuinfo = pathlib.Path('/proc/cpuinfo').read_text()
  found = re.search(r'^model name\s*: *(.+)', cpuinfo, re.MULTILINE)
  model = found[1].strip() if found else platform.machine()
  cores = len(os.sched_getaffinity(0))
  return f'{cores} cores of {model}, Python {platform.python_version()}'


def median(values):
  """Returns the median of the values that are not None; None if none are."""
  known = [value for value in values if value is not None]
  return statistics.median(known) if known else None


def format_value(value, spec):
  return '-' if value is None else format(value, spec)


def format_range(values, spec):
  return f'{min(values):{spec}} to {max(values):{spec}}'


def format_table(header, rows, number_rule='---'):
  """Returns a Markdown table, a str; cells are str.

  Args:
    header: list of str.
    rows: list of list of str.
    number_rule: str, below the header of all columns but the first; '--:'
      aligns them to the right.
  """
  lines = ['| ' + ' | '.join(cells) + ' |' for cells in (header, *rows)]
  lines.insert(1, '|---|' + f'{number_rule}|' * (len(header) - 1))
  return '\n'.join(lines)


def print_table(header, rows):
  print(format_table(header, rows))


def save(folder, raw, print_report):
  """Writes raw.json and table.md, if there is a folder for them.

  Args:
    folder: path, or None.
    raw: what raw.json holds.
    print_report: callable that prints what table.md holds.
  """
  if not folder:
    return
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'raw.json').write_text(json.dumps(raw, indent=2) + '\n')
  with (
    open(folder / 'table.md', 'w') as file,
    contextlib.redirect_stdout(file),
  ):
    print_report()
