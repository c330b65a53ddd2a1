"""Whether --autotune picks the best: its choice beside the whole grid.

  python benchmarks/autotune.py [mbits ...]

1 ps and 2 workers train the mlp with async_sgd on one machine, in a network of
their own whose only link, loopback, carries that many Mbit/s for all of them
(tc tbf); that needs root. Each point of the grid is one trial, made as autotune
makes it, and autotune's climb goes over the same trials.
"""

import itertools
import json
import subprocess
import sys
import tempfile

import processes
import tables

from distmnist.launching import train_flags
from distmnist.sweeps import knobs as knobs_lib
from distmnist.sweeps import speed_trial

MBITS = 50, 200, 1000
SECS = 6.0
_LAUNCH = '--num_ps=1', '--num_workers=2', '--isolate=off'
_TRAIN = ('--model=mlp',)
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
  speeds, taken = json.loads(done.stdout.splitlines()[-1])
  best = max(speeds, key=lambda words: speeds[words] or 0)
  cells = [speeds[''], taken, speeds[taken], best, speeds[best]]
  shown = [f'{c:,.0f}' if isinstance(c, float) else c or '-' for c in cells]
  part = f'{100 * speeds[taken] / speeds[best]:.0f} %'
  return [f'{mbits:,}', *shown, part]


def measure_grid():
  """Prints [speed of each point, the point that the climb takes] as JSON."""
  knobs = knobs_lib.select(train_flags.check([*_TRAIN]), num_ps=1)
  speeds = {}
  with tempfile.TemporaryDirectory() as folder:
    runner = speed_trial.Runner([*_LAUNCH, *_TRAIN], folder, 2, SECS, [])

    def measure(words):
      point = ' '.join(words)
      if point not in speeds:
        speeds[point], why = runner.measure(words)
        print(f'{point or "as given"}: {speeds[point] or why}', file=sys.stderr)
      return speeds[point], ''

    _, taken = knobs_lib.climb(knobs, measure)
    for words in itertools.product(*([None, *knob.words] for knob in knobs)):
      measure([word for word in words if word])
  print(json.dumps([speeds, ' '.join(taken)]))


if __name__ == '__main__':
  if sys.argv[1:] == [_INSIDE]:
    measure_grid()
  else:
    processes.exit_by(main, *sys.argv[1:])
