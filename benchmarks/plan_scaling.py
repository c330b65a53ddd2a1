"""Where each rule stops scaling, by the plan: a figure, without any run.

  python benchmarks/plan_scaling.py [--model=vgg19] [--out=docs]

writes OUT/plan_scaling.png: the forecast of `python -m distmnist.plan` for 8,
64 and 256 workers, 1 to 32 ps, and links of 1, 10 and 100 Gbit/s, as steps per
second of each worker if nothing but the links takes time. A dot marks where
more ps no longer help: from there on the worker's link decides. It takes a few
minutes, as the plan builds the graph for each number of ps.
"""

import dataclasses
import pathlib
import sys

import options
import plots
import processes
from absl import flags
from absl.testing import flagsaver
from matplotlib import ticker

from distmnist import plan
from distmnist.training.problems import problem as problem_lib

RULES = {
  'sync_sgd': ['--strategy=sync_sgd'],
  'sync_sgd, a barrier a shard': [
    '--strategy=sync_sgd',
    '--sync_barrier=shard',
  ],
  'async_sgd': ['--strategy=async_sgd'],
  'async_sgd, a pull ahead': ['--strategy=async_sgd', '--pull_ahead=1'],
  'agn, T = 10': ['--strategy=agn', '--communication_period=10'],
  'ring_allreduce, no ps': ['--strategy=ring_allreduce'],
}
WITHOUT_PS = {'ring_allreduce, no ps'}
STYLES = {
  'sync_sgd': (plots.BLUE, '-'),
  'sync_sgd, a barrier a shard': (plots.BLUE, '--'),
  'async_sgd': (plots.ORANGE, '-'),
  'async_sgd, a pull ahead': (plots.ORANGE, ':'),
  'agn, T = 10': (plots.VIOLET, '-'),
  'ring_allreduce, no ps': (plots.GRAY, '-'),
}
NUMS_WORKERS = 8, 64, 256
NUMS_PS = 1, 2, 4, 8, 16, 32
GBITS = 1, 10, 100
# A gain from more ps that is below this counts as none.
_GAIN = 1.02


def compute_traffic(rule, num_ps, words):
  """Returns the traffic.Traffic of a rule of RULES, with the flags `words`."""
  shape = [f'--num_ps={num_ps}', f'--num_workers={NUMS_WORKERS[0]}']
  with flagsaver.flagsaver():
    flags.FLAGS(['plan', *words, *RULES[rule], *shape])
    return plan.build(plan.make_cluster(), problem_lib.from_flags())[-1]


def compute_all(words):
  """Returns {(rule, number of ps): traffic.Traffic}."""
  return {
    (rule, num_ps): compute_traffic(rule, num_ps, words)
    for rule in RULES
    for num_ps in ([0] if rule in WITHOUT_PS else NUMS_PS)
  }


def compute_speeds(traffics, rule, num_workers, gbits):
  """Returns {number of ps: steps a second of a worker}."""
  speeds = {}
  for (name, num_ps), traffic in traffics.items():
    if name == rule:
      planned = set_workers(traffic, num_workers)
      speeds[num_ps] = 1 / planned.compute_step_secs(gbits * 1e9 / 8)
  return speeds


def set_workers(traffic, num_workers):
  """Returns the Traffic of a cluster with `num_workers` workers."""
  changes = {'num_workers': num_workers}
  if not traffic.share_of_ps:
    # In a ring each sends all but its own part, of both sums and means.
    factor = (1 - 1 / num_workers) / (1 - 1 / traffic.num_workers)
    changes['pulled'] = traffic.pulled * factor
    changes['pushed'] = traffic.pushed * factor
  return dataclasses.replace(traffic, **changes)


def find_end(speeds):
  """Returns the fewest ps beyond which more do not help; None if all help."""
  best = max(speeds.values())
  end = min(n for n, speed in speeds.items() if speed * _GAIN >= best)
  return None if end == max(speeds) else end


def build_figure(traffics, title):
  """Returns the Figure; `traffics` is what `compute_all` returns."""
  figure = plots.make_figure((10, 8.5), title)
  all_axes = figure.subplots(
    len(NUMS_WORKERS), len(GBITS), sharex=True, sharey=True
  )
  for row, num_workers in zip(all_axes, NUMS_WORKERS, strict=True):
    for axes, gbits in zip(row, GBITS, strict=True):
      _draw(axes, traffics, num_workers, gbits)
      axes.set_title(
        f'{num_workers} workers, {gbits} Gbit/s', fontsize=9, loc='left'
      )
    row[0].set_ylabel('steps/s of a worker', fontsize=8)
  for axes in all_axes[-1]:
    axes.set_xlabel('ps', fontsize=8)
  figure.legend(
    *all_axes[0, 0].get_legend_handles_labels(),
    loc='outside lower center',
    ncols=3,
    fontsize=8,
    frameon=False,
  )
  return figure


def _draw(axes, traffics, num_workers, gbits):
  axes.set_xscale('log', base=2)
  axes.set_yscale('log')
  axes.set_xticks(NUMS_PS)
  axes.xaxis.set_major_formatter(ticker.ScalarFormatter())
  axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda y, _: f'{y:g}'))
  axes.grid(color=plots.FAINT, linewidth=0.6)
  axes.tick_params(which='both', labelsize=8, length=0, colors=plots.INK)
  axes.spines[:].set_visible(False)
  for rule, (color, line) in STYLES.items():
    speeds = compute_speeds(traffics, rule, num_workers, gbits)
    if rule in WITHOUT_PS:
      [speed] = speeds.values()
      speeds = dict.fromkeys(NUMS_PS, speed)
    axes.plot(*zip(*speeds.items(), strict=True), line, color=color, label=rule)
    end = None if rule in WITHOUT_PS else find_end(speeds)
    if end:
      axes.plot(end, speeds[end], 'o', color=color, markersize=4)


def main(words):
  """Writes the figure; `words` are those of the command line."""
  parser = options.make_parser(__doc__)
  parser.add_argument('--model', default='vgg19')
  parser.add_argument('--out', type=pathlib.Path, default='docs')
  args = parser.parse_args(words)
  given = [
    *('--dataset=synthetic', '--synthetic_image_size=32'),
    *('--synthetic_channels=3', f'--model={args.model}'),
  ]
  traffics = compute_all(given)
  megabytes = traffics['sync_sgd', 1].pulled / 1e6
  title = (
    f'Steps a second that the links allow: {args.model}, {megabytes:,.3g} MB '
    'pulled and pushed'
  )
  path = args.out / 'plan_scaling.png'
  build_figure(traffics, title).savefig(path)
  print(path)
  return 0


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
