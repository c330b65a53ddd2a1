"""What 8 to 64 workers cost on one machine, and 310 tasks that do nothing.

  python benchmarks/scale.py [--workers=8,16,32,64] [--rules=NAME,...]
      [--secs=20] [--tasks=310] [--launchers=local,ssh]

softmax on synthetic images, by `python -m distmnist.launch`, with one ps; none
under ring_allreduce, where worker 0 keeps the board and is what is measured.
For each rule and number of workers there are two runs.

  whole     from the command to the first step on the screen, and until
            nothing is left; ten local steps a worker.
  waiting   the last worker comes late: for --secs all others wait for it. Under
            rules that wait in a step it then starts, all train, and it is
            suspended for --secs. SIGTERM ends the run.

Of the waits the table has what moves at ps 0 in and out, as the kernel counts
it for its sockets, and ps 0's CPU, both per worker and second; and the cores
that all processes together keep busy. The memory is that of all, with what they
share counted once (Pss).

The tasks of the second table are Python processes that print a line and end:
8 ps and the rest workers. Through ssh each is five processes: a watcher, ssh,
sshd, the watcher there, and the task. `stopped` is from a SIGTERM, sent when
half of them have begun and none ends by itself, until nothing is left.
"""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import launchers
import peers
import runs

from distmnist import sockets

# Rule -> number of ps.
RULES = {'async_sgd': 1, 'sync_sgd': 1, 'ring_allreduce': 0}
# Under these one suspended worker holds up all others in a step.
WAITING = 'sync_sgd', 'ring_allreduce'
STEPS = 10
LIMIT_SECS = 300.0
FLAGS = [
  '--dataset=synthetic',
  '--synthetic_train_images=6400',
  '--synthetic_test_images=500',
  '--validation_images=500',
  '--model=softmax',
  '--log_secs=0',
]
NUM_IDLE_PS = 8


@dataclasses.dataclass
class Use:
  """What one task and all of them used in a while.

  Attributes:
    num_bytes: int, sent and received by the one task.
    cpu_secs: float, of the one task.
    all_cpu_secs: float, of all.
    secs: float, how long it was.
  """

  num_bytes: int
  cpu_secs: float
  all_cpu_secs: float
  secs: float

  def format(self, num_workers):
    """Returns the cells of a table."""
    each = num_workers * self.secs
    return [
      f'{self.num_bytes / each:,.0f}',
      f'{1000 * self.cpu_secs / each:.2f}',
      f'{self.all_cpu_secs / self.secs:.2f}',
    ]


class Launch:
  """A launch that runs; a context, at whose end nothing is left of it."""

  def __init__(self, folder, shape, launch_flags, flags=(), env=()):
    """
    Args:
      folder: path, for the screen and the logs.
      shape: (number of ps, number of workers).
      launch_flags, flags: lists of str, of launch and of train.
      env: {name: value} beside our own, of all tasks.
    """
    self.logs = folder / 'logs'
    self._screen = folder / 'screen'
    with open(self._screen, 'wb') as screen:
      self._process = subprocess.Popen(
        [
          *(sys.executable, '-m', 'distmnist.launch'),
          *(f'--num_ps={shape[0]}', f'--num_workers={shape[1]}'),
          *(f'--logs_dir={self.logs}', *launch_flags, '--', *flags),
        ],
        cwd=runs.REPO,
        env={**os.environ, **dict(env)},
        stdin=subprocess.DEVNULL,
        stdout=screen,
        stderr=subprocess.STDOUT,
      )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    if self._process.poll() is None:
      self._process.terminate()
      self._process.wait(LIMIT_SECS)

  @property
  def is_running(self):
    return self._process.poll() is None

  def read_screen(self):
    return self._screen.read_text(errors='replace')

  def read_log(self, name):
    """Returns what task `name` has written, a str."""
    path = self.logs / f'{name.replace(" ", "_")}.log'
    return path.read_text(errors='replace') if path.exists() else ''

  def wait_until(self, is_true, what):
    """Returns once is_true(); looks ten times a second.

    Raises:
      RuntimeError: the launch has ended, or it takes too long; with the screen.
    """
    deadline = time.monotonic() + LIMIT_SECS
    while not is_true():
      if not self.is_running or time.monotonic() > deadline:
        raise RuntimeError(f'{what} was not to be seen:\n{self.read_screen()}')
      threading.Event().wait(0.1)

  def wait_for_lines(self, names, pattern):
    """Returns once each task of `names` has written `pattern`, a regex."""
    for name in names:

      def has_line(name=name):
        return re.search(pattern, self.read_log(name), re.MULTILINE)

      self.wait_until(has_line, f'{pattern!r} of {name}')

  def find_pid(self, name):
    """Returns the pid of a task, of the first that are named on the screen."""
    pattern = rf'pids on this machine:.*\b{name} (\d+)'
    self.wait_until(lambda: re.search(pattern, self.read_screen()), 'a pid')
    return int(re.search(pattern, self.read_screen())[1])

  def find_pids(self):
    """Returns the set of pids of all processes of it on this machine."""
    return peers.find_descendants([self._process.pid])

  def end(self, signum=None):
    """Returns the seconds until it has ended, after a signal if there is one.

    Raises:
      RuntimeError: it ended with another exit code than it should.
    """
    start = time.monotonic()
    if signum:
      self._process.send_signal(signum)
    code = self._process.wait(LIMIT_SECS)
    if code != (128 + signum if signum else 0):
      raise RuntimeError(f'exit code {code}:\n{self.read_screen()}')
    return time.monotonic() - start


