"""What the dtype on the wire costs in accuracy, and saves in bytes.

  python benchmarks/wire.py [repeats]

The mlp of configs/quickstart.flags on 1 ps and 2 workers, the cnn of
configs/cnn_async.flags on 2 ps and 2 workers, each with float32, float16 and
bfloat16 between worker and ps, seeds 0, 1, ...; one after the other. Links are
those of this machine: where they are slower, see shaped_links.py.
"""

import sys

import runs

CASES = {
  'mlp': (1, [f'--flagfile={runs.REPO}/configs/quickstart.flags']),
  'cnn': (2, [f'--flagfile={runs.REPO}/configs/cnn_async.flags']),
}
DTYPES = 'float32', 'float16', 'bfloat16'


def main(repeats=3):
  print(f'{runs.describe_machine()}; medians of {repeats} runs\n', flush=True)
  rows = []
  for net, (num_ps, flags) in CASES.items():
    found = {dtype: [] for dtype in DTYPES}
    for seed in range(repeats):
      for dtype, reports in found.items():
        extra = [f'--wire_dtype={dtype}', f'--seed={seed}']
        reports.append(runs.launch(num_ps, 2, *flags, *extra)['report'])
    for dtype, reports in found.items():
      accuracies = [report['test_accuracy'] for report in reports]
      rates = [report['images_per_sec'] for report in reports]
      moved = [
        report['bytes_sent'] + report['bytes_received'] for report in reports
      ]
      rows.append(
        [
          net,
          dtype,
          f'{runs.median(accuracies):.4f}',
          f'{min(accuracies):.4f} to {max(accuracies):.4f}',
          f'{runs.median(moved) / 1e6:,.0f}',
          f'{runs.median(rates):,.0f}',
        ]
      )
  runs.print_table(
    ['net', 'on the wire', 'test accuracy', 'range', 'MB in all', 'images/s'],
    rows,
  )


if __name__ == '__main__':
  main(*(int(word) for word in sys.argv[1:]))
