"""The table of strategies.py: one row per rule, and its columns."""

import csv

import plots
import tables

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
  ('wall_secs', 'wall s', '{:.0f}'.format),
  ('images_per_sec', 'images/s', '{:,.0f}'.format),
  ('pushes', 'pushes', '{:,}'.format),
  ('mb_pulled', 'MB pulled a worker', format_mb),
  ('mb_pushed', 'MB pushed a worker', format_mb),
  ('staleness_mean', 'staleness, mean', '{:.2f}'.format),
  ('staleness_max', 'max', '{}'.format),
  ('global_step', 'global steps', '{:,}'.format),
  ('images', 'images', '{:,}'.format),
]


def make_row(name, record, report):
  """Returns a row of the table: a dict with None for what is unknown.

  Args:
    name: str.
    record: dict from `Run.execute`.
    report: dict, or None; not every report has all the keys.
  """
  report = report or {}
  is_ok = is_complete(record, report, record['flags'])
  row = {'name': name, 'status': 'ok' if is_ok else 'failed'}
  row |= {key: report.get(key) if is_ok else None for key, *_ in COLUMNS}
  row['wall_secs'] = record['wall_secs']
  for way in ('pulled', 'pushed'):
    num_bytes = report.get(f'bytes_{way}')
    if is_ok and num_bytes is not None:
      row[f'mb_{way}'] = num_bytes / 1e6 / len(report['workers'])
  return row


def format_table(rows):
  """Returns the rows as a Markdown table; '-' stands for what is unknown."""
  table = []
  for row in rows:
    cells = [
      '-' if row[key] is None else format_value(row[key])
      for key, _, format_value in COLUMNS
    ]
    if row['status'] != 'ok':
      cells[0] = row['status']
    table.append([row['name'], *cells])
  header = ['rule', *(title for _, title, _ in COLUMNS)]
  return tables.format_table(header, table, '--:') + '\n'


def write_csv(rows, file):
  """Writes the rows with all their digits; an empty cell is unknown."""
  keys = ['name', 'status', *(key for key, *_ in COLUMNS)]
  writer = csv.DictWriter(file, keys, lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)


def describe(reports):
  """Returns a line on what was run; where runs differ, all values appear."""

  def find(name):
    found = {report['flags'].get(name) for report in reports}
    return '/'.join(sorted(str(value).removesuffix('.0') for value in found))

  return (
    f'{find("model")} on {find("dataset")}, {NUM_WORKERS} workers, '
    f'batch_size={find("batch_size")}, epochs={find("epochs")}'
  )


def write_results(results, out):
  """Writes the table and the plot of a list of (name, record, report)."""
  rows = [make_row(*result) for result in results]
  reports = [report for *_, report in results if report]
  machines = sorted({record['machine'] for _, record, _ in results})
  title = describe(reports) if reports else 'no run was complete'
  text = f'{title}; {" and ".join(machines)}\n\n{format_table(rows)}'
  (out / 'table.md').write_text(text, 'utf-8')
  with open(out / 'table.csv', 'w', encoding='utf-8') as file:
    write_csv(rows, file)
  plots.build_rules(rows, title, format_mb).savefig(out / 'plot.png')
