"""Goodput: what is left of a training's speed with a fault each 29 s.

  python benchmarks/goodput.py [--rules=NAME,...] [--roles=worker,chief,ps]
      [--kinds=kill,suspend,cut] [--shares=0,60] [--pairs=3] [--secs=120]
      [--every_secs=29] [--seed=0] [--out=FOLDER] [-- flags of train]

A pair is two neighbouring runs to the same global step, with faults and
without; which comes first alternates. The steps are as many as take --secs
without faults, by a short run of the same rule before (or --train_steps).
Goodput is the steps a second of the one over those of the other, from when all
workers train to the last step; steps that are done again do not count. A fault
comes once in each --every_secs, at a moment drawn by the seed:

  kill       SIGKILL; the launcher restarts the task
  suspend    SIGSTOP for --away_secs, then SIGCONT
  cut        what the task sends is lost for --away_secs

It hits a task of one role: a worker but the chief, the chief (worker 0), or a
ps. For `cut`, each task is on a host of its own, a network namespace, where we
restart it without a launcher: it has runs and a row of its own, and is left out
where there can be none.

On a machine with fewer cores than tasks the others use the time of the task
that is lost. --shares gives percents of a core, which each task gets in runs of
their own (cpu_shares.py says how); 0 is no limit.

What is trained: the mlp on MNIST, by default with 1 ps and 2 workers, and a
checkpoint each 5 s. Each run writes a history (train's
--history), from which all is measured, and in which fault_checker.py looks for
examples that were read twice or never and for other broken invariants: the
column `broken`. With --out, raw.json and table.md are written after each row,
and at the end goodput.png, the images/s second by second.

All of it takes seven hours; --rules, --roles, --kinds and --shares take parts.
"""

import contextlib
import itertools
import pathlib
import signal
import sys
import tempfile
import time

from lib import (
  cpu_shares,
  fault_hosts,
  fault_run,
  fault_training,
  goodput_records,
  goodput_tables,
  network,
  options,
  processes,
  runs,
  tables,
)

RULES = ['async_sgd', 'sync_sgd', 'ring_allreduce']
ROLES = 'worker', 'chief', 'ps'
ON_HOSTS = {'cut'}
CALIBRATION_SECS = 10.0
HOLD_SECS = 0.2


# ---- A run ----
class SharedRun(fault_run.Run):
  """A launch whose tasks have shares of a core, those that restart as well."""

  common = [
    *fault_run.NET,
    '--validation_images=0',
    '--save_secs=5',
    '--log_secs=1',
    '--history',
  ]

  def __init__(self, folder, flags, shape, shares):
    """
    Args:
      folder, flags: see fault_run.Run.
      shape: (number of ps, number of workers).
      shares: cpu_shares.Shares, of the tasks and of 'launch'.
    """
    self._shares, self._next_hold = shares, 0.0
    super().__init__(folder, flags, *shape)

  def _start(self):
    super()._start()
    # A task that starts is in the launcher's group until we see it.
    self._shares.hold({'launch': self.group.pids[0]})

  def look(self):
    super().look()
    if time.monotonic() > self._next_hold:
      self._next_hold = time.monotonic() + HOLD_SECS
      self._shares.hold(self.find_pids())

  def wait_until_all_train(self):
    """Waits for a step of each worker; returns the time of that.

    Raises:
      ProcessError: it does not come.
    """
    seen = set()

    def all_train():
      events = self.read_new_events()
      seen.update(e['worker'] for e in events if e['event'] == 'ran')
      return len(seen) == self.shape[1]

    if not self.wait_until(all_train, every_secs=0.1):
      raise processes.ProcessError(f'not all workers train:\n{self.screen}')
    return time.time()

  def sleep(self, secs):
    self.wait_until(lambda: False, secs, every_secs=0.1)


class SharedHostsRun(SharedRun, fault_hosts.HostsRun):
  """The same with each task on a host of its own."""

  host_flags = ['--stall_fail_secs=20']

  def _start(self):
    fault_hosts.HostsRun._start(self)


