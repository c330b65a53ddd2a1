"""Where the links decide: each task on a host of its own, at 200 Mbit/s.

  python benchmarks/links.py [--repeats=5] [--cases=NAME,...]
      [--mbits=200] [--model=vgg19] [--steps=N] [--out=FOLDER]

3 workers and 1 to 3 ps on this machine, each in a network namespace with one
link to a switch, shaped both ways (network.py): nothing of the machine's own
network is touched, and all is gone at the end. It needs root, and says so if
run without. vgg19 at 32 x 32 has 156 MB to pull and as much to push in each
step; with one image per batch there is next to nothing to compute. The cases:

  one_ps            sync_sgd, the whole center on one ps
  round_robin       2 ps, as TensorFlow does it: --partitioner=none
                    --placement=round_robin
  balanced          2 ps, as distmnist does it: shards, balanced by bytes
  shard             balanced, and --sync_barrier=shard
  balanced_3        balanced, with 3 ps; shard_3 likewise
  ring              no ps, ring_allreduce; ring_whole with --bucket_mib=0
  async_...         one_ps, round_robin and balanced under async_sgd
  pull_ahead        async_balanced, and --pull_ahead=1
  float16           async_balanced, and --wire_dtype=float16
  agn               2 ps, balanced; --strategy=agn --communication_period=10

One repeat runs all cases one after another, and ratios are taken within a
repeat; the tables have medians. The columns:

  s/step       seconds of a worker's local step, after its first, which sets up
               the graph. For agn, whole periods count. When each worker has
               made its steps (--steps), the tasks are killed: an evaluation and
               a checkpoint would move the center again, for longer than we
               measure.
  the plan     what `python -m distmnist.plan` forecasts for such links, in
               seconds a step: nothing but the busiest one counts.
  off by       by how much that is less (-) or more (+) than what was measured.
  busiest      the part of its rate that the busiest of all links carried in its
               busier direction, headers included. If all pull and then all
               push, in turn, that is half.
  cores busy   CPU seconds of all tasks per second. Near the machine's number of
               cores, they decide and not the links: lower --mbits.

A repeat takes 20 minutes. A case that fails is named with its last lines, the
others go on, and the exit code is 1.
"""

import pathlib
import sys
import time

from lib import link_runs, network, options, processes, tables
from lib.link_runs import CASES

# (case, the slower one, how many times as fast it ought to be).
TARGETS = [
  ('balanced', 'one_ps', 1.7),
  ('balanced', 'round_robin', 1.3),
  ('async_balanced', 'async_one_ps', 1.7),
  ('async_balanced', 'async_round_robin', 1.3),
  ('shard', 'balanced', 1.5),
  ('shard_3', 'balanced_3', 1.5),
  ('pull_ahead', 'async_balanced', 1.3),
  ('float16', 'async_balanced', 1.7),
  ('agn', 'async_balanced', 5.0),
]


def print_tables(results, plans):
  """Prints what was measured, and the ratios.

  Args:
    results: list of dict, as `main` collects them.
    plans: dict of case -> what `link_runs.read_plan` returned.
  """
  good = [r for r in results if r['status'] == 'ok']
  tables.print_table(
    [
      *('case', 'MB/step', 'steps/s of all', 's/step', 'the plan', 'off by'),
      *('busiest link', 'cores busy'),
    ],
    [make_row(name, plan, results) for name, plan in plans.items()],
  )
  ratios = compute_ratios(good)
  if ratios:
    print()
    rows = []
    for (fast, slow, target), found in ratios.items():
      numbers = tables.median(found), min(found), max(found)
      cells = [*(f'{number:.2f}' for number in numbers), f'{target:g}']
      cells.append('hit' if numbers[0] >= target else 'missed')
      rows.append([CASES[fast].title, CASES[slow].title, *cells])
    header = ['', 'over', 'times as fast', 'from', 'to', 'target', '']
    tables.print_table(header, rows)
  for result in results:
    if result['status'] != 'ok':
      print(f'\n{result["case"]} failed: {result["reason"]}')


