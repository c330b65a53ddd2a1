"""Whether --autotune picks the best: its choice beside the whole grid.

  python benchmarks/autotune.py [mbits ...]

2 ps and 2 workers train the mlp with async_sgd on one machine, in a network of
their own whose only link, loopback, carries that many Mbit/s for all of them
(tc tbf); that needs root. MNIST must be in DISTMNIST_DATA_DIR or in
~/.cache/distmnist: there is no way out to a mirror. Each point of the grid is
one trial, made as autotune makes it, and autotune's climb goes over the same
trials. The best of many trials is partly the luckiest one, so its choice and
the three best are measured again, in turn, and those medians are compared.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile

import processes
import tables

from distmnist.launching import train_flags
from distmnist.sweeps import coordinate_search, speed_trial

MBITS = 50, 200, 1000
SECS = 6.0
NUM_BEST = 3
NUM_AGAIN = 3
_NUM_PS = 2
_LAUNCH = f'--num_ps={_NUM_PS}', '--num_workers=2', '--isolate=off'
_INSIDE = '--inside'


def main(*mbits):
  print(f'{tables.describe_machine()}; {SECS:g} s a trial\n', flush=True)
  rows = [find_row(int(rate)) for rate in mbits or MBITS]
  tables.print_table(
    ['Mbit/s', 'as given', 'taken', 'images/s', 'best', 'images/s', 'part'],
    rows,
  )


def find_row(mbits):
  """Returns a row of the table, list of str."""
  shaped = (
    'ip link set lo up && tc qdisc add dev lo root tbf'
    f' rate {mbits}mbit burst 256kb latency 400ms && exec "$@"'
  )
  command = ['unshare', '--net', 'sh', '-c', shaped, 'sh']
  done = subprocess.run(
    [*command, sys.executable, __file__, _INSIDE],
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  as_given, again, taken = json.loads(done.stdout.splitlines()[-1])
  medians = {point: statistics.median(seen) for point, seen in again.items()}
  best = max(medians, key=medians.get)
  cells = [as_given, taken, medians[taken], best, medians[best]]
  shown = [f'{c:,.0f}' if isinstance(c, float) else c or '-' for c in cells]
  part = f'{100 * medians[taken] / medians[best]:.0f} %'
  return [f'{mbits:,}', *shown, part]


def measure_grid():
  """Prints [speed as given, speeds of the best points, the one taken]."""
  data_dir = os.environ.get('DISTMNIST_DATA_DIR') or '~/.cache/distmnist'
  train = ['--model=mlp', f'--data_dir={data_dir}']
  settings = coordinate_search.select(train_flags.check(train), _NUM_PS)
  speeds, again = {}, {}
  with tempfile.TemporaryDirectory() as folder:
    runner = speed_trial.Runner([*_LAUNCH, *train], folder, 2, SECS, [])

    def try_once(point):
      speed, why = runner.measure(point.split())
      print(f'{point or "as given"}: {speed or why}', file=sys.stderr)
      return speed

    def measure(words):
      point = ' '.join(words)
      if point not in speeds:
        speeds[point] = try_once(point)
      return speeds[point], ''

    _, taken = coordinate_search.climb(settings, measure)
    for words in itertools.product(
      *([None, *setting.words] for setting in settings)
    ):
      measure([word for word in words if word])
    ranked = sorted(filter(speeds.get, speeds), key=speeds.get, reverse=True)
    taken = ' '.join(taken)
    for point in NUM_AGAIN * list({taken, *ranked[:NUM_BEST]}):
      again.setdefault(point, []).append(try_once(point))
  print(json.dumps([speeds[''], again, taken]))


if __name__ == '__main__':
  if sys.argv[1:] == [_INSIDE]:
    measure_grid()
  else:
    processes.exit_by(main, *sys.argv[1:])