def kill(run, task, secs):
  del secs
  return run.signal(task, signal.SIGKILL)


def suspend(run, task, secs):
  return run.freeze([task], secs)


def cut(run, task, secs):
  run.drop_packets([task], 1.0)
  run.sleep(secs)
  run.let_packets_through([task])
  return True


KINDS = {'kill': kill, 'suspend': suspend, 'cut': cut}


def inject(run, hits, start, args):
  """Injects faults until the run is at its last step.

  Args:
    run: SharedRun.
    hits: iterable of goodput_records.Hit, their times since `start`.
    start: float, of time.time().
    args: Namespace of `parse_args`.

  Returns:
    list of Hit, those that found their task, with the time at which they did.

  Raises:
    ProcessError: it does not come to its last step; the faults may come faster
      than a task is back.
  """
  done = []

  def is_over():
    if time.time() > start + args.limit_secs:
      raise processes.ProcessError(
        f'{len(done)} faults, and at step {run.step} of {run.last_step} after '
        f'{args.limit_secs:g} s'
      )
    return not run.is_running or run.step >= run.last_step

  for hit in hits:
    due = start + hit.secs
    while time.time() < due and not is_over():
      run.sleep(min(0.5, max(0.0, due - time.time())))
    if is_over():
      break
    now = time.time()
    if KINDS[hit.kind](run, hit.task, args.away_secs):
      done.append(hit._replace(secs=now - start))
  return done


# ---- A cell ----
def find_shape(rule, args):
  """Returns (number of ps, number of workers)."""
  num_ps = 0 if rule in fault_training.WITHOUT_PS else args.num_ps
  return num_ps, args.num_workers


def find_targets(cell, args):
  """Returns the tasks that a Cell's faults hit, a list of str."""
  names = runs.name_tasks(*find_shape(cell.rule, args))
  return goodput_records.find_targets(cell.role, names)


@contextlib.contextmanager
def running(cell, args, extra, steps):
  """Runs a training of `steps` steps; a context of a SharedRun."""
  make = SharedHostsRun if ON_HOSTS & {*cell.kinds} else SharedRun
  flags = [*fault_training.RULES[cell.rule], *extra, f'--train_steps={steps}']
  shape = find_shape(cell.rule, args)
  names = ['launch', *runs.name_tasks(*shape)]
  with (
    tempfile.TemporaryDirectory() as folder,
    cpu_shares.Shares(cell.share, names) as shares,
    make(folder, flags, shape, shares) as run,
  ):
    cell.how = shares.how
    yield run


def calibrate(cell, args, extra):
  """Returns the steps (int) that take --secs without faults."""
  with running(cell, args, extra, 10**9) as run:
    run.wait_until_all_train()
    run.sleep(CALIBRATION_SECS)
    found = goodput_records.measure(run.read_history())
  return max(1, round(args.secs * found['steps'] / found['secs']))


def do_run(cell, args, extra, hits):
  """Runs once, with faults if there are `hits`; returns what came of it.

  Returns:
    dict: what goodput_records.measure returns; `problem`, a str, '' for none;
    `broken`, a list of str; `hits`, a list of Hit since all workers train;
    `batch_size`, int; `batches_by_second`, a list of int, since then as well.
  """
  with running(cell, args, extra, cell.steps) as run:
    start = run.wait_until_all_train()
    done = inject(run, hits, start, args)
    problem, report = run.finish(args.limit_secs)
    events = run.read_history()
    found = goodput_records.measure(events)
    seconds = goodput_records.count_by_second(events, found['start'])
    shift = start - found['start']
    return {
      **found,
      'problem': problem,
      'broken': fault_training.find_violations(run, report, cell.rule),
      'hits': [hit._replace(secs=hit.secs + shift) for hit in done],
      'batch_size': report and report['flags']['batch_size'],
      'batches_by_second': seconds,
    }


