"""The table and the figure of peers.py, from its raw results."""

from lib import peer_kinds, peer_list, tables

MEASURES = (
  'examples_per_sec',
  'first_step_secs',
  'all_step_secs',
  'gone_secs',
  'peak_mb',
  'cpu_secs',
  'test_accuracy',
)


def compute_medians(results, net):
  """Computes the medians of a net's peers.

  Args:
    results: list of raw results, dicts; see `run_all`.
    net: str.

  Returns:
    dict of peer -> dict: each measure's median, None where there is none;
    over_ceiling and over_ddp, the medians of the ratios within a repeat, to
    ceiling_10 for those with 10 steps a run; status and reason, of the first
    run that is not ok, if any; num_ok and num_runs, of the runs for speed.
  """
  rows = {}
  mine = [r for r in results if r['net'] == net]
  speeds = {
    (r['peer'], r['repeat']): r['examples_per_sec']
    for r in mine
    if r['mode'] == 'speed' and r['status'] == 'ok' and r['examples_per_sec']
  }
  for name in dict.fromkeys(r['peer'] for r in mine):
    ceiling = 'ceiling_10' if name.endswith('_10') else 'ceiling'
    runs_of_peer = [r for r in mine if r['peer'] == name]
    speed = [r for r in runs_of_peer if r['mode'] == 'speed']
    good = [r for r in speed if r['status'] == 'ok']
    bad = [r for r in runs_of_peer if r['status'] != 'ok']
    row = {
      'status': bad[0]['status'] if bad else 'ok',
      'reason': bad[0]['reason'] if bad else '',
      'num_ok': len(good),
      'num_runs': len(speed),
      'is_killed': any(r['is_killed'] for r in good),
    }
    for key in MEASURES:
      row[key] = tables.median(r.get(key) for r in good)
    for key, other in (('over_ceiling', ceiling), ('over_ddp', 'torch_ddp')):
      row[key] = tables.median(
        speeds[name, r['repeat']] / speeds[other, r['repeat']]
        for r in good
        if {(name, r['repeat']), (other, r['repeat'])} <= speeds.keys()
      )
    raced = [
      r for r in runs_of_peer if r['mode'] == 'accuracy' and r['status'] == 'ok'
    ]
    times = [r['to_accuracy_secs'] for r in raced]
    row['to_accuracy_secs'] = tables.median(times)
    row['num_missed'] = times.count(None)
    rows[name] = row
  return rows


def make_header(net):
  return [
    *('who', 'images/s', 'over the ceiling', 'over DDP'),
    *('first step, s', 'of every worker, s', 'last step to all gone, s'),
    *(
      f's to {100 * peer_list.TARGETS[net]:.0f} %',
      'peak MB',
      'CPU s',
      'test accuracy',
    ),
  ]


def make_rows(rows, net):
  """Returns the table's cells; `rows` is what `compute_medians` returns."""
  table = []
  for name, row in rows.items():
    title = peer_list.TITLES[name]
    if row['status'] == 'skipped' or not row['num_ok']:
      table.append([title, row['status'], *['-'] * 9])
      continue
    if row['num_ok'] < row['num_runs']:
      title += f' ({row["num_ok"]} of {row["num_runs"]} runs)'
    gone = tables.format_value(row['gone_secs'], '.1f')
    reached = tables.format_value(row['to_accuracy_secs'], '.1f')
    if row['num_missed']:
      reached += f' ({row["num_missed"]} never)'
    table.append(
      [
        title,
        tables.format_value(row['examples_per_sec'], ',.0f'),
        tables.format_value(row['over_ceiling'], '.2f'),
        tables.format_value(row['over_ddp'], '.2f'),
        tables.format_value(row['first_step_secs'], '.1f'),
        tables.format_value(row['all_step_secs'], '.1f'),
        gone + ', killed' * row['is_killed'],
        reached,
        tables.format_value(row['peak_mb'], ',.0f'),
        tables.format_value(row['cpu_secs'], ',.0f'),
        tables.format_value(row['test_accuracy'], '.4f'),
      ]
    )
  return table


def print_tables(results):
  for net in dict.fromkeys(r['net'] for r in results):
    rows = compute_medians(results, net)
    batch_size = peer_kinds.common.NETS[net].batch_size
    print(f'\n{net}, batch {batch_size}, {peer_kinds.NUM_WORKERS} workers\n')
    tables.print_table(make_header(net), make_rows(rows, net))
    for name, row in rows.items():
      if row['status'] != 'ok':
        print(f'\n{peer_list.TITLES[name]} {row["status"]}: {row["reason"]}')


def build_figure(results, title):
  """Returns a matplotlib Figure: bars of images/s, one panel per net."""
  from lib import plots  # noqa: PLC0415 (the extra `plots`)

  panels = {}
  for net in dict.fromkeys(r['net'] for r in results):
    panels[f'{net}: images/s'] = [
      (
        name,
        row['examples_per_sec'],
        row['status'],
        isinstance(peer_list.PEERS[name], peer_kinds.Distmnist)
        and name not in peer_list.CEILINGS,
      )
      for name, row in compute_medians(results, net).items()
    ]
  return plots.build_bars(panels, title)
