"""The pictures of the docs, all drawn from kept results.

  python benchmarks/pictures.py [--out=docs]
  python benchmarks/pictures.py --keep=steps
  python benchmarks/pictures.py --keep=rules --folder=results/strategies
  python benchmarks/pictures.py --keep=goodput --folder=FOLDER

benchmarks/results has what was measured, with the machine's name:

  rules.json     rules over seconds, bytes and accuracy (strategies.png), and
                 how stale their pushes were (staleness.png); from a folder of
                 strategies.py
  goodput.json   images/s second by second, with faults and without
                 (goodput.png); from a folder of goodput.py
  steps.json     where the time of a step goes (steps.png); measured by --keep
                 itself in two minutes: the mlp, batch 100, 1 ps (none for a
                 ring) and 2 workers, by one traced step a rule

Needs the extra `plots` of setup.py.
"""

import json
import pathlib
import shutil
import sys
import tempfile

from lib import (
  goodput_records,
  goodput_tables,
  options,
  plots,
  processes,
  runs,
  strategy_table,
  tables,
)

from distmnist.watching import timeline

RESULTS = processes.REPO / 'benchmarks' / 'results'
TRACED = 200
STEPS = {
  'async_sgd': [],
  'async_sgd, wire in float16': ['--wire_dtype=float16'],
  'sync_sgd': ['--strategy=sync_sgd'],
  'ssp': ['--strategy=ssp'],
  'easgd, T=10': ['--strategy=easgd', '--communication_period=10'],
  'ring_allreduce': ['--strategy=ring_allreduce'],
}


def measure_steps():
  """Returns {'title', 'rows': [name, {kind: milliseconds}]} of new runs."""
  rows = []
  for name, flags in STEPS.items():
    with tempfile.TemporaryDirectory() as folder:
      command = runs.make_command(
        int('ring' not in name),
        2,
        [
          *(f'--logdir={folder}', '--dataset=synthetic', '--batch_size=100'),
          *(f'--train_steps={4 * TRACED}', f'--trace_steps={TRACED}', *flags),
        ],
      )
      log = pathlib.Path(folder, 'screen')
      launch = processes.Process('launch', command, log, has_tasks=True)
      processes.Group().run([launch])
      trace = json.loads(pathlib.Path(folder, timeline.NAME).read_text())
    rows.append([name, _sum_parts(timeline.read(trace))])
  title = f'The mlp, batch 100, 2 workers; {tables.describe_machine()}'
  return {'title': title, 'rows': rows}


def _sum_parts(events):
  """Returns {kind: milliseconds} of a step of worker 0, on it and on the ps.

  What overlaps counts once: a moment in which it computes is `compute`, of the
  others one in which it pulls is `pull`, and so on; one without any event is
  `wait`.
  """
  mine = [e for e in events if e['args']['step'].startswith('worker 0,')]
  first = min(e['start'] for e in mine)
  last = max(e['start'] + e['micros'] for e in mine)
  edges = {first, last}
  for event in mine:
    edges |= {event['start'], event['start'] + event['micros']}
  edges = sorted(edges)
  parts = dict.fromkeys(('compute', 'pull', 'push', 'wait'), 0.0)
  for begin, end in zip(edges, edges[1:], strict=False):
    kinds = {
      e['kind']
      for e in mine
      if e['start'] <= begin and end <= e['start'] + e['micros']
    }
    kind = next((kind for kind in parts if kind in kinds), 'wait')
    parts[kind] += (end - begin) / 1000
  return parts


def draw_rules(kept, out):
  figure = plots.build_rules(
    kept['rows'], kept['title'], strategy_table.format_mb
  )
  figure.savefig(out / 'strategies.png')


def draw_staleness(kept, out):
  panels = {
    row['name']: {int(key): n for key, n in row['staleness'].items()}
    for row in kept['rows']
    if len(row['staleness']) > 1
  }
  title = f'Staleness of the pushes, in updates: {kept["title"]}'
  plots.build_staleness(panels, title).savefig(out / 'staleness.png')


def draw_goodput(kept, out):
  cells = [goodput_records.Cell(**cell) for cell in kept['cells']]
  for run in [run for cell in cells for run in cell.runs]:
    run['hits'] = [goodput_records.Hit(*hit) for hit in run.get('hits', ())]
  figure = goodput_tables.build_figure(cells, kept['title'])
  figure.savefig(out / 'goodput.png')


def draw_steps(kept, out):
  figure = plots.build_steps(kept['rows'], kept['title'])
  figure.savefig(out / 'steps.png')


# File of benchmarks/results: what draws from it.
PICTURES = {
  'rules': [draw_rules, draw_staleness],
  'goodput': [draw_goodput],
  'steps': [draw_steps],
}


def main(words):
  """Returns the exit code; `words` are those of the command line."""
  parser = options.make_parser(__doc__)
  add = parser.add_argument
  add('--out', type=pathlib.Path, default=processes.REPO / 'docs')
  add('--keep', choices=[*PICTURES], help='what to measure or take anew')
  add('--folder', type=pathlib.Path, help='results of strategies or goodput')
  args = parser.parse_args(words)
  if args.keep == 'steps':
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(measure_steps(), indent=1)
    (RESULTS / 'steps.json').write_text(text + '\n')
  elif args.keep:
    if args.folder is None:
      parser.error(f'--keep={args.keep} needs --folder: where its results are')
    RESULTS.mkdir(exist_ok=True)
    name = {'rules': 'rules.json', 'goodput': 'raw.json'}[args.keep]
    shutil.copy(args.folder / name, RESULTS / f'{args.keep}.json')
  for name, draws in PICTURES.items():
    path = RESULTS / f'{name}.json'
    if not path.exists():
      print(f'{path} is missing: see --keep={name}', file=sys.stderr)
      continue
    for draw in draws:
      draw(json.loads(path.read_text('utf-8')), args.out)
  return 0


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