def do_cell(cell, args, extra):
  """Fills in the runs of a Cell, and says on stderr how they went."""
  tasks = find_targets(cell, args)
  for pair in range(args.pairs):
    seed = f'{args.seed}/{cell.rule}/{cell.role}/{pair}'
    for has_faults in (False, True)[:: -1 if pair % 2 else 1]:
      hits = goodput_records.draw_hits(seed, tasks, cell.kinds, args.every_secs)
      try:
        found = do_run(cell, args, extra, hits if has_faults else ())
        text = f'{found["secs"]:.1f} s, {len(found["hits"])} faults'
      except processes.ProcessError as error:
        found = {'problem': str(error)}
      cell.runs.append({'pair': pair, 'has_faults': has_faults, **found})
      text = found['problem'] or text
      print(f'{cell}, pair {pair}: {text}', file=sys.stderr, flush=True)


def list_cells(args):
  """Yields goodput_records.Cell, in the order in which they are measured."""
  groups = [
    [kind for kind in args.kinds if (kind in ON_HOSTS) == is_on_hosts]
    for is_on_hosts in (False, True)
  ]
  for share, rule, kinds, role in itertools.product(
    args.shares, args.rules, filter(None, groups), args.roles
  ):
    cell = goodput_records.Cell(rule, role, kinds, share)
    if find_targets(cell, args):
      yield cell


def measure_all(args, extra, save):
  """Measures all cells; returns the list of those that this machine can have.

  Args:
    args: Namespace of `parse_args`.
    extra: list of str, train's flags that come last.
    save: callable(cells), called after each cell.
  """
  cells, steps = [], {}
  for cell in list_cells(args):
    key = cell.share, cell.rule, *cell.kinds
    try:
      if key not in steps:
        steps[key] = args.train_steps or calibrate(cell, args, extra)
      cell.steps = steps[key]
      do_cell(cell, args, extra)
    except network.CannotError as error:
      print(f'left out: {cell}: {error}', flush=True)
      continue
    except processes.ProcessError as error:
      cell.runs.append({'problem': str(error)})
    cells.append(cell)
    save(cells)
  return cells


# ---- The program ----
def parse_shares(text):
  return [int(word) and options.count(word) for word in text.split(',')]


def parse_args(words):
  """Returns (args, list of flags for train)."""
  words, extra = options.cut(words)
  parser = options.make_parser(__doc__)
  count, names_of = options.count, options.names_of
  add = parser.add_argument
  add('--rules', type=names_of(fault_training.RULES), default=RULES)
  add('--roles', type=names_of(ROLES), default=list(ROLES))
  add('--kinds', type=names_of(KINDS), default=list(KINDS))
  add('--shares', type=parse_shares, default=[0, 60], help='%% of a core')
  add('--pairs', type=count, default=3)
  add('--secs', type=float, default=120, help='of a run without faults')
  add('--train_steps', type=count, help='in place of those that take --secs')
  add('--every_secs', type=float, default=29, help='a fault in each of them')
  add('--away_secs', type=float, default=5, help='of a suspension or a cut')
  add('--num_ps', type=count, default=1)
  add('--num_workers', type=count, default=2)
  add('--seed', type=int, default=0)
  add('--limit_secs', type=float, default=1800, help='of one run')
  add('--out', type=pathlib.Path, help='folder for raw.json, table.md, a plot')
  return parser.parse_args(words), extra


def main(words):
  """Returns the exit code; `words` are those of the command line."""
  args, extra = parse_args(words)
  title = (
    f'{tables.describe_machine()}; {args.num_ps} ps where the rule has any, '
    f'{args.num_workers} workers, a fault each {args.every_secs:g} s, '
    f'{args.away_secs:g} s away'
  )

  def report(cells):
    print(f'{title}\n')
    goodput_tables.print_table(cells)

  def save(cells):
    raw = {'title': title, 'cells': [vars(cell) for cell in cells]}
    tables.save(args.out, raw, lambda: report(cells))

  cells = measure_all(args, extra, save)
  report(cells)
  if args.out and cells:
    figure = goodput_tables.build_figure(cells, title)
    figure.savefig(args.out / 'goodput.png')
  return int(any(run['problem'] for cell in cells for run in cell.runs))


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
