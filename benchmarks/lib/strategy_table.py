"""The table of strategies.py: one row per rule, and its columns."""

import collections
import csv
import json
import statistics

from lib import plots, tables

NUM_WORKERS = 2


def is_complete(record, report, flags):
  """Whether a run need not be repeated.

  Args:
    record: dict from `Run.execute`, or None.
    report: dict, the report.json of the run, or None.
    flags: dict of str, the flags that it should have been run with.
  """
  return (
    record is not None
    and record['flags'] == flags
    and record['exit_code'] == 0
    and (report or {}).get('test_accuracy') is not None
  )


def format_mb(value):
  return f'{value:,.0f}' if value >= 100 else f'{value:.3g}'


# Key in a row and in the CSV, title, format of a value.
COLUMNS = [
  ('test_accuracy', 'test accuracy', '{:.4f}'.format),
  ('test_accuracy_std', '±', '{:.4f}'.format),
  ('num_seeds', 'seeds', '{}'.format),
  ('wall_secs', 'wall s', '{:.0f}'.format),
  ('examples_per_sec', 'images/s', '{:,.0f}'.format),
  ('pushes', 'pushes', '{:,.0f}'.format),
  ('mb_pulled', 'MB pulled a worker', format_mb),
  ('mb_pushed', 'MB pushed a worker', format_mb),
  ('staleness_mean', 'staleness, mean', '{:.2f}'.format),
  ('staleness_max', 'max', '{}'.format),
  ('global_step', 'global steps', '{:,.0f}'.format),
  ('examples', 'images', '{:,.0f}'.format),
]
# What means nothing on a machine that does something else as well.
SPEEDS = 'wall_secs', 'examples_per_sec'


def make_row(name, results, is_busy=False):
  """Returns a row of the table: a dict with None for what is unknown.

  Its numbers are means over the seeds whose runs are complete, but for the
  largest staleness; `accuracies` has the test accuracy of each, `staleness`
  how many pushes of all seeds had which staleness ({str: int}).

  Args:
    name: str.
    results: list of (record, report): a dict from `Run.execute`, and a dict or
      None; not every report has all the keys.
    is_busy: whether to leave out SPEEDS.
  """
  done = [
    _read_numbers(record, report)
    for record, report in results
    if is_complete(record, report, record['flags'])
  ]
  row = {'name': name, 'status': 'ok' if done else 'failed'}
  if 0 < len(done) < len(results):
    row['status'] = f'{len(results) - len(done)} of {len(results)} failed'
  for key, *_ in COLUMNS:
    values = [run[key] for run in done if run.get(key) is not None]
    join = max if key == 'staleness_max' else statistics.fmean
    row[key] = join(values) if values else None
  accuracies = [run['test_accuracy'] for run in done]
  row |= {'accuracies': accuracies, 'num_seeds': len(done)}
  row['staleness'] = _sum_staleness(done)
  if len(done) > 1:
    row['test_accuracy_std'] = statistics.stdev(accuracies)
  return row | (dict.fromkeys(SPEEDS) if is_busy else {})


def _sum_staleness(reports):
  found = collections.Counter()
  for report in reports:
    for worker in report.get('workers', ()):
      found.update(worker.get('staleness') or {})
  return dict(sorted(found.items(), key=lambda pair: int(pair[0])))


def _read_numbers(record, report):
  numbers = report | {'wall_secs': record['wall_secs']}
  for way in ('pulled', 'pushed'):
    num_bytes = report.get(f'bytes_{way}')
    if num_bytes is not None:
      numbers[f'mb_{way}'] = num_bytes / 1e6 / len(report['workers'])
  return numbers


def format_table(rows):
  """Returns the rows as a Markdown table; '-' stands for what is unknown.

  A column of which nothing is known is left out.
  """
  columns = [
    column
    for column in COLUMNS
    if any(row[column[0]] is not None for row in rows)
  ]
  table = []
  for row in rows:
    cells = [
      '-' if row[key] is None else format_value(row[key])
      for key, _, format_value in columns
    ]
    if not row['num_seeds']:
      cells[0] = row['status']
    table.append([row['name'], *cells])
  header = ['rule', *(title for _, title, _ in columns)]
  return tables.format_table(header, table, '--:') + '\n'


def write_csv(rows, file):
  """Writes the rows with all their digits; an empty cell is unknown."""
  keys = ['name', 'status', *(key for key, *_ in COLUMNS)]
  writer = csv.DictWriter(
    file, keys, extrasaction='ignore', lineterminator='\n'
  )
  writer.writeheader()
  writer.writerows(rows)


def describe(reports):
  """Returns a line on what was run; where runs differ, all values appear."""

  def find(name):
    found = {report['flags'].get(name) for report in reports}
    return '/'.join(sorted(str(value).removesuffix('.0') for value in found))

  return (
    f'{find("model")} on {find("dataset")}, {NUM_WORKERS} workers, '
    f'batch_size={find("batch_size")}, epochs={find("epochs")}, '
    f'seeds {find("seed")}'
  )


def write_results(results, out, is_busy):
  """Writes the table and the plot.

  Args:
    results: {name: list of (record, report)}, a pair for each seed.
    out: path, a folder.
    is_busy: whether to leave out SPEEDS.
  """
  rows = [make_row(name, each, is_busy) for name, each in results.items()]
  pairs = [pair for each in results.values() for pair in each]
  reports = [report for _, report in pairs if report]
  machines = sorted({record['machine'] for record, _ in pairs})
  title = describe(reports) if reports else 'no run was complete'
  text = f'{title}; {" and ".join(machines)}\n\n{format_table(rows)}'
  (out / 'table.md').write_text(text, 'utf-8')
  with open(out / 'table.csv', 'w', encoding='utf-8') as file:
    write_csv(rows, file)
  # What pictures.py keeps.
  kept = json.dumps({'title': title, 'rows': rows}, indent=1)
  (out / 'rules.json').write_text(kept + '\n', 'utf-8')
  figure = plots.build_rules(rows, title, format_mb)
  figure.savefig(out / 'plot.png')
  figure.savefig(out / 'plot.svg', metadata={'Date': None})
