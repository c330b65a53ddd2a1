"""Faults of every kind in running clusters of every rule: what breaks?

  python benchmarks/faults.py [--faults=200] [--seed=0] [--results=FILE]
      [-- flags of train]
  python benchmarks/faults.py --seed=0 --only=17
  python benchmarks/faults.py --soak=RULE [--every_secs=20] -- --train_steps=N

Fault i of a seed has a training of its own: the mlp on MNIST, with 2 ps and 3
workers. The seed and i decide the rule, the kind, the tasks and the moment, so
--only=i repeats the same fault. With --per_run=N up to N of them that follow
each other share a training, if they are of one rule and possible everywhere.
The kinds:

  kill        SIGKILL to a task; the launcher restarts it
  term        SIGTERM, as on a preempted machine; likewise
  freeze      SIGSTOP for 2 s, then SIGCONT
  pair        SIGKILL to the chief and a ps at once
  in save     SIGKILL to the chief or a ps while a checkpoint is written
  in restore  SIGKILL to a ps, and to the chief or a ps while it is restored
  in meeting  SIGKILL to a worker, and to another while all wait for the first
              one; only without a ps
  at end      SIGKILL to a task when the last step is done
  EIO, ENOSPC, EDQUOT   checkpoint writes fail with this, until a line says so
  loss        2 % of all packets are lost, to the end of the training
  one way     what one task sends is lost for 15 s; what it receives is not
  replaced    a worker is suspended for 30 s; when it wakes up, another has its
              place, and it has no network but still the --logdir

Without a ps, a quarter of the others hits two workers at once.

For the last three, each task is on a host of its own, a network namespace. A
kind that is impossible on this machine is named and left out.

A fault is survived if the tasks it hit (all workers, if a ps is lost) make
their next step within a minute, nothing older than the last checkpoint comes
back, and the run ends at its last step with exit code 0, learns, and leaves no
process behind. Seconds to recover run from the restart (or the SIGCONT) to that
next step. Invariants in fault_checker.py that the history of the run (train's
--history) breaks count as violations; so do weights at the end of a ring that
differ, in any bit, from those of a run without faults.

With --results, each fault's outcome is kept in that file as a line of JSON, and
faults already in it are not repeated: 200 faults take hours, and may be done in
parts.

--soak is one long run with a fault every --every_secs seconds, during which the
resident memory of the tasks is tracked.
"""

import dataclasses
import json
import pathlib
import random
import sys

from lib import (
  fault_files,
  fault_kinds,
  fault_soak,
  fault_training,
  network,
  options,
  processes,
  runs,
  tables,
)
from lib.fault_training import NUM_PS, NUM_WORKERS, RULES, count_tasks


def draw_fault(seed, index, rules, kinds):
  """Returns (rule, Fault): number `index` of `seed`."""
  rng = random.Random(f'{seed}/{index}')
  rule = rng.choice(rules)
  names = runs.name_tasks(*count_tasks(rule))
  return rule, fault_kinds.draw(rng, names, kinds)


def read_results(path, args):
  """Returns the results in a file, {index: (rule, Fault)}, of these faults."""
  if path is None or not path.exists():
    return {}
  done = {}
  for line in path.read_text().splitlines():
    kept = json.loads(line)
    index, fault = kept['index'], fault_kinds.Fault(**kept['fault'])
    rule, drawn = draw_fault(args.seed, index, args.rules, args.kinds)
    if (kept['rule'], fault.kind, fault.tasks) != (
      *(rule, drawn.kind, drawn.tasks),
    ):
      raise SystemExit(
        f'{path}: fault {index} is {fault.kind} of {fault.tasks} under '
        f'{kept["rule"]}, where these flags draw {drawn.kind} of {drawn.tasks} '
        f'under {rule}: give the flags it was made with, or another file'
      )
    if index in list_indices(args):
      done[index] = rule, fault
  return done


def list_indices(args):
  return args.only or range(args.faults)


def plan(args, done):
  """Yields lists of (index, rule, Fault), those of one training each.

  Args:
    args: those of the command line.
    done: indices that are left out.
  """
  run = []
  for index in list_indices(args):
    if index in done:
      continue
    rule, fault = draw_fault(args.seed, index, args.rules, args.kinds)
    if run and (
      len(run) == args.per_run
      or rule != run[0][1]
      or {fault.kind, run[0][2].kind} & fault_kinds.MAY_BE_IMPOSSIBLE
    ):
      yield run
      run = []
    run.append((index, rule, fault))
  if run:
    yield run


