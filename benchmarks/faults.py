"""Faults of every kind into running clusters of every rule: what is broken?

  python benchmarks/faults.py [--faults=200] [--seed=0] [-- flags of train]
  python benchmarks/faults.py --seed=0 --only=17
  python benchmarks/faults.py --soak=RULE [--every_secs=20] -- --train_steps=N

Fault i of a seed has a training of its own, of 2 ps and 3 workers with the mlp
on MNIST; seed and i decide on the rule, the kind, the tasks and the moment, so
that --only=i does the same again. The kinds:

  kill        SIGKILL to a task; the launcher starts it again
  term        SIGTERM, as a preempted machine gets it; likewise
  freeze      SIGSTOP for 2 s, then SIGCONT
  pair        SIGKILL to the chief and a ps at once
  in save     SIGKILL to the chief or a ps as a checkpoint is written
  in restore  SIGKILL to a ps, and to the chief or a ps as it is restored
  at end      SIGKILL to a task when the last step is done
  EIO, ENOSPC, EDQUOT   writes of checkpoints fail so, until one line says it
  loss        2 % of all packets are lost, to the end of the training
  one way     what one task sends is lost for 15 s; what it gets is not
  replaced    a worker stands still for 30 s, and another has its place when it
              wakes up, without a network but with the --logdir

For the last three each task is on a host of its own, a network namespace. A
kind that this machine cannot have is said and left out.

A fault is survived if the tasks it hit, and if a ps is lost all workers, make
their next step within a minute, nothing older than the last checkpoint comes
back, and the run ends at its last step with exit code 0, learns, and leaves no
process behind. Seconds to recover are from the restart (or the SIGCONT) to that
next step. What the history of the run (train's --history) breaks of the
invariants in fault_checker.py counts as violations.

With --soak it is one long run with a fault every --every_secs seconds, and the
resident memory of the tasks is followed.
"""

import argparse
import pathlib
import random
import shutil
import signal
import sys
import tempfile

import fault_checker
import fault_hosts
import fault_kinds
import fault_run
import fault_soak
import network
import runs

from distmnist import invariants, registry

NUM_PS, NUM_WORKERS = 2, 3
# Some seconds of work each; the steps are their last flag.
RULES = {
  'sync_sgd': ['--train_steps=1200'],
  'sync_sgd with a backup': ['--replicas_to_aggregate=2', '--train_steps=1600'],
  'easgd': [
    '--local_optimizer=adam',
    '--local_learning_rate=0.003',
    '--train_steps=1000',
  ],
  'easgd in lock-step': [
    '--easgd_sync',
    '--local_optimizer=adam',
    '--local_learning_rate=0.003',
    '--train_steps=600',
  ],
  'agn': ['--communication_period=3', '--train_steps=1500'],
  'dynsgd': ['--communication_period=3', '--train_steps=1500'],
  'sagn': ['--communication_period=3', '--train_steps=500'],
  'bmuf': ['--communication_period=5', '--train_steps=400'],
  'ssp': ['--ssp_bound=3', '--train_steps=3000'],
  'dc_asgd': ['--dc_lambda=0.04', '--train_steps=4000'],
  'ring_allreduce': ['--train_steps=1000'],
}
RULES |= {
  name: ['--train_steps=5000']
  for name in registry.names('distmnist.strategies')
  if name not in RULES
}
RULES = {
  name: [f'--strategy={name.split()[0]}', *flags]
  for name, flags in RULES.items()
}
WITHOUT_PS = {'ring_allreduce'}
# What the workers have in their hands at the end may be one too many.
LEAVING = {'sync_sgd with a backup'}
# Of ten, by whatever rule; without faults all have 0.95 and more.
LEAST_ACCURACY = 0.85


def count_tasks(rule):
  """Returns (number of ps, number of workers)."""
  return 0 if rule in WITHOUT_PS else NUM_PS, NUM_WORKERS


