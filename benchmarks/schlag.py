"""Schlag's experiment by distmnist beside the classic script, start to end.

  python benchmarks/schlag.py [repeats]

784-100-10 sigmoid, plain SGD at 0.001, batches of 100, 1 ps and 3 workers that
make 20 passes over MNIST each: configs/schlag.flags, with a step in a
session.run and with ten, and benchmarks/peers/classic.py with the same numbers.
Seconds are from the command until nothing is left. The classic ps never ends
by itself: it is killed the moment the workers are gone. Both have one thread
for computing in each worker, and compute the test accuracy.
"""

import pathlib
import sys
import tempfile

import peers
import runs

NUM_WORKERS = 3
EPOCHS = 20
BATCH_SIZE = 100
LIMIT_SECS = 1800
# Of distmnist there are no images for validation either.
OURS = [f'--flagfile={runs.REPO}/configs/schlag.flags', '--validation_images=0']


def measure_classic(data, folder):
  """Returns (seconds in all, test accuracy)."""
  script = peers.Script(
    'classic.py', num_ps=1, num_workers=NUM_WORKERS, flags=('--leave',)
  )
  steps = EPOCHS * peers.NUM_IMAGES // BATCH_SIZE
  result = script.run(
    peers.Work('schlag', steps, 0, data, folder, sys.executable, LIMIT_SECS)
  )
  return result['wall_secs'], result['test_accuracy']


def measure_ours(*flags):
  result = runs.launch(1, NUM_WORKERS, *OURS, *flags)
  return result['end_secs'], result['report']['test_accuracy']


def main(repeats=3):
  print(f'{runs.describe_machine()}; medians of {repeats} runs\n', flush=True)
  found = {'classic script': [], 'distmnist': [], 'same, 10 steps a run': []}
  classic, ours, ours_10 = found.values()
  with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    (scratch / 'data').mkdir()
    peers.prepare_data(scratch / 'data')
    for i in range(repeats):
      folder = scratch / f'run_{i}'
      folder.mkdir()
      ours.append(measure_ours('--steps_per_run=1'))
      classic.append(measure_classic(scratch / 'data', folder))
      ours_10.append(measure_ours('--steps_per_run=10'))
  rows = []
  for name, results in found.items():
    ratios = [c / o for (c, _), (o, _) in zip(classic, results, strict=True)]
    secs, accuracy = (
      runs.median(values) for values in zip(*results, strict=True)
    )
    rows.append(
      [name, f'{secs:.1f}', f'{runs.median(ratios):.1f}', f'{accuracy:.3f}']
    )
  runs.print_table(['who', 'seconds in all', 'faster', 'test accuracy'], rows)


if __name__ == '__main__':
  peers.STOP.listen()
  main(*(int(word) for word in sys.argv[1:]))
