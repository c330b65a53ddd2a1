"""Every phase of a run x every condition x every role: does it go on or end?

  python benchmarks/fault_matrix.py [--cells=300] [--seed=0] [--results=FILE]
      [--parallel=4]
  python benchmarks/fault_matrix.py --seed=0 --only=17

A cell is a training of its own, of the softmax on synthetic digits with 2 ps
and 2 workers, or 3 workers in a ring, with limits of seconds. Its seed and
number decide the rule, the phase, the condition and the task; a quarter of the
cells have two conditions at once. The conditions:

  killed        SIGKILL; the launcher restarts the task
  suspended     SIGSTOP for longer than each limit, then SIGCONT
  disk full     no task can write to the log directory for 12 s
  disk hung     what the task reads or writes there hangs for as long
  EIO once      its next read or write there fails
  store away    the log directory is in an object store that drops connections
                for 12 s
  host gone     what the task sends is lost, for longer than each limit
  fork refused  the task is killed, and the next three forks are refused

What must hold: the launch ends with 0, so no task ended with 1 or 2; at its
last step; nothing is silent for longer than 12 s; the newest whole checkpoint
is what is restored, and each batch is read once (fault_checker.py); the weights
of a ring are those of a run without faults; no process is left. With --results
each outcome is kept in that file as a line of JSON, and what is there is not
repeated.
"""

import concurrent.futures
import dataclasses
import itertools
import json
import multiprocessing
import pathlib
import random
import shutil
import sys
import tempfile
import time

from lib import (
  fault_checker,
  fault_files,
  fault_phases,
  fault_training,
  network,
  options,
  processes,
  tables,
)

END_SECS = 180
# A wait says so after 10 s at the latest.
SILENT_SECS = 12


def do_cell(seed, index, cell, keep=None):
  """Runs a Cell and fills it in; returns it, or why it cannot be (a str)."""
  rng = random.Random(f'{seed}/{index}')
  with tempfile.TemporaryDirectory() as folder:
    try:
      with fault_phases.open_run(cell, folder) as run:
        fault_phases.inject(run, cell, rng)
        start = time.monotonic()
        problem, report = run.finish(END_SECS)
        cell.secs = time.monotonic() - start
        cell.broken = [problem] if problem else []
        cell.broken += find_broken(run, cell)
    except (fault_files.CannotError, network.CannotError) as error:
      return str(error)
    if keep and cell.broken:
      kept = pathlib.Path(keep) / f'{seed}_{index}'
      shutil.rmtree(kept, ignore_errors=True)  # Of an earlier try.
      shutil.copytree(folder, kept)
  return cell


def find_broken(run, cell):
  """Returns what a run that is over should not have done, a list of str."""
  broken = []
  longest = find_longest_silence(run)
  if longest > SILENT_SECS + run.mute_secs:
    broken.append(f'{longest:.0f} s without a line of any task')
  if type(run) in (fault_phases.PhaseRun, fault_phases.HostsPhaseRun):
    broken += fault_checker.check(run.read_history())
    if cell.rule in fault_training.EXACT and run.is_reported():
      broken += fault_training.find_other_weights(run, cell.rule)
  return broken


def find_longest_silence(run):
  """Returns for how many seconds no task wrote a line, though one could.

  Until its tasks begin, a launch has no line of theirs; nor have tasks on hosts
  of their own that are all being restarted, as each loads TensorFlow.
  """
  lines = sorted(
    (time, name, text)
    for name, log in run.logs.items()
    for time, text in log.lines
  )
  loading, longest = set(run.logs), 0
  for (begin, name, text), (end, *_) in itertools.pairwise(lines):
    if text.startswith('--- '):
      loading.add(name)
    elif not text.startswith('TensorFlow has been loading'):
      loading.discard(name)
    is_new = any(begin < again < end for again in run.begins_again)
    if not is_new and loading != set(run.logs):
      longest = max(longest, end - begin)
  return longest


def measure(args):
  """Yields each Cell that could be; prints the progress to stderr."""
  drawn = fault_phases.draw_cells(
    args.seed, args.cells, args.rules, args.conditions
  )
  cells = list(enumerate(drawn))
  if args.only is not None:
    cells = [cells[args.only]]
  path, done = args.results and pathlib.Path(args.results), {}
  if path and path.exists():
    for line in path.read_text().splitlines():
      kept = json.loads(line)
      index = kept.pop('index')
      done[index] = fault_phases.Cell(**kept)
  yield from done.values()
  context = multiprocessing.get_context('spawn')
  with concurrent.futures.ProcessPoolExecutor(args.parallel, context) as pool:
    jobs = {
      pool.submit(do_cell, args.seed, i, cell, args.keep): i
      for i, cell in cells
      if i not in done
    }
    for job in concurrent.futures.as_completed(jobs):
      found, index = job.result(), jobs[job]
      print(f'{index}: {found}', file=sys.stderr, flush=True)
      if isinstance(found, str):
        continue
      if path:
        kept = {'index': index, **dataclasses.asdict(found)}
        with path.open('a') as file:
          file.write(json.dumps(kept) + '\n')
      yield found


def print_cells(cells):
  """Prints the table: phases down, conditions across: unbroken of all."""
  rows = []
  for phase in fault_phases.PHASES:
    row = [phase]
    for condition in fault_phases.CONDITIONS:
      found = [
        cell
        for cell in cells
        if cell.phase == phase
        and condition in (cell.condition, cell.other_condition)
      ]
      good = sum(not cell.broken for cell in found)
      row.append(f'{good} of {len(found)}' if found else '-')
    rows.append(row)
  print(tables.describe_machine(), '\n')
  tables.print_table(['phase', *fault_phases.CONDITIONS], rows)
  gone = sum(not cell.has_met for cell in cells)
  broken = sum(bool(cell.broken) for cell in cells)
  pairs = sum(bool(cell.other_condition) for cell in cells)
  print(
    f'\n{len(cells)} cells, {pairs} with two conditions; in {gone} the task '
    f'was gone by then; {broken} broken'
  )
  for rule in fault_phases.RULES:
    mine = [cell for cell in cells if cell.rule == rule]
    print(
      f'{rule}: {len(mine)} cells, {len({c.phase for c in mine})} phases, '
      f'{len({c.condition for c in mine})} conditions'
    )


def main(words):
  """Returns the exit code; `words` are those of the command line."""
  parser = options.make_parser(__doc__)
  add = parser.add_argument
  add('--cells', type=options.count, default=300, help='how many: 300')
  add('--seed', type=int, default=0)
  add('--only', type=int, help='the number of the one cell to do')
  for name, known in (
    ('--rules', fault_phases.RULES),
    ('--conditions', fault_phases.CONDITIONS),
  ):
    add(name, type=options.names_of(known), default=list(known))
  add('--results', help='file of what came of each cell, to go on from')
  add('--parallel', type=options.count, default=2, help='at a time: 2')
  add('--keep', help='folder for the logs of runs that broke something')
  cells = list(measure(parser.parse_args(words)))
  print_cells(cells)
  return any(cell.broken for cell in cells)


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
