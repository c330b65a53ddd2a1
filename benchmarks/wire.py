"""What the dtype on the wire costs in accuracy, and saves in bytes.

  python benchmarks/wire.py [repeats]

The mlp of configs/quickstart.flags on 1 ps and 2 workers, the cnn of
configs/cnn_async.flags on 2 ps and 2 workers, each with float32, float16 and
bfloat16 between worker and ps, with seeds 0, 1, ..., one after another. The
links are those of this machine; for slower ones see shaped_links.py.
"""

import sys

import processes
import runs
import tables

CASES = {
  'mlp': (1, [f'--flagfile={processes.REPO}/configs/quickstart.flags']),
  'cnn': (2, [f'--flagfile={processes.REPO}/configs/cnn_async.flags']),
}
DTYPES = 'float32', 'float16', 'bfloat16'


def main(repeats=3):
  print(f'{tables.describe_machine()}; medians of {repeats} runs\n', flush=True)
  rows = []
  for net, (num_ps, flags) in CASES.items():
    found = {dtype: [] for dtype in DTYPES}
    for seed in range(repeats):
      for dtype, reports in found.items():
        extra = [f'--wire_dtype={dtype}', f'--seed={seed}']
        reports.append(runs.launch(num_ps, 2, *flags, *extra)['report'])
    for dtype, reports in found.items():
      accuracies = [r['test_accuracy'] for r in reports]
      rate = tables.median(r['examples_per_sec'] for r in reports)
      moved = [r['bytes_sent'] + r['bytes_received'] for r in reports]
      cells = f'{tables.median(moved) / 1e6:,.0f}', f'{rate:,.0f}'
      accuracy = f'{tables.median(accuracies):.4f}'
      spread = tables.format_range(accuracies, '.4f')
      rows.append([net, dtype, accuracy, spread, *cells])
  header = ['net', 'on the wire', 'test accuracy', 'range']
  tables.print_table([*header, 'MB in all', 'images/s'], rows)


if __name__ == '__main__':
  processes.exit_by(main, *map(int, sys.argv[1:]))