def draw_fault(seed, index, rules, kinds):
  """Returns (rule, Fault): number `index` of `seed`."""
  rng = random.Random(f'{seed}/{index}')
  rule = rng.choice(rules)
  names = fault_run.name_tasks(*count_tasks(rule))
  return rule, fault_kinds.draw(rng, names, kinds)


def run_with_faults(rule, faults, extra=(), keep=None):
  """Runs a training with `faults`, in their order; fills them in.

  Args:
    rule: str, of RULES.
    faults: list of fault_kinds.Fault.
    extra: list of str, flags of train that come last.
    keep: path to copy the logs of a run to that has a problem, or None.

  Returns:
    (problem or '', report or None).

  Raises:
    fault_kinds.CannotError, network.CannotError: not on this machine.
  """
  kinds = {fault.kind for fault in faults}
  on_hosts = kinds & fault_kinds.ON_HOSTS
  make_run = fault_hosts.HostsRun if on_hosts else fault_run.Run
  with tempfile.TemporaryDirectory() as folder:
    env = {}
    for kind in kinds:
      env |= fault_kinds.make_env(kind, folder)
    flags = [*RULES[rule], *extra]
    run = make_run(folder, flags, *count_tasks(rule), env=env)
    problem, report = 'broken off', None
    try:
      problem, report = do_faults(run, faults, rule)
    finally:
      run.close()
      if keep and (problem or any(f.violations for f in faults)):
        shutil.copytree(folder, keep, dirs_exist_ok=True)
  return problem, report


def do_faults(run, faults, rule, least_accuracy=LEAST_ACCURACY):
  """Does `faults` to a run, in their order, and waits for its end.

  Args:
    run: fault_run.Run.
    faults: list of fault_kinds.Fault, filled in.
    rule: str, of RULES.
    least_accuracy: float, of the test images.

  Returns:
    (problem or '', report or None).
  """
  done = []
  for fault in faults:
    mark = fault.mark * run.last_step
    # All are well and under way.
    ready = run.wait_until(
      lambda mark=mark: run.step >= mark and all(w.step for w in run.workers),
      limit_secs=300,
    )
    if not ready:
      fault.note = 'the training was over' if not run.is_running else 'no start'
      break
    done.append(fault)
    fault_kinds.inject(run, fault)
    if not fault.is_survived:
      run.stop()
      return f'{fault}', None
  problem, report = run.finish()
  if report and report['test_accuracy'] < least_accuracy:
    problem = problem or f'accuracy {report["test_accuracy"]}'
  for fault in done[-1:] or faults[:1]:
    fault.violations = find_violations(run, report, rule)
    fault.is_survived = not problem
  return problem, report


def find_violations(run, report, rule):
  """Returns what the history of a run says that must not be, a list of str."""
  events = run.read_history()
  of_report = []
  if report:
    of_report = [
      *invariants.check_invariants(report),
      *fault_checker.check_best(
        events,
        report['best_step'],
        report['validation_accuracy'],
        run.find_kept_step(),
      ),
    ]
  return [
    *fault_checker.check(
      events,
      may_leave=rule in LEAVING,
      logs={
        int(name.split()[1]): log.lines
        for name, log in run.logs.items()
        if name.startswith('worker')
      },
      frozen=[
        (int(name.split()[1]), since, until)
        for name, since, until in run.frozen
        if name.startswith('worker')
      ],
    ),
    *of_report,
  ]


def measure(args, extra):
  """Yields (rule, Fault) of each, and prints what goes on to stderr."""
  indices = range(args.faults) if args.only is None else [args.only]
  left_out = set()
  for index in indices:
    rule, fault = draw_fault(args.seed, index, args.rules, args.kinds)
    keep = args.keep and pathlib.Path(args.keep) / f'{args.seed}_{index}'
    try:
      problem, _ = run_with_faults(rule, [fault], extra, keep)
    except (fault_kinds.CannotError, network.CannotError) as error:
      if fault.kind not in left_out:
        left_out.add(fault.kind)
        print(f'left out: {fault.kind}: {error}', flush=True)
      continue
    text = f'{index} {rule}: {fault}'
    if problem or fault.violations:
      text += f'\n{problem}\nagain: {format_again(args, extra, index)}'
    print(text, file=sys.stderr, flush=True)
    yield rule, fault


