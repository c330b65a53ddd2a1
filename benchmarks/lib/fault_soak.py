"""One long run with a fault every few seconds, and the memory of its tasks."""

import random
import sys
import tempfile
import time

from lib import fault_kinds, fault_run, tables, usage

KINDS = 'kill', 'term', 'freeze'


def soak(rule, flags, every_secs, seed):
  """Runs to the end with a fault every `every_secs`; returns a problem.

  A leak shows as a higher peak in the second half of a process's life than in
  the first; only processes that lived for over a minute and a half count.
  """
  draw = random.Random(seed)
  faults, memory = [], {}
  start = time.monotonic()
  with tempfile.TemporaryDirectory() as folder:
    run = fault_run.Run(folder, flags)
    try:
      next_fault = start + every_secs
      while run.is_running:
        run.wait_until(lambda: False, 1.0)
        now, pids = time.monotonic(), run.find_pids()
        for name, pid in pids.items():
          if megabytes := usage.read_kb(pid, 'VmRSS') / 1000:
            memory.setdefault((name, pid), []).append((now, megabytes))
        fault = fault_kinds.draw(draw, list(run.logs), KINDS)
        if now > next_fault and fault.task in pids:
          next_fault = max(now, next_fault + every_secs)
          fault_kinds.inject(run, fault)
          faults.append(fault)
          print(f'{now - start:.0f} s: {fault}', file=sys.stderr, flush=True)
      problem, report = run.finish()
    finally:
      run.close()
  minutes = (time.monotonic() - start) / 60
  print(
    f'{tables.describe_machine()}; {rule}, {run.shape[0]} ps, '
    f'{run.shape[1]} workers'
  )
  print(
    f'{minutes:.1f} minutes, {sum(f.is_survived for f in faults)} of '
    f'{len(faults)} faults survived, {problem or "ended with 0"}'
  )
  if report:
    print(
      f'test accuracy {report["test_accuracy"]:.4f} at step '
      f'{report["global_step"]}\n'
    )
  print_memory(memory)
  return problem


def print_memory(memory):
  """Prints the peaks of each task's processes.

  Args:
    memory: {(task, pid): [(time in seconds, MB), ...]}.
  """
  rows = {}
  for (name, _), samples in memory.items():
    start, end = samples[0][0], samples[-1][0]
    if end - start > 90:
      middle = (start + end) / 2
      first = max(mb for t, mb in samples if t <= middle)
      second = max(mb for t, mb in samples if t > middle)
      rows.setdefault(name, []).append((end - start, first, second))
  table = []
  for name, lives in sorted(rows.items()):
    secs, first, second = max(lives)
    growths = [second - first for _, first, second in lives]
    cells = [f'{secs:.0f}', f'{first:.0f}', f'{second:.0f}']
    cells += [f'{tables.median(growths):+.0f}', f'{max(growths):+.0f}']
    table.append([name, str(len(lives)), *cells])
  header = [
    *('task', 'lives over 90 s', 'longest, s', 'its peak MB, first half'),
    *('second half', 'growth, median life, MB', 'worst life'),
  ]
  tables.print_table(header, table)
