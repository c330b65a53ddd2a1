"""Images per second of a cluster, beside one process with the same graph.

  python benchmarks/throughput.py [repeats]

In one run, in turn: one process with one thread; two such processes at the
same time without communication, which is the ceiling for two workers; the
cluster of 1 ps and 2 workers, async, sync and agn (an exchange every 10 steps),
with one thread per worker; and the clusters with 10 steps in a session.run.
"""

import concurrent.futures
import sys

import processes
import runs
import tables

COMMON = ['--dataset=synthetic', '--optimizer=adam', '--learning_rate=0.001']
# Epochs whose steps take a few seconds; a cluster shares the steps out.
MODELS = {
  'mlp': ['--model=mlp', '--batch_size=100', '--epochs=7'],
  'cnn': ['--model=cnn', '--batch_size=128', '--epochs=0.15'],
}
ONE_THREAD = [
  '--intra_op_parallelism_threads=1',
  '--inter_op_parallelism_threads=2',
]

TEN_STEPS = ['--steps_per_run=10']


def measure_alone(flags):
  """Returns images/s of one process."""
  return runs.launch(0, 1, *flags, *ONE_THREAD)['report']['images_per_sec']


def measure_two_alone(flags):
  """Returns images/s of two processes that know nothing of each other."""
  with concurrent.futures.ThreadPoolExecutor(2) as pool:
    return sum(pool.map(measure_alone, [flags, flags]))


def measure_cluster(flags):
  return runs.launch(1, 2, *flags)['report']['images_per_sec']


CASES = [
  ('one process, one thread', measure_alone, []),
  ('two processes, no communication', measure_two_alone, []),
  ('async, 1 ps + 2 workers', measure_cluster, []),
  ('sync, 1 ps + 2 workers', measure_cluster, ['--sync_replicas']),
  ('agn, 1 ps + 2 workers', measure_cluster, ['--strategy=agn']),
  ('async, 10 steps a run', measure_cluster, TEN_STEPS),
  ('sync, 10 steps a run', measure_cluster, ['--sync_replicas', *TEN_STEPS]),
  ('agn, 10 steps a run', measure_cluster, ['--strategy=agn', *TEN_STEPS]),
]


def main(repeats=3):
  print(f'{tables.describe_machine()}; medians of {repeats} runs\n')
  rows = []
  for model, model_flags in MODELS.items():
    found = {name: [] for name, _, _ in CASES}
    for _ in range(repeats):
      for name, measure, flags in CASES:
        found[name].append(measure([*COMMON, *model_flags, *flags]))
    medians = {name: tables.median(values) for name, values in found.items()}
    one, ceiling = list(medians.values())[:2]
    for name, rate in medians.items():
      ratios = f'{rate / one:.2f}', f'{rate / ceiling:.2f}'
      rows.append([model, name, f'{rate:,.0f}', *ratios])
  tables.print_table(
    ['model', 'who', 'images/s', 'over one process', 'over two alone'], rows
  )


if __name__ == '__main__':
  processes.exit_by(main, *map(int, sys.argv[1:]))