def format_again(args, extra, index):
  """Returns the command, a str, that does fault number `index` again."""
  words = ['python benchmarks/faults.py', f'--seed={args.seed}']
  for name, every in (('rules', RULES), ('kinds', fault_kinds.KINDS)):
    chosen = getattr(args, name)
    if chosen != list(every):
      words.append(f"--{name}='{','.join(chosen)}'")
  return ' '.join([*words, f'--only={index}', *(['--', *extra] * bool(extra))])


def print_faults(found):
  """Prints the table: a row a kind of fault and role."""
  rows = {}
  for _, fault in found:
    role = {'worker 0': 'chief'}.get(fault.task, fault.task.split()[0])
    if fault.kind == 'loss':
      role = 'all'
    elif fault.other:
      other = {'worker 0': 'chief'}.get(fault.other, fault.other.split()[0])
      role += f' and {other}'
    rows.setdefault((fault.kind, role), []).append(fault)
  order = list(fault_kinds.KINDS)
  table = []
  for (kind, role), faults in sorted(
    rows.items(), key=lambda row: (order.index(row[0][0]), row[0][1])
  ):
    secs = [f.recover_secs for f in faults if f.recover_secs is not None]
    table.append(
      [
        kind,
        role,
        f'{sum(f.is_survived for f in faults)} of {len(faults)}',
        str(sum(bool(f.violations) for f in faults)),
        f'{runs.median(secs):.1f}' if secs else '-',
        f'{max(secs):.1f}' if secs else '-',
        str(max(f.steps_lost for f in faults)),
      ]
    )
  print(f'{runs.describe_machine()}; {NUM_PS} ps, {NUM_WORKERS} workers')
  print(f'rules: {", ".join(sorted({rule for rule, _ in found}))}\n')
  header = (
    *('fault', 'task', 'survived', 'with violations', 'median s', 'max s'),
    'most steps lost',
  )
  runs.print_table(header, table)
  num_survived = sum(fault.is_survived for _, fault in found)
  num_broken = sum(bool(fault.violations) for _, fault in found)
  print(f'\n{num_survived} of {len(found)} survived, {num_broken} broke one')


def parse_args(words):
  """Returns (args, list of flags for train)."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )

  def some_of(every):
    def parse(text):
      names = text.split(',')
      for name in names:
        if name not in every:
          raise argparse.ArgumentTypeError(
            f'{name!r} is none of {", ".join(every)}'
          )
      return names

    return parse

  kinds = fault_kinds.KINDS
  add = parser.add_argument
  add('--faults', type=int, default=200, help='how many, by default 200')
  add('--seed', type=int, default=0)
  add('--only', type=int, help='the number of the one fault to do')
  add('--rules', type=some_of(RULES), default=list(RULES))
  add('--kinds', type=some_of(kinds), default=list(kinds))
  add('--soak', metavar='RULE', choices=RULES)
  add('--every_secs', type=float, default=20)
  add('--keep', help='folder for the logs of runs with a problem')
  cut = words.index('--') if '--' in words else len(words)
  return parser.parse_args(words[:cut]), words[cut + 1 :]


def main(words):
  """Returns the exit code; `words` are those of the command line."""
  args, extra = parse_args(words)
  # So that a run is ended, too.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  if args.soak:
    flags = [*RULES[args.soak], *extra]
    return bool(fault_soak.soak(args.soak, flags, args.every_secs, args.seed))
  found = list(measure(args, extra))
  if found:
    print_faults(found)
  return not all(f.is_survived and not f.violations for _, f in found)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