# ---- What it costs ----
def read_cpu_secs(pids):
  """Returns the CPU seconds of processes so far; of one that is gone, none."""
  ticks = 0
  for pid in pids:
    with contextlib.suppress(OSError):
      stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
      # After the name, which may have anything in it: utime and stime.
      ticks += sum(map(int, stat.rpartition(')')[2].split()[11:13]))
  return ticks / os.sysconf('SC_CLK_TCK')


def read_memory_mb(pids):
  """Returns the memory of processes; what they share counts once."""
  kib = 0
  for pid in pids:
    with contextlib.suppress(OSError):
      text = pathlib.Path(f'/proc/{pid}/smaps_rollup').read_text()
      kib += int(re.search(r'^Pss:\s+(\d+)', text, re.MULTILINE)[1])
  return kib * 1024 / 1e6


def measure_use(pid, pids, secs):
  """Returns the Use of the process `pid`, and of all `pids`, in `secs`."""
  counter = sockets.SocketBytes(pid)
  counter.look()
  before = read_cpu_secs([pid]), read_cpu_secs(pids)
  start = now = time.monotonic()
  while now < start + secs:
    threading.Event().wait(min(1.0, start + secs - now))
    # Now and then, for the bytes of connections that are closed.
    counter.look()
    now = time.monotonic()
  return Use(
    sum(counter.read() or (0, 0)),
    read_cpu_secs([pid]) - before[0],
    read_cpu_secs(pids) - before[1],
    now - start,
  )


# ---- Trainings ----
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


def measure_waits(rule, num_workers, secs):
  """Runs a cluster whose workers wait for the last of them.

  Returns:
    (Use before the first step, Use amid a step or None, MB of all, seconds
    from SIGTERM to the end).
  """
  names = [f'worker {i}' for i in range(num_workers)]
  *others, last = names
  with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    os.mkfifo(folder / 'held')
    flags = [
      *FLAGS,
      f'--strategy={rule}',
      '--train_steps=1000000',
      f'--start_timeout_secs={LIMIT_SECS}',
    ]
    with Launch(
      folder,
      (RULES[rule], num_workers),
      ['--module=benchmarks.held_train'],
      flags,
      {'HELD_BY': str(folder / 'held')},
    ) as launch:
      place = launch.find_pid('ps 0' if RULES[rule] else 'worker 0')
      launch.wait_for_lines(
        others, f'^waiting for ({last} at|.* to initialise the variables)'
      )
      pids = launch.find_pids()
      memory_mb = read_memory_mb(pids)
      before = measure_use(place, pids, secs)
      amid = None
      if rule in WAITING:
        with open(folder / 'held', 'wb'):
          pass
        launch.wait_for_lines(names, '^step ')
        amid = measure_suspended(launch, place, last, others, secs)
      return before, amid, memory_mb, launch.end(signal.SIGTERM)


