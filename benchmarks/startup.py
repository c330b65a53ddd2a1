"""How long a cluster takes to start, and to be gone.

  python benchmarks/startup.py [repeats]

Measured from outside: from the command to the chief's first step on the
screen, and from its last step to the launcher's exit, when no process is left
(which includes the end barrier, the test accuracy and the report). The same run
also times a bare `import tensorflow`, for comparison.
"""

import subprocess
import sys
import time

from lib import options, processes, runs, tables

CASES = [
  ('async, 1 ps + 2 workers', 1, 2, [], []),
  ('sync, 1 ps + 2 workers', 1, 2, [], ['--sync_replicas']),
  ('async, 2 ps + 2 workers', 2, 2, [], []),
  ('async, 1 ps + 3 workers', 1, 3, [], []),
  ('same, a Python a task', 1, 3, ['--nofork_tasks'], []),
]
FLAGS = ['--flagfile=configs/smoke.flags']


def time_import():
  start = time.monotonic()
  subprocess.run(
    [sys.executable, '-c', 'import tensorflow'],
    stderr=subprocess.DEVNULL,
    check=True,
  )
  return time.monotonic() - start


def main(words):
  parser = options.make_parser(__doc__)
  parser.add_argument('repeats', nargs='?', type=options.count, default=5)
  repeats = parser.parse_args(words).repeats
  imports, found = [], {case[0]: [] for case in CASES}
  for _ in range(repeats):
    imports.append(time_import())
    for name, num_ps, num_workers, launch_flags, flags in CASES:
      found[name].append(
        runs.launch(
          num_ps, num_workers, *FLAGS, *flags, launch_flags=launch_flags
        )
      )
  bare = tables.median(imports)
  print(f'{tables.describe_machine()}; medians of {repeats} runs')
  print(f'bare `import tensorflow`: {bare:.2f} s\n')
  rows = []
  for name, results in found.items():
    first = tables.median(r['first_step_secs'] for r in results)
    gone = [r['end_secs'] - r['last_step_secs'] for r in results]
    cells = [f'{first:.2f} s', f'{first / bare:.2f}']
    cells += [f'{tables.median(gone):.2f} s', f'{max(gone):.2f} s']
    rows.append([name, *cells])
  header = [
    *('cluster', 'command to first step', 'over bare import'),
    *('last step to all gone', 'worst'),
  ]
  tables.print_table(header, rows)


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