def measure(args, extra):
  """Yields (rule, Fault) of each, and prints the progress to stderr."""
  path = args.results and pathlib.Path(args.results)
  done = read_results(path, args)
  yield from done.values()
  left_out = set()
  for run in plan(args, done):
    index, rule, fault = run[0]
    keep = args.keep and pathlib.Path(args.keep) / f'{args.seed}_{index}'
    faults = sorted((fault for *_, fault in run), key=lambda f: f.mark)
    try:
      problem, _ = fault_training.run_with_faults(rule, faults, extra, keep)
    except (fault_files.CannotError, network.CannotError) as error:
      if fault.kind not in left_out:
        left_out.add(fault.kind)
        print(f'left out: {fault.kind}: {error}', flush=True)
      continue
    for index, rule, fault in run:
      # The training was over before: the next call does it.
      if len(run) > 1 and not fault.has_come:
        continue
      say(f'{index} {rule}: {fault}')
      if path is not None:
        kept = {
          'index': index,
          'rule': rule,
          'fault': dataclasses.asdict(fault),
        }
        with path.open('a') as file:
          file.write(json.dumps(kept) + '\n')
      yield rule, fault
    if problem or any(fault.violations for fault in faults):
      say(
        f'{problem}\nagain: {format_again(args, extra, [i for i, *_ in run])}'
      )


def say(text):
  print(text, file=sys.stderr, flush=True)


def format_again(args, extra, indices):
  """Returns the command, a str, that repeats these faults, a list of int."""
  words = ['python benchmarks/faults.py', f'--seed={args.seed}']
  for name, every in (('rules', RULES), ('kinds', fault_kinds.KINDS)):
    chosen = getattr(args, name)
    if chosen != list(every):
      words.append(f"--{name}='{','.join(chosen)}'")
  words.append(f'--only={",".join(map(str, indices))}')
  if len(indices) > 1:
    words.append(f'--per_run={len(indices)}')
  return ' '.join([*words, *(['--', *extra] * bool(extra))])


def name_roles(fault):
  """Returns the roles of the tasks that a fault hits, a str."""
  if fault.kind == 'loss':
    return 'all'
  return ' and '.join(
    {'worker 0': 'chief'}.get(task, task.split()[0]) for task in fault.tasks
  )


def print_faults(found):
  """Prints the table: one row per kind of fault and role."""
  rows = {}
  for _, fault in found:
    rows.setdefault((fault.kind, name_roles(fault)), []).append(fault)
  order = list(fault_kinds.KINDS)
  table = []
  for (kind, role), faults in sorted(
    rows.items(), key=lambda row: (order.index(row[0][0]), row[0][1])
  ):
    secs = [f.recover_secs for f in faults if f.recover_secs is not None]
    table.append(
      [
        *(kind, role, f'{sum(f.is_survived for f in faults)} of {len(faults)}'),
        str(sum(bool(f.violations) for f in faults)),
        tables.format_value(tables.median(secs), '.1f'),
        tables.format_value(max(secs, default=None), '.1f'),
        str(max(f.steps_lost for f in faults)),
      ]
    )
  print(f'{tables.describe_machine()}; {NUM_PS} ps, {NUM_WORKERS} workers')
  print(f'rules: {", ".join(sorted({rule for rule, _ in found}))}\n')
  header = (
    *('fault', 'task', 'survived', 'with violations', 'median s', 'max s'),
    'most steps lost',
  )
  tables.print_table(header, table)
  num_survived = sum(fault.is_survived for _, fault in found)
  num_broken = sum(bool(fault.violations) for _, fault in found)
  print(f'\n{num_survived} of {len(found)} survived, {num_broken} broke one')


def parse_numbers(text):
  return [int(number) for number in text.split(',')]


def parse_args(words):
  """Returns (args, list of flags for train)."""
  parser = options.make_parser(__doc__)
  kinds = fault_kinds.KINDS
  add = parser.add_argument
  add('--faults', type=int, default=200, help='how many, by default 200')
  add('--seed', type=int, default=0)
  add('--only', type=parse_numbers, help='the numbers of the faults to do')
  add('--per_run', type=options.count, default=1, help='in one training: 1')
  add('--rules', type=options.names_of(RULES), default=list(RULES))
  add('--kinds', type=options.names_of(kinds), default=list(kinds))
  add('--soak', metavar='RULE', choices=RULES)
  add('--every_secs', type=float, default=20)
  add('--results', help='file of what came of each fault, to go on from')
  add('--keep', help='folder for the logs of runs with a problem')
  words, extra = options.cut(words)
  return parser.parse_args(words), extra


def main(words):
  """Returns the exit code; `words` are those of the command line."""
  args, extra = parse_args(words)
  if args.soak:
    flags = [*RULES[args.soak], *extra]
    return bool(fault_soak.soak(args.soak, flags, args.every_secs, args.seed))
  found = list(measure(args, extra))
  if found:
    print_faults(found)
  return not all(f.is_survived and not f.violations for _, f in found)


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