def make_row(name, plan, results):
  """Returns the cells of a case; `plan` is what `read_plan` returned."""
  mine = [r for r in results if r['case'] == name]
  good = [r for r in mine if r['status'] == 'ok']
  title = CASES[name].title
  if not good:
    return [title, 'failed', *['-'] * 6]
  if len(good) < len(mine):
    title += f' ({len(mine) - len(good)} failed)'
  step_secs, busiest, cores_busy = (
    tables.median(r[key] for r in good)
    for key in ('step_secs', 'busiest', 'cores_busy')
  )
  pulled, pushed, plan_secs = plan
  return [
    title,
    f'{(pulled + pushed) / 1e6:,.1f}',
    f'{link_runs.NUM_WORKERS / step_secs:.3g}',
    f'{step_secs:.3g}',
    f'{plan_secs:.3g}',
    f'{100 * compute_error(plan_secs, step_secs):+.0f} %',
    f'{100 * busiest:.0f} %',
    f'{cores_busy:.2f}',
  ]


def compute_error(forecast, measured):
  """Returns by what part of the measured value a forecast exceeds it."""
  return forecast / measured - 1


def compute_ratios(results):
  """Returns dict of element of TARGETS -> list of float, one per repeat.

  Args:
    results: list of dict, of the runs that succeeded.
  """
  secs = {(r['repeat'], r['case']): r['step_secs'] for r in results}
  ratios = {}
  for fast, slow, target in TARGETS:
    for repeat in sorted({r['repeat'] for r in results}):
      if (repeat, fast) in secs and (repeat, slow) in secs:
        ratio = secs[repeat, slow] / secs[repeat, fast]
        ratios.setdefault((fast, slow, target), []).append(ratio)
  return ratios


# ---- The program ----
def parse_args(words):
  steps = ', '.join(f'{name} {case.steps}' for name, case in CASES.items())
  parser, count = options.make_parser(__doc__), options.count
  add = parser.add_argument
  add('--repeats', type=count, default=5)
  add('--cases', type=options.names_of(CASES), default=list(CASES))
  add('--mbits', type=count, default=200, help='of a link, each way')
  add('--model', default='vgg19', help='as of train')
  add('--steps', type=count, help=f'of a worker; by default {steps}')
  add('--limit_secs', type=float, default=600, help='of one run')
  add('--out', type=pathlib.Path, help='folder: raw.json, table.md')
  args = parser.parse_args(words)
  args.cases = [name for name in CASES if name in args.cases]
  return args


def measure(name, args):
  """Runs a case once, says on stderr how it went; returns its result."""
  start = time.monotonic()
  try:
    result = {'status': 'ok', **link_runs.measure(CASES[name], args)}
    text = f'{result["step_secs"]:.3g} s a step'
  except processes.ProcessError as error:
    result = {'status': 'failed', 'reason': str(error)}
    text = f'failed: {error}'
  wall_secs = time.monotonic() - start
  print(f'{text} (run of {wall_secs:.0f} s)', file=sys.stderr, flush=True)
  return {'case': name, 'wall_secs': wall_secs, **result}


def main(words):
  """Returns the exit code; `words` are those of the command line."""
  args = parse_args(words)
  try:
    to, fro = network.measure_link(args.mbits)
  except network.CannotError as error:
    print(f'skipped: {error}')
    return 0
  head = (
    f'{tables.describe_machine()}; {args.model}, {link_runs.NUM_WORKERS} '
    f'workers; medians of {args.repeats} runs\na link of {args.mbits:,} Mbit/s '
    f'carries {to:,.0f} Mbit/s to and {fro:,.0f} fro of TCP, at the same time\n'
  )
  print(head, flush=True)
  plans = {n: link_runs.read_plan(CASES[n], args) for n in args.cases}
  results = []

  def report():
    print(head)
    print_tables(results, plans)

  for repeat in range(args.repeats):
    for name in args.cases:
      print(f'{repeat} {name}: ', end='', file=sys.stderr, flush=True)
      results.append({'repeat': repeat, **measure(name, args)})
      raw = {'head': head, 'plans': plans, 'results': results}
      tables.save(args.out, raw, report)
  print_tables(results, plans)
  return int(any(r['status'] != 'ok' for r in results))


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
