"""The table and the figure of goodput.py."""

from lib import goodput_records, tables

HEADER = [
  *('rule', 'faults hit', 'faults', 'share of a core', 'goodput, %', 'range'),
  *('images/s without', 'with', 'steps', 's to them without', 'with'),
  *('faults in a run', 'steps lost in a run', 'broken', 'failed runs'),
]


def make_row(cell):
  """Returns the cells of a Cell's row, a list of str; medians over its runs."""
  good = [run for run in cell.runs if not run['problem']]
  by_faults = [
    [run for run in good if run['has_faults'] == has_faults]
    for has_faults in (False, True)
  ]
  percents = [
    100 * goodput_records.compute_goodput(pair)
    for pair in goodput_records.find_pairs(cell)
  ]
  medians = [
    {
      key: tables.median(run[key] for run in found)
      for key in ('secs', 'steps_lost')
    }
    for found in by_faults
  ]
  speed = tables.median(
    run['batches'] * run['batch_size'] / run['secs'] for run in by_faults[0]
  )
  goodput = tables.median(percents)
  useful = speed and goodput and speed * goodput / 100
  faults = tables.median(len(run['hits']) for run in by_faults[1])
  return [
    *(cell.rule, cell.role, ', '.join(cell.kinds), cell.how),
    tables.format_value(goodput, '.1f'),
    tables.format_range(percents, '.1f') if percents else '-',
    tables.format_value(speed, ',.0f'),
    tables.format_value(useful, ',.0f'),
    f'{cell.steps:,}',
    *(tables.format_value(found['secs'], '.1f') for found in medians),
    tables.format_value(faults, 'g'),
    tables.format_value(medians[1]['steps_lost'], ',.0f'),
    str(sum(bool(run['broken']) for run in good)),
    f'{len(cell.runs) - len(good)} of {len(cell.runs)}',
  ]


def print_table(cells):
  tables.print_table(HEADER, [make_row(cell) for cell in cells])
  for cell in cells:
    for run in cell.runs:
      for text in filter(None, [run['problem'], *run.get('broken', ())]):
        print(f'\n{cell}: {text}')


def build_figure(cells, title):
  """Returns a matplotlib Figure: images/s by second, one panel per Cell.

  Each shows the pair whose goodput is the median, or the one below it.
  """
  from lib import plots  # noqa: PLC0415 (the extra `plots`)

  panels = {}
  for cell in cells:
    pairs = goodput_records.find_pairs(cell)
    if not pairs:
      continue
    pairs.sort(key=goodput_records.compute_goodput)
    pair = pairs[(len(pairs) - 1) // 2]
    without, with_faults = (
      [run['batch_size'] * n for n in run['batches_by_second']] for run in pair
    )
    hits = [(hit.secs, hit.kind) for hit in pair[1]['hits']]
    percent = 100 * goodput_records.compute_goodput(pair)
    panels[f'{cell}: {percent:.1f} %'] = without, with_faults, hits
  return plots.build_seconds(panels, title)
