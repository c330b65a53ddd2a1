"""What 8 to 64 workers cost on one machine, and 310 tasks that do nothing.

  python benchmarks/scale.py [--workers=8,16,32,64] [--rules=NAME,...]
      [--secs=20] [--tasks=310] [--launchers=local,ssh]

softmax on synthetic images, by `python -m distmnist.launch`, with one ps; with
none under ring_allreduce, where worker 0 keeps the board and is measured in its
place. There are two runs for each rule and number of workers.

  whole     from the command to the first step on the screen, and until
            nothing is left; ten local steps per worker.
  waiting   the last worker comes late: for --secs all others wait for it. Under
            rules that wait within a step, it then starts, all train, and it is
            suspended for --secs. SIGTERM ends the run.

For the waits, the table has the bytes in and out of ps 0, as the kernel counts
them for its sockets, and ps 0's CPU time, both per worker and second; and the
cores that all processes together keep busy. The memory is that of all of them,
with what they share counted once (Pss).

The tasks of the second table are Python processes that print a line and end:
8 ps, the rest workers. Through ssh each is five processes: a watcher, ssh,
sshd, the watcher there, and the task. `stopped` is the time from a SIGTERM,
sent when half of the tasks have begun and none ends on its own, until nothing
is left.
"""

import argparse
import pathlib
import signal
import sys
import tempfile

import launchers
import options
import processes
import runs
import tables
import usage
from scale_waits import FLAGS, LIMIT_SECS, RULES, WAITING, measure_waits

LAUNCHERS = 'local', 'ssh'
STEPS = 10
NUM_IDLE_PS = 8


def measure_whole(rule, num_workers):
  """Returns (seconds to the first step, seconds in all) of a whole run."""
  num_steps = STEPS if rule in WAITING else STEPS * num_workers
  result = runs.launch(
    RULES[rule],
    num_workers,
    *FLAGS,
    f'--strategy={rule}',
    f'--train_steps={num_steps}',
  )
  return result['first_step_secs'], result['end_secs']


def measure_rule(rule, num_workers, secs):
  """Returns the cells of a row of the first table."""
  first_secs, in_all_secs = measure_whole(rule, num_workers)
  before, amid, memory_mb, gone_secs = measure_waits(rule, num_workers, secs)
  return [
    rule,
    str(num_workers),
    f'{first_secs:.1f}',
    f'{in_all_secs:.1f}',
    f'{memory_mb:,.0f}',
    *before.format(num_workers),
    *(amid.format(num_workers) if amid else ['-'] * 3),
    f'{gone_secs:.1f}',
  ]


def measure_tasks(launcher, num_tasks):
  """Returns the cells of a row of the second table."""
  make, why_not = launchers.LAUNCHERS[launcher]
  if reason := why_not():
    return [launcher, str(num_tasks), f'skipped: {reason}', '-']
  num_ps = min(NUM_IDLE_PS, num_tasks // 2)
  shape = num_ps, num_tasks - num_ps
  with tempfile.TemporaryDirectory() as name, make(name) as flags:
    flags = [f'--launcher={launcher}', '--module=benchmarks.no_work', *flags]
    ended, stopped = pathlib.Path(name, 'ended'), pathlib.Path(name, 'stopped')
    ended.mkdir()
    stopped.mkdir()
    with runs.Launch(ended, shape, [], flags) as launch:
      secs = launch.end(limit_secs=LIMIT_SECS)
    mark = f'--mark={name}'
    with runs.Launch(stopped, shape, ['--wait', mark], flags) as launch:

      def have_half_begun():
        begun = sum('here' in log.texts for log in launch.logs.values())
        return begun >= num_tasks / 2

      if not launch.wait_until(have_half_begun, LIMIT_SECS, every_secs=0.1):
        raise processes.ProcessError(f'half have not begun:\n{launch.screen}')
      stopped_secs = launch.end(signal.SIGTERM, LIMIT_SECS)
    left = usage.find_by_word(mark)
  if left:
    raise processes.ProcessError(f'left behind: {left}')
  return [launcher, str(num_tasks), f'{secs:.1f}', f'{stopped_secs:.1f}']


# ---- The program ----
def parse_args(words):
  parser = options.make_parser(__doc__)

  def counts(text):
    numbers = [int(word) for word in text.split(',')]
    if min(numbers) < 2:
      raise argparse.ArgumentTypeError(f'{text!r}: expected 2 or more')
    return numbers

  add = parser.add_argument
  add('--workers', type=counts, default=[8, 16, 32, 64])
  add(
    '--rules',
    type=options.names_of(RULES, may_be_none=True),
    default=list(RULES),
  )
  add('--secs', type=float, default=20, help='of each wait')
  add('--tasks', type=int, default=310, help='that do nothing')
  some = options.names_of(LAUNCHERS, may_be_none=True)
  add('--launchers', type=some, default=list(LAUNCHERS))
  return parser.parse_args(words)


def main(words):
  """Measures all, and prints the tables."""
  args = parse_args(words)
  print(tables.describe_machine(), '\n', flush=True)
  rows = []
  for num_workers in args.workers:
    for rule in args.rules:
      rows.append(measure_rule(rule, num_workers, args.secs))
      print(*rows[-1], file=sys.stderr, flush=True)
  if rows:
    wait = 'B at ps 0', 'CPU ms at ps 0', 'cores, all'
    tables.print_table(
      [
        *('rule', 'workers', 'first step, s', 'in all, s', 'MB, all'),
        *(f'before the first step: {name}' for name in wait),
        *(f'amid a step: {name}' for name in wait),
        'SIGTERM to gone, s',
      ],
      rows,
    )
    print()
  rows = []
  for launcher in args.launchers:
    rows.append(measure_tasks(launcher, args.tasks))
    print(*rows[-1], file=sys.stderr, flush=True)
  if rows:
    tables.print_table(['launcher', 'tasks', 'in all, s', 'stopped, s'], rows)


if __name__ == '__main__':
  processes.exit_by(main, sys.argv[1:])
