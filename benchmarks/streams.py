"""Images per second read from files, beside the same images in memory.

  python benchmarks/streams.py [repeats]

MNIST-sized images of --dataset=synthetic, in 11 TFRecord files, with 1 ps and 2
workers, async, ten steps in a session.run: from arrays in memory, from a
tfrecord.Reader, and from a reader without files that copies from the arrays
(what reading ahead costs on its own). One repeat runs all of them in turn.
"""

import os
import pathlib
import sys
import tempfile

import processes
import runs
import tables

_PROBLEM = pathlib.Path(__file__).parent / 'stream_problem.py'
COMMON = [
  *(f'--problem={_PROBLEM}', '--optimizer=adam', '--learning_rate=0.001'),
  '--steps_per_run=10',
]
NETS = {
  'mlp': ['--net=mlp', '--batch_size=100', '--epochs=12'],
  'cnn': ['--net=cnn', '--batch_size=128', '--epochs=0.4'],
}
WAYS = 'memory', 'reader', 'tfrecord'


def main(repeats=3):
  print(f'{tables.describe_machine()}; medians of {repeats} runs\n')
  rows = []
  with tempfile.TemporaryDirectory() as folder:
    files = f'--files={folder}'
    os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
    for net, flags in NETS.items():
      found = {way: [] for way in WAYS}
      for _ in range(repeats):
        for way in WAYS:
          words = *COMMON, *flags, files, f'--from={way}'
          report = runs.launch(1, 2, *words)['report']
          found[way].append(report['examples_per_sec'])
      rates = {way: tables.median(values) for way, values in found.items()}
      for way, rate in rates.items():
        spread = tables.format_range(found[way], ',.0f')
        ratio = f'{rate / rates["memory"]:.2f}'
        rows.append([net, way, f'{rate:,.0f}', spread, ratio])
  header = ['net', 'from', 'images/s', 'of the runs', 'over memory']
  tables.print_table(header, rows)


if __name__ == '__main__':
  processes.exit_by(main, *map(int, sys.argv[1:]))
