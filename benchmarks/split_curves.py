"""What cutting the variables changes: curves of a run before and after.

  python benchmarks/split_curves.py OUT.png [--workers=7] [--mbits=200]
      [--steps=300] [--model=cnn] [-- flags of train]

2 ps and the workers on this machine, each in a network namespace with a shaped
link of its own (network.py; it needs root). First with whole variables, one ps
after the other, as replica_device_setter places them (--partitioner=none
--placement=round_robin); then with shards that are balanced by bytes, the
default. OUT.png has the loss and the validation accuracy over time, and what
each ps sent per second; the table is printed.
"""

import pathlib
import statistics
import sys
import tempfile

import link_runs
import network as network_lib
import options
import plots
import processes
import tables

from distmnist.watching import metrics_file

NUM_PS = 2
CASES = {
  'whole variables, in turn': link_runs.IN_TURN,
  'shards, balanced': [],
}
LIMIT_SECS = 900


def run(flags, args):
  """Trains once; returns the lines of all metrics.jsonl, a list of dict."""
  with (
    tempfile.TemporaryDirectory() as folder,
    network_lib.Network(NUM_PS + args.workers, args.mbits) as network,
    processes.Group(link_runs.TICK_SECS) as group,
  ):
    logdir = pathlib.Path(folder) / 'run'
    flags = [
      *(f'--model={args.model}', '--batch_size=32', '--optimizer=adam'),
      *('--learning_rate=0.0005', f'--train_steps={args.steps}'),
      *(f'--logdir={logdir}', '--log_secs=1', '--start_timeout_secs=300'),
      *('--validation_images=500', f'--validation_steps={args.steps // 10}'),
      *('--save_secs=100000', *flags),
    ]
    tasks = network_lib.make_tasks(network, NUM_PS, args.workers, flags)
    group.run(
      [
        link_runs.make_process(network, host, task, folder)
        for host, task in enumerate(tasks)
      ],
      LIMIT_SECS,
    )
    return metrics_file.read(str(logdir))


def find_curves(lines):
  """Returns {name: list of (seconds since the first step, value)}."""
  chief = [line for line in lines if line['task'] == 'worker 0']
  start = next(x['time'] for x in chief if x.get('state') == 'training')
  curves = {
    'loss': [
      (line['time'] - start, line['loss'])
      for line in chief
      if line.get('state') == 'training' and line['loss'] is not None
    ],
    'validation accuracy': [
      (line['time'] - start, line['metrics']['accuracy'])
      for line in chief
      if line['kind'] == 'evaluation' and line['split'] == 'validation'
    ],
  }
  end = curves['validation accuracy'][-1][0]
  for i in range(NUM_PS):
    curves[f'ps {i}'] = [
      (line['time'] - start, line['sent_bytes_per_sec'] / 1e6)
      for line in lines
      if (line['task'], line['kind']) == (f'ps {i}', 'sample')
      and 0 <= line['time'] - start <= end
    ]
  return curves


def draw(found, title):
  """Returns a Figure: a panel per quantity, a line per case.

  Args:
    found: {case: curves}, as from find_curves.
    title: str.
  """
  figure = plots.make_figure((9.5, 5.5), title)
  panels = {
    'loss of worker 0': 'loss',
    'validation accuracy': 'validation accuracy',
    'ps 0 sends, MB/s': 'ps 0',
    'ps 1 sends, MB/s': 'ps 1',
  }
  most = max(y for c in found.values() for i in (0, 1) for _, y in c[f'ps {i}'])
  colors = plots.ORANGE, plots.BLUE
  all_axes = figure.subplots(2, 2, sharex=True).flat
  for axes, (name, key) in zip(all_axes, panels.items(), strict=True):
    for color, curves in zip(colors, found.values(), strict=True):
      axes.plot(*zip(*curves[key], strict=True), color=color, linewidth=1.3)
    axes.set_title(name, fontsize=9, loc='left')
    axes.grid(color=plots.FAINT, linewidth=0.6)
    plots.strip_axes(axes)
    axes.set_ylim(0, 1.05 * most if key.startswith('ps') else None)
  for axes in figure.axes[2:]:
    axes.set_xlabel('seconds since the first step', fontsize=8)
  figure.legend(
    figure.axes[0].lines,
    list(found),
    loc='outside upper right',
    fontsize=8,
    frameon=False,
  )
  return figure


def main(words):
  words, extra = options.cut(words)
  parser = options.make_parser(__doc__)
  parser.add_argument('out', metavar='OUT.png')
  parser.add_argument('--workers', type=int, default=7)
  parser.add_argument('--mbits', type=int, default=200)
  parser.add_argument('--steps', type=int, default=300)
  parser.add_argument('--model', default='cnn')
  args = parser.parse_args(words)
  found = {
    case: find_curves(run([*flags, *extra], args))
    for case, flags in CASES.items()
  }
  rows = [
    [
      case,
      f'{curves["validation accuracy"][-1][0]:.0f}',
      f'{curves["validation accuracy"][-1][1]:.3f}',
      *(
        f'{statistics.fmean(y for _, y in curves[f"ps {i}"]):.1f}'
        for i in range(NUM_PS)
      ),
    ]
    for case, curves in found.items()
  ]
  title = (
    f'{args.model}, async_sgd, {NUM_PS} ps, {args.workers} workers, '
    f'{args.mbits} Mbit/s, {args.steps} steps'
  )
  draw(found, title).savefig(args.out)
  print(f'{tables.describe_machine()}; {title}\n')
  tables.print_table(
    ('variables', 's', 'accuracy', 'ps 0, MB/s', 'ps 1, MB/s'), rows
  )


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
