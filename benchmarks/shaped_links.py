"""Where the links decide: each task on a host of its own, at 200 Mbit/s.

  python benchmarks/shaped_links.py [--repeats=5] [--cases=NAME,...]
      [--mbits=200] [--model=vgg19] [--steps=N] [--out=FOLDER]

3 workers and 1 or 2 ps on this machine, each in a network namespace with one
link to a switch, shaped both ways (network.py): nothing of the machine's own
network is touched, and all is gone at the end. It needs root, and says so
without. vgg19 at 32 x 32 is 156 MB to pull and as much to push in each step;
with one image a batch there is next to nothing to compute. The cases:

  one_ps            sync_sgd, the whole center on one ps
  round_robin       2 ps, as TensorFlow does it: --partitioner=none
                    --placement=round_robin
  balanced          2 ps, as distmnist does it: shards, balanced by bytes
  async_...         those three under async_sgd
  float16           async_balanced, and --wire_dtype=float16
  agn               2 ps, balanced; --strategy=agn --communication_period=10

One repeat runs all cases one after the other, and a ratio is one within a
repeat; the tables have medians. What they tell:

  s/step       seconds of a worker's local step, after its first, which sets up
               the graph. Of agn whole periods count. When each worker has made
               its steps (--steps), the tasks are killed: an evaluation and a
               checkpoint would move the center again, for longer than we
               measure.
  at least     what `python -m distmnist.plan` says of such links: nothing but
               the busiest one counts, and a worker's pull meets another's push.
  busiest      of all links and both ways the part of its rate that the busiest
               one carried, headers included. All pull and then all push, in
               turn: half is what that gives.
  cores busy   CPU seconds of all tasks a second. Near the cores of the machine
               it is they that decide, and not the links: lower --mbits.

A repeat takes 13 minutes. Where a case has failed it is named with its last
lines, the others go on, and the exit code is 1.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import selectors
import signal
import subprocess
import sys
import time

import network as network_lib
import runs

from distmnist import tasks as tasks_lib

NUM_WORKERS = 3
PERIOD = 10
COMMON = [
  '--dataset=synthetic',
  '--synthetic_image_size=32',
  '--synthetic_channels=3',
  '--synthetic_train_images=3000',
  '--synthetic_test_images=100',
  '--validation_images=0',
  '--batch_size=1',
  '--optimizer=sgd',
  '--learning_rate=0.001',
  '--train_steps=1000000',
  '--log_secs=0',
]


@dataclasses.dataclass(frozen=True)
class Case:
  """One kind of cluster.

  Attributes:
    title: str.
    num_ps: int.
    flags: list of str, of train.
    steps: int, local steps of a worker to measure, with vgg19.
    period: int, T; whole periods are measured.
  """

  title: str
  num_ps: int
  flags: list
  steps: int
  period: int = 1


IN_TURN = ['--partitioner=none', '--placement=round_robin']
SYNC = ['--strategy=sync_sgd']
CASES = {
  'one_ps': Case('sync, 1 ps', 1, SYNC, 1),
  'round_robin': Case('sync, 2 ps in turn', 2, [*SYNC, *IN_TURN], 1),
  'balanced': Case('sync, 2 ps balanced', 2, SYNC, 1),
  'async_one_ps': Case('async, 1 ps', 1, [], 2),
  'async_round_robin': Case('async, 2 ps in turn', 2, IN_TURN, 2),
  'async_balanced': Case('async, 2 ps balanced', 2, [], 3),
  'float16': Case('same, float16', 2, ['--wire_dtype=float16'], 4),
  'agn': Case(
    f'agn, T={PERIOD}, 2 ps balanced',
    2,
    ['--strategy=agn', f'--communication_period={PERIOD}'],
    2 * PERIOD,
    PERIOD,
  ),
}
# (case, the slower one, how many times as fast it ought to be).
TARGETS = [
  ('balanced', 'one_ps', 1.7),
  ('balanced', 'round_robin', 1.3),
  ('async_balanced', 'async_one_ps', 1.7),
  ('async_balanced', 'async_round_robin', 1.3),
  ('float16', 'async_balanced', 1.7),
  ('agn', 'async_balanced', 5.0),
]


class RunError(Exception):
  """A run has failed; the text says how, with last lines."""


# ---- Processes ----
class Tasks:
  """The tasks of a cluster; a context, at whose end none of them is left."""

  def __init__(self, network, tasks):
    """
    Args:
      network: network.Network; tasks[i] runs on host i.
      tasks: list of tasks.Task.
    """
    self._running = {}  # Name -> Popen.
    self._lines = {task.name: [] for task in tasks}
    self._rest = dict.fromkeys(self._lines, b'')
    self._ready = []
    self._selector = selectors.DefaultSelector()
    try:
      for i, task in enumerate(tasks):
        self._start(
          task.name, network.wrap(i, [sys.executable, *task.argv[1:]])
        )
    except BaseException:
      self.close()
      raise

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  def _start(self, name, command):
    process = subprocess.Popen(
      command,
      cwd=runs.REPO,
      # A GPU would compute something else than the cores.
      env={**os.environ, 'CUDA_VISIBLE_DEVICES': ''},
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      # The terminal's Ctrl-C is ours.
      start_new_session=True,
    )
    self._running[name] = process
    self._selector.register(process.stdout, selectors.EVENT_READ, name)

  def close(self):
    for process in self._running.values():
      process.kill()
    for process in self._running.values():
      process.wait()
      process.stdout.close()
    self._selector.close()

  def read_step(self, deadline):
    """Returns (name, time): who made a step next, and when.

    Args:
      deadline: float, by time.monotonic().

    Raises:
      RunError: a task has ended, or there was no step until the deadline.
    """
    while not self._ready:
      events = self._selector.select(max(0, deadline - time.monotonic()))
      if not events:
        raise RunError(f'no step in time; {self._last_words("worker 0")}')
      for key, _ in events:
        self._read(key.data, key.fileobj)
    return self._ready.pop(0)

  def _read(self, name, stream):
    data, now = os.read(stream.fileno(), 1 << 16), time.monotonic()
    if not data:
      code = self._running[name].wait()
      raise RunError(f'ended with {code}: {self._last_words(name)}')
    *lines, self._rest[name] = (self._rest[name] + data).split(b'\n')
    for line in lines:
      self._lines[name].append(line.decode(errors='replace'))
      if line.startswith(b'step '):
        self._ready.append((name, now))

  def _last_words(self, name):
    return '\n'.join([f'{name}:', *self._lines[name][-15:]])

  def read_cpu_secs(self):
    """Returns the CPU seconds of all tasks so far."""
    ticks = 0
    for process in self._running.values():
      stat = pathlib.Path(f'/proc/{process.pid}/stat').read_text()
      # After the name, which may have anything in it: utime and stime.
      ticks += sum(map(int, stat.rpartition(')')[2].split()[11:13]))
    return ticks / os.sysconf('SC_CLK_TCK')


# ---- A run ----
def make_flags(case, args):
  """Returns the flags of train, a list of str, that all tasks get."""
  return [*COMMON, f'--model={args.model}', *case.flags]


def measure(case, args):
  """Runs a case once; returns its result, a dict."""
  num_hosts = case.num_ps + NUM_WORKERS
  num_steps = round_up(args.steps or case.steps, case.period)
  with network_lib.Network(num_hosts, args.mbits) as network:
    hosts = [
      f'{network.address(i)}:{tasks_lib.FIRST_PORT}' for i in range(num_hosts)
    ]
    cluster = tasks_lib.make_tasks(
      hosts[: case.num_ps],
      hosts[case.num_ps :],
      make_flags(case, args),
      num_cores=len(os.sched_getaffinity(0)),
    )
    deadline = time.monotonic() + args.limit_secs
    workers = [task.name for task in cluster if task.job_name == 'worker']
    marks = {name: [] for name in workers}
    start = None
    with Tasks(network, cluster) as tasks:
      while any(len(times) <= num_steps for times in marks.values()):
        name, now = tasks.read_step(deadline)
        marks[name].append(now)
        if not start and all(marks.values()):
          start = now, network.read_bytes(), tasks.read_cpu_secs()
      secs = now - start[0]
      moved = subtract(network.read_bytes(), start[1])
      cpu_secs = tasks.read_cpu_secs() - start[2]
  return {
    'step_secs': compute_step_secs(list(marks.values()), case.period),
    'busiest': compute_busiest(moved, secs, args.mbits),
    'cores_busy': cpu_secs / secs,
    'marks': list(marks.values()),
    'moved': moved,
    'secs': secs,
  }


def round_up(number, period):
  return -(-number // period) * period


def subtract(later, earlier):
  """Returns the differences of two lists of pairs of int."""
  return [(a - c, b - d) for (a, b), (c, d) in zip(later, earlier, strict=True)]


def compute_step_secs(marks, period):
  """Returns the seconds of a local step, by the mean speed of the workers.

  Args:
    marks: list, a worker each, of the times at which its steps ended.
    period: int, T; what is left of a period at the end does not count.
  """
  speed = 0.0
  for times in marks:
    steps = (len(times) - 1) // period * period
    speed += steps / (times[steps] - times[0])
  return len(marks) / speed


def compute_busiest(moved, secs, mbits):
  """Returns what the busiest link carried one way, 1 for all that it can.

  Args:
    moved: list of (bytes from a host, bytes to it).
    secs: float, in which it was moved.
    mbits: int, the rate of a link.
  """
  return max(map(max, moved)) * 8e-6 / secs / mbits


def read_plan(case, args):
  """Returns (bytes pulled in a step, bytes pushed, least seconds a step)."""
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'distmnist.plan', f'--mbits={args.mbits}'),
      *(f'--num_ps={case.num_ps}', f'--num_workers={NUM_WORKERS}'),
      *make_flags(case, args),
    ],
    cwd=runs.REPO,
    capture_output=True,
    text=True,
  )
  if done.returncode:
    raise RunError(f'no plan: {done.stderr.strip()}')
  return parse_plan(done.stdout)


def parse_plan(text):
  """Reads the last lines of distmnist.plan; see `read_plan`."""
  numbers = re.search(
    r'pulls ([\d,]+) and pushes ([\d,]+)\n.*: ([\d,.]+) ms a step at least',
    text,
  ).groups()
  pulled, pushed, msecs = (float(n.replace(',', '')) for n in numbers)
  return pulled, pushed, msecs / 1000


# ---- The tables ----
def print_tables(results, plans):
  """Prints what was measured, and the ratios.

  Args:
    results: list of dict, as `main` collects them.
    plans: dict of case -> what `read_plan` returned.
  """
  good = [r for r in results if r['status'] == 'ok']
  rows = []
  for name, (pulled, pushed, least_secs) in plans.items():
    mine = [r for r in good if r['case'] == name]
    title = CASES[name].title
    if not mine:
      rows.append([title, 'failed', *['-'] * 5])
      continue
    failed = sum(r['case'] == name for r in results) - len(mine)
    if failed:
      title += f' ({failed} failed)'
    step_secs, busiest, cores_busy = (
      runs.median(r[key] for r in mine)
      for key in ('step_secs', 'busiest', 'cores_busy')
    )
    rows.append(
      [
        title,
        f'{(pulled + pushed) / 1e6:,.1f}',
        f'{NUM_WORKERS / step_secs:.3g}',
        f'{step_secs:.3g}',
        f'{least_secs:.3g}',
        f'{100 * busiest:.0f} %',
        f'{cores_busy:.2f}',
      ]
    )
  runs.print_table(
    [
      *('case', 'MB/step', 'steps/s of all', 's/step', 'at least'),
      *('busiest link', 'cores busy'),
    ],
    rows,
  )
  ratios = compute_ratios(good)
  if ratios:
    print()
    runs.print_table(
      ['', 'over', 'times as fast', 'from', 'to', 'target', ''],
      [
        [
          CASES[fast].title,
          CASES[slow].title,
          f'{runs.median(found):.2f}',
          f'{min(found):.2f}',
          f'{max(found):.2f}',
          f'{target:g}',
          'hit' if runs.median(found) >= target else 'missed',
        ]
        for (fast, slow, target), found in ratios.items()
      ],
    )
  for result in results:
    if result['status'] != 'ok':
      print(f'\n{result["case"]} failed: {result["reason"]}')


def compute_ratios(results):
  """Returns dict of an element of TARGETS -> list of float, one a repeat.

  Args:
    results: list of dict, of the runs that went well.
  """
  secs = {(r['repeat'], r['case']): r['step_secs'] for r in results}
  ratios = {}
  for fast, slow, target in TARGETS:
    for repeat in sorted({r['repeat'] for r in results}):
      if (repeat, fast) in secs and (repeat, slow) in secs:
        ratio = secs[repeat, slow] / secs[repeat, fast]
        ratios.setdefault((fast, slow, target), []).append(ratio)
  return ratios


# ---- The program ----
def parse_args(words):
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )

  def cases(text):
    names = text.split(',')
    for name in names:
      if name not in CASES:
        raise argparse.ArgumentTypeError(
          f'{name!r} is none of {", ".join(CASES)}'
        )
    return [name for name in CASES if name in names]

  def count(text):
    if not text.isdecimal() or int(text) < 1:
      raise argparse.ArgumentTypeError(f'{text!r}: expected 1 or more')
    return int(text)

  steps = ', '.join(f'{name} {case.steps}' for name, case in CASES.items())
  add = parser.add_argument
  add('--repeats', type=count, default=5)
  add('--cases', type=cases, default=list(CASES))
  add('--mbits', type=count, default=200, help='of a link, each way')
  add('--model', default='vgg19', help='as of train')
  add('--steps', type=count, help=f'of a worker; by default {steps}')
  add('--limit_secs', type=float, default=600, help='of one run')
  add('--out', type=pathlib.Path, help='folder: raw.json, table.md')
  return parser.parse_args(words)


def main(words):
  """Returns the exit code; `words` are those of the command line."""
  args = parse_args(words)
  # So that contexts end, with what they started.
  signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
  try:
    to, fro = network_lib.measure_link(args.mbits)
  except network_lib.CannotError as error:
    print(f'skipped: {error}')
    return 0
  head = (
    f'{runs.describe_machine()}; {args.model}, {NUM_WORKERS} workers; medians '
    f'of {args.repeats} runs\na link of {args.mbits:,} Mbit/s carries '
    f'{to:,.0f} Mbit/s to and {fro:,.0f} fro of TCP, at the same time\n'
  )
  print(head, flush=True)
  plans = {name: read_plan(CASES[name], args) for name in args.cases}
  results = []
  for repeat in range(args.repeats):
    for name in args.cases:
      start = time.monotonic()
      try:
        result = {'status': 'ok', **measure(CASES[name], args)}
        text = f'{result["step_secs"]:.3g} s a step'
      except RunError as error:
        result = {'status': 'failed', 'reason': str(error)}
        text = f'failed: {error}'
      wall_secs = time.monotonic() - start
      text += f' (run of {wall_secs:.0f} s)'
      print(f'{repeat} {name}: {text}', file=sys.stderr, flush=True)
      results.append(
        {'repeat': repeat, 'case': name, 'wall_secs': wall_secs, **result}
      )
      save(args.out, head, results, plans)
  print_tables(results, plans)
  return int(any(r['status'] != 'ok' for r in results))


def save(folder, head, results, plans):
  """Writes what there is by now, unless there is no folder for it."""
  if not folder:
    return
  folder.mkdir(parents=True, exist_ok=True)
  raw = {'head': head, 'plans': plans, 'results': results}
  (folder / 'raw.json').write_text(json.dumps(raw, indent=2) + '\n')
  with (
    open(folder / 'table.md', 'w') as file,
    contextlib.redirect_stdout(file),
  ):
    print(head)
    print_tables(results, plans)


if __name__ == '__main__':
  try:
    sys.exit(main(sys.argv[1:]))
  except KeyboardInterrupt:
    sys.exit(130)
