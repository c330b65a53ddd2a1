"""Schlag's experiment in distmnist and in the classic script, start to end.

  python benchmarks/schlag.py [repeats]

784-100-10 sigmoid, plain SGD at 0.001, batches of 100, 1 ps and 3 workers that
each make 20 passes over MNIST: configs/schlag.flags, with one step and with ten
steps in a session.run, and benchmarks/peers/classic.py with the same numbers.
The last rows have another rule, downpour with T = 10 and 20: a worker takes T
steps on a copy of its own and pushes the sum of their gradients, by which the
center makes the same T steps at once.
Seconds are from the command until nothing is left. The classic ps never ends
on its own: it is killed the moment the workers are gone. Both have one
computing thread in each worker, and compute the test accuracy.
"""

import pathlib
import sys
import tempfile

import peers
from lib import options, peer_kinds, peer_scripts, processes, runs, tables

NUM_WORKERS = 3
EPOCHS = 20
BATCH_SIZE = 100
LIMIT_SECS = 1800
# Like the classic script, without images for validation.
OURS = [
  f'--flagfile={processes.REPO}/configs/schlag.flags',
  '--validation_images=0',
]
CLASSIC = 'the classic script'
CASES = {
  'async_sgd': ['--steps_per_run=1'],
  'async_sgd, 10 steps a run': ['--steps_per_run=10'],
}
for period in (10, 20):
  CASES[f'downpour, T={period}, {period} steps a run'] = [
    '--strategy=downpour',
    f'--n_fetch={period}',
    f'--n_push={period}',
    f'--steps_per_run={period}',
  ]


def measure_classic(data, folder):
  """Returns (seconds in all, test accuracy)."""
  script = peer_scripts.Script(
    'classic.py', num_ps=1, num_workers=NUM_WORKERS, flags=('--leave',)
  )
  steps = EPOCHS * peers.NUM_IMAGES // BATCH_SIZE
  result = script.run(
    peer_kinds.Work(
      'schlag', steps, 0, data, folder, sys.executable, LIMIT_SECS
    )
  )
  return result['wall_secs'], result['test_accuracy']


def measure_ours(*flags):
  result = runs.launch(1, NUM_WORKERS, *OURS, *flags)
  return result['end_secs'], result['report']['test_accuracy']


def main(words):
  parser = options.make_parser(__doc__)
  parser.add_argument('repeats', nargs='?', type=options.count, default=3)
  repeats = parser.parse_args(words).repeats
  print(f'{tables.describe_machine()}; medians of {repeats} runs\n', flush=True)
  found = {name: [] for name in (CLASSIC, *CASES)}
  with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    (scratch / 'data').mkdir()
    peers.prepare_data(scratch / 'data')
    for i in range(repeats):
      folder = scratch / f'run_{i}'
      folder.mkdir()
      found[CLASSIC].append(measure_classic(scratch / 'data', folder))
      for name, flags in CASES.items():
        found[name].append(measure_ours(*flags))
  rows = []
  for name, results in found.items():
    ratios = [
      c / o for (c, _), (o, _) in zip(found[CLASSIC], results, strict=True)
    ]
    secs, accuracy = (
      tables.median(values) for values in zip(*results, strict=True)
    )
    rows.append(
      [name, f'{secs:.1f}', f'{tables.median(ratios):.1f}', f'{accuracy:.3f}']
    )
  tables.print_table(['who', 'seconds in all', 'faster', 'test accuracy'], rows)


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
