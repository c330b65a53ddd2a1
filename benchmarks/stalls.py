"""Do rules that wait go on, whichever task is lost, however often in a row?

  python benchmarks/stalls.py [--runs=500] [--first=0] [--seed=0]
      [--rules=NAME,...] [--stall_secs=20] [-- flags of train]
  python benchmarks/stalls.py --in_a_row [--rules=NAME,...]

A run is one launch of 2 ps and 3 workers with --max_restarts. By default tasks
of all roles are killed at seeded moments, one to three times in a row, 1.2 s
apart. With --in_a_row, each rule loses each ps once, twice and three times in a
row. --first continues from that run of the same seed.

A run has stalled if a task says for --stall_secs that there is no step though
all tasks answer, or if the run does not end at its last step with exit code 0
within 15 times as long after the last loss. 20 s are too few on a busy machine:
a restarted task may take as long to its first step. What the task waited for
is printed with it. The exit code is 1 if any run has stalled.
"""

import collections
import pathlib
import random
import re
import shutil
import signal
import sys
import tempfile

from lib import fault_run, fault_training, options, processes, runs, tables

WAITING = [
  'sync_sgd',
  'sync_sgd with a backup',
  'sync_sgd by shards',
  'sagn',
  'bmuf',
  'easgd in lock-step',
  'ssp',
  'dc_asgd',
]
GAP_SECS = 1.2
_STALL = re.compile(r'no step for (\d+) s: all tasks answer.*')


def draw_losses(rng, names):
  """Draws one or two (part of the steps, task, times in a row)."""
  return sorted(
    (rng.uniform(0.05, 0.7), rng.choice(names), rng.randint(1, 3))
    for _ in range(rng.randint(1, 2))
  )


def find_stall(run, stall_secs):
  """Returns a task's line that nothing moved for `stall_secs`, or ''."""
  for name, log in run.logs.items():
    for match in filter(None, map(_STALL.search, log.texts)):
      if int(match[1]) >= stall_secs:
        return f'{name}: {match[0]}'
  return ''


def run_with_losses(rule, losses, extra, stall_secs=20, keep=None):
  """Returns what went wrong, a str, '' for nothing.

  Args:
    rule: str, of fault_training.RULES.
    losses: list of (part of the steps, task, times in a row).
    extra: list of str, further flags for train.
    stall_secs: float, how long nothing may move.
    keep: path to copy the logs of a stalled run to, or None.
  """
  problem = ''
  with tempfile.TemporaryDirectory() as folder:
    run = fault_run.Run(folder, [*fault_training.RULES[rule], *extra])
    try:
      for part, name, times in losses:
        mark = part * run.last_step

        def is_ready(mark=mark):
          return run.step >= mark and all(w.step for w in run.workers)

        if not run.wait_until(is_ready, 120):
          break
        for _ in range(times):
          run.signal(name, signal.SIGKILL)
          run.wait_until(lambda: False, GAP_SECS)
      run.wait_until(
        lambda: find_stall(run, stall_secs), 15 * stall_secs, every_secs=1
      )
      problem = find_stall(run, stall_secs)
      if not problem:
        problem, _ = run.finish(1)
    finally:
      run.close()
      if problem and keep:
        kept = pathlib.Path(keep) / f'{rule} {losses}'.replace('/', '_')
        shutil.copytree(folder, kept, dirs_exist_ok=True)
  return problem


def plan(args):
  """Yields (rule, losses) of each run."""
  rules = args.rules.split(',')
  if args.in_a_row:
    for rule in rules:
      for ps in range(fault_training.NUM_PS):
        for times in range(1, 4):
          yield rule, [(0.1, f'ps {ps}', times)]
    return
  rng = random.Random(args.seed)
  names = runs.name_tasks(fault_training.NUM_PS, fault_training.NUM_WORKERS)
  for number in range(args.first + args.runs):
    losses = draw_losses(rng, names)
    if number >= args.first:
      yield rules[number % len(rules)], losses


def main(words):
  """Runs them all; returns whether any has stalled."""
  words, extra = options.cut(words)
  parser = options.make_parser(__doc__)
  add = parser.add_argument
  add('--runs', type=int, default=500)
  add('--first', type=int, default=0)
  add('--seed', type=int, default=0)
  add('--stall_secs', type=float, default=20)
  add('--rules', default=','.join(WAITING))
  add('--in_a_row', action='store_true')
  add('--keep', help='where to copy the logs of a stalled run')
  args = parser.parse_args(words)
  counts, stalled = collections.Counter(), collections.Counter()
  for number, (rule, losses) in enumerate(plan(args), args.first):
    problem = run_with_losses(rule, losses, extra, args.stall_secs, args.keep)
    counts[rule] += 1
    stalled[rule] += bool(problem)
    text = f'{number}: {rule} {losses}: {problem or "ended"}'
    print(text, file=sys.stderr, flush=True)
  print(f'{tables.describe_machine()}\n')
  tables.print_table(
    ('rule', 'runs', 'stalled'),
    [[rule, str(n), str(stalled[rule])] for rule, n in counts.items()],
  )
  return bool(stalled.total())


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
