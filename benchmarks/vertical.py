"""A vertically split net beside the whole one.

  python benchmarks/vertical.py [repeats]

2 ps and 2 workers on this machine, in turn: the dnn whole, its weights pulled
and its gradients pushed; and cut into 2 and 4 slices, each computed on the ps
that holds it. Medians; `over whole` is relative to the first row of each rule.
"""

import sys

import processes
import runs
import tables

STEPS = 400
COMMON = [
  '--model=dnn',
  '--dataset=synthetic',
  '--optimizer=momentum',
  '--learning_rate=0.01',
  f'--train_steps={STEPS}',
]
RULES = 'async_sgd', 'sync_sgd'
SLICES = 1, 2, 4


def measure(rule, num_slices):
  """Returns (ms a step of a worker, MB a step over all workers' sockets)."""
  flags = [f'--strategy={rule}', f'--vertical_slices={num_slices}']
  report = runs.launch(2, 2, *COMMON, *flags)['report']
  steps = sum(worker['timed_steps'] for worker in report['workers'])
  secs = sum(worker['train_secs'] for worker in report['workers'])
  moved = report['bytes_sent'] + report['bytes_received']
  return 1000 * secs / steps, moved / steps / 1e6


def main(repeats=3):
  print(f'{tables.describe_machine()}; medians of {repeats} runs\n')
  found = {(rule, n): [] for rule in RULES for n in SLICES}
  for _ in range(repeats):
    for case, results in found.items():
      results.append(measure(*case))
  rows = []
  for (rule, num_slices), results in found.items():
    step_ms, megabytes = (
      tables.median(values) for values in zip(*results, strict=True)
    )
    if num_slices == 1:
      whole_ms = step_ms
    net = 'whole' if num_slices == 1 else f'{num_slices} slices'
    cells = [f'{step_ms:.1f}', f'{step_ms / whole_ms:.2f}', f'{megabytes:.2f}']
    rows.append([rule, net, *cells])
  tables.print_table(['rule', 'net', 'ms/step', 'over whole', 'MB/step'], rows)


if __name__ == '__main__':
  processes.exit_by(main, *map(int, sys.argv[1:]))