def measure_suspended(launch, place, last, others, secs):
  """Returns the Use while the worker `last` stands still amid a step."""
  titles = {
    pid: pathlib.Path(f'/proc/{pid}/cmdline').read_bytes()
    for pid in launch.find_pids()
  }
  title = f'distmnist {last} '.encode()
  [pid] = [pid for pid, text in titles.items() if text.startswith(title)]
  os.kill(pid, signal.SIGSTOP)
  try:
    launch.wait_for_lines(others, '^no step for ')
    return measure_use(place, launch.find_pids(), secs)
  finally:
    os.kill(pid, signal.SIGCONT)


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


# ---- Tasks that do nothing ----
def measure_tasks(launcher, num_tasks):
  """Returns the cells of a row of the second table."""
  make, why_not = launchers.LAUNCHERS[launcher]
  if reason := why_not():
    return [launcher, str(num_tasks), f'skipped: {reason}', '-']
  num_ps = min(NUM_IDLE_PS, num_tasks // 2)
  shape = num_ps, num_tasks - num_ps
  with (
    tempfile.TemporaryDirectory() as name,
    make(name) as flags,
  ):
    flags = [f'--launcher={launcher}', '--module=benchmarks.no_work', *flags]
    ended, stopped = (
      pathlib.Path(name) / 'ended',
      pathlib.Path(name) / 'stopped',
    )
    ended.mkdir()
    stopped.mkdir()
    start = time.monotonic()
    with Launch(ended, shape, flags) as launch:
      launch.end()
      secs = time.monotonic() - start
    mark = f'--mark={name}'
    with Launch(stopped, shape, flags, ['--wait', mark]) as launch:
      launch.wait_until(
        lambda: count_begun(launch.logs) >= num_tasks / 2, 'half of the tasks'
      )
      stopped_secs = launch.end(signal.SIGTERM)
    left = find_processes(mark)
  if left:
    raise RuntimeError(f'left behind: {left}')
  return [launcher, str(num_tasks), f'{secs:.1f}', f'{stopped_secs:.1f}']


def count_begun(logs):
  """Returns how many tasks have said that they are there."""
  texts = (path.read_text(errors='replace') for path in logs.glob('*.log'))
  return sum('here' in text.splitlines() for text in texts)


def find_processes(word):
  """Returns the pids of the processes with `word` on their command lines."""
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    with contextlib.suppress(OSError):
      if word.encode() in path.read_bytes().split(b'\0'):
        found.append(int(path.parts[2]))
  return found


# ---- The program ----
def parse_args(words):
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )

  def names_of(known):
    def parse(text):
      names = text.split(',') if text else []
      for name in names:
        if name not in known:
          raise argparse.ArgumentTypeError(
            f'{name!r} is none of {", ".join(known)}'
          )
      return names

    return parse

  def counts(text):
    numbers = [int(word) for word in text.split(',')]
    if min(numbers) < 2:
      raise argparse.ArgumentTypeError(f'{text!r}: expected 2 or more')
    return numbers

  add = parser.add_argument
  add('--workers', type=counts, default=[8, 16, 32, 64])
  add('--rules', type=names_of(RULES), default=list(RULES))
  add('--secs', type=float, default=20, help='of each wait')
  add('--tasks', type=int, default=310, help='that do nothing')
  add('--launchers', type=names_of(('local', 'ssh')), default=['local', 'ssh'])
  return parser.parse_args(words)


def main(words):
  """Measures all, and prints the tables."""
  args = parse_args(words)
  # So that contexts end, with what they started.
  signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
  print(runs.describe_machine(), '\n', flush=True)
  rows = []
  for num_workers in args.workers:
    for rule in args.rules:
      rows.append(measure_rule(rule, num_workers, args.secs))
      print(*rows[-1], file=sys.stderr, flush=True)
  if rows:
    wait = 'B at ps 0', 'CPU ms at ps 0', 'cores, all'
    runs.print_table(
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
    runs.print_table(['launcher', 'tasks', 'in all, s', 'stopped, s'], rows)


if __name__ == '__main__':
  sys.exit(main(sys.argv[1:]))
