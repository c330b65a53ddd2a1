"""Faults, one after the other, into running clusters: who survives, how fast?

  python benchmarks/faults.py [--faults=100] [--seed=0] [--rules=NAME,...]
  python benchmarks/faults.py --soak=RULE [--every_secs=20] -- --train_steps=N

A run is one launch of 2 ps and 3 workers with --max_restarts, by default with
the mlp on MNIST. At seeded moments one of its tasks gets one of three faults:

  kill    SIGKILL; the launcher starts it again
  term    SIGTERM, as a preempted machine gets it; likewise
  freeze  SIGSTOP for 2 s, then SIGCONT

A fault is survived if the task it hit, or for a ps all workers, make their
next step, nothing older than the last checkpoint comes back, and the run ends
at its last step with exit code 0 and leaves no process behind. Seconds to
recover are from the restart (or the SIGCONT) to that next step. Each rule is
first run without faults: its accuracy is what the others are held against.

With --soak it is one long run with a fault every --every_secs seconds, and the
resident memory of the tasks is followed.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import runs

NUM_PS, NUM_WORKERS = 2, 3
TASKS = [
  *(f'ps {i}' for i in range(NUM_PS)),
  *(f'worker {i}' for i in range(NUM_WORKERS)),
]
SIGNALS = {
  'kill': signal.SIGKILL,
  'term': signal.SIGTERM,
  'freeze': signal.SIGSTOP,
}
KINDS = tuple(SIGNALS)
FREEZE_SECS = 2.0
# So long a fault may take until it counts as not survived.
LIMIT_SECS = 60.0
COMMON = [
  '--model=mlp',
  '--initializer=glorot',
  '--batch_size=100',
  '--optimizer=adam',
  '--learning_rate=0.003',
  '--save_steps=200',
  '--log_secs=0',
  '--stall_warn_secs=3',
]
# A minute or two of work each, faults included; the steps are their last flag.
RULES = {
  'async_sgd': ['--strategy=async_sgd', '--train_steps=9000'],
  'sync_sgd': ['--strategy=sync_sgd', '--train_steps=3000'],
  'sync_sgd with a backup': [
    '--strategy=sync_sgd',
    '--replicas_to_aggregate=2',
    '--train_steps=4000',
  ],
  'downpour': ['--strategy=downpour', '--train_steps=9000'],
  'easgd': [
    '--strategy=easgd',
    '--local_optimizer=adam',
    '--local_learning_rate=0.003',
    '--train_steps=2000',
  ],
}


@dataclasses.dataclass
class Fault:
  """One fault and what came of it.

  Attributes:
    task: str, such as 'ps 0'.
    kind: str, of KINDS.
    recover_secs: float, None if it never recovered.
    steps_lost: int, global steps that had to be done again.
    is_survived: bool; the end of the run has its say too.
    note: str, what went wrong.
  """

  task: str
  kind: str
  recover_secs: float | None = None
  steps_lost: int = 0
  is_survived: bool = False
  note: str = ''


@dataclasses.dataclass
class Log:
  """What a task has written, each line with the time at which we saw it."""

  path: pathlib.Path
  position: int = 0
  rest: bytes = b''
  step: int = 0
  step_time: float = 0.0
  start_times: list = dataclasses.field(default_factory=list)
  recoveries: list = dataclasses.field(default_factory=list)

  def read(self):
    """Takes in what was written since the last call."""
    if not self.path.exists():
      return
    with open(self.path, 'rb') as file:
      file.seek(self.position)
      data = file.read()
    self.position += len(data)
    *lines, self.rest = (self.rest + data).split(b'\n')
    now = time.monotonic()
    for line in lines:
      text = line.decode(errors='replace')
      if match := re.match(r'step (\d+)/', text):
        self.step, self.step_time = int(match[1]), now
      elif text.startswith('--- '):
        self.start_times.append(now)
      elif match := re.match(r'recovered at step (\d+): (\d+) steps', text):
        self.recoveries.append((now, int(match[1]), int(match[2])))


class Run:
  """A launch, and a look at its logs."""

  def __init__(self, folder, flags):
    """
    Args:
      folder: path, for the logdir and the logs.
      flags: list of str, of train.
    """
    self.logdir = pathlib.Path(folder) / 'run'
    self._logs_dir = pathlib.Path(folder) / 'logs'
    self.logs = {
      name: Log(self._logs_dir / f'{name.replace(" ", "_")}.log')
      for name in TASKS
    }
    self._screen = open(pathlib.Path(folder) / 'screen', 'w+b')  # noqa: SIM115
    self._launch = subprocess.Popen(
      [
        *(sys.executable, '-m', 'distmnist.launch'),
        *(f'--num_ps={NUM_PS}', f'--num_workers={NUM_WORKERS}'),
        *(f'--logs_dir={self._logs_dir}', '--max_restarts=1000', '--'),
        *(*COMMON, *flags, f'--logdir={self.logdir}'),
      ],
      cwd=runs.REPO,
      stdout=self._screen,
      stderr=subprocess.STDOUT,
    )

  @property
  def is_running(self):
    return self._launch.poll() is None

  @property
  def step(self):
    return max(log.step for log in self.logs.values())

  @property
  def workers(self):
    return [log for name, log in self.logs.items() if name[0] == 'w']

  def look(self):
    for log in self.logs.values():
      log.read()

  def wait_until(self, is_true, limit_secs=LIMIT_SECS):
    """Returns whether it became true while the run lasted."""
    deadline = time.monotonic() + limit_secs
    while time.monotonic() < deadline:
      is_running = self.is_running
      self.look()
      if is_true():
        return True
      if not is_running:
        return False
      threading.Event().wait(0.02)  # A look at some files, again and again.
    return False

  def find_pids(self):
    """Returns {task name: pid} of those that run."""
    names = {str(log.path): name for name, log in self.logs.items()}
    found = {}
    for stdout in pathlib.Path('/proc').glob('[0-9]*/fd/1'):
      try:
        name = names.get(os.readlink(stdout))
      except OSError:
        continue
      if name:
        found[name] = int(stdout.parts[2])
    return found

  def signal(self, name, signum):
    """Signals a task by a handle that no stranger can come under.

    Returns:
      Whether the task was there: the training may be over.
    """
    pid = self.find_pids().get(name)
    if pid is None:
      return False
    with contextlib.suppress(ProcessLookupError):
      handle = os.pidfd_open(pid)
      try:
        if self.find_pids().get(name) == pid:
          signal.pidfd_send_signal(handle, signum)
          return True
      finally:
        os.close(handle)
    return False

  def find_saved_step(self):
    """Returns the step of the latest checkpoint, 0 if there is none."""
    names = [path.name for path in self.logdir.glob('model.ckpt-*.index')]
    return max([0, *(int(re.search(r'-(\d+)\.', n)[1]) for n in names)])

  def inject(self, fault):
    """Does it, and waits until all is well again; fills in `fault`."""
    self.look()
    log, saved = self.logs[fault.task], self.find_saved_step()
    start, num_starts = time.monotonic(), len(log.start_times)
    seen = self.step
    if not self.signal(fault.task, SIGNALS[fault.kind]):
      fault.is_survived = self.wait_until(lambda: not self.is_running)
      fault.note = 'gone before its fault'
      return
    if fault.kind == 'freeze':
      self.wait_until(lambda: False, FREEZE_SECS)
      self.look()
      seen = self.step
      self.signal(fault.task, signal.SIGCONT)
      back = time.monotonic()
    else:
      if not self.wait_until(lambda: len(log.start_times) > num_starts):
        fault.is_survived = not self.is_running
        fault.note = 'not started again'
        return
      back = log.start_times[num_starts]
    is_ps = fault.task.startswith('ps')
    if is_ps and fault.kind != 'freeze':
      # Every worker has to find out, and to make a step from the checkpoint.
      def is_well():
        return all(
          any(t > start for t, _, _ in w.recoveries)
          and w.step_time > w.recoveries[-1][0]
          for w in self.workers
        )
    elif is_ps:

      def is_well():
        return all(w.step_time > back for w in self.workers)
    else:

      def is_well():
        return log.step_time > back

    if not self.wait_until(is_well):
      # How the run has ended is looked at later.
      fault.is_survived = not self.is_running
      fault.note = 'no next step'
      if fault.is_survived:
        fault.note += ', as the training was over'
      return
    fault.recover_secs = time.monotonic() - back
    since = [r for w in self.workers for r in w.recoveries if r[0] > start]
    fault.steps_lost = max([0, *(lost for _, _, lost in since)])
    if fault.task == 'worker 0' and fault.kind != 'freeze':
      fault.steps_lost = max(fault.steps_lost, seen - log.step)
    oldest = min([self.step, *(step for _, step, _ in since)])
    if oldest < saved:
      fault.note = f'step {saved} was saved, but {oldest} came back'
      return
    fault.is_survived = True

  def finish(self, limit_secs=600):
    """Waits for the end; returns (problem or '', report or None)."""
    if not self.wait_until(lambda: not self.is_running, limit_secs):
      self.stop()
      return f'still ran after {limit_secs} s', None
    if self._launch.returncode:
      return f'exit code {self._launch.returncode}: {self.read_screen()}', None
    if left := self.find_pids():
      return f'left behind: {left}', None
    report = json.loads((self.logdir / 'report.json').read_text())
    wanted = int(report['flags']['train_steps'])
    if report['global_step'] < wanted:
      return f'ended at step {report["global_step"]} of {wanted}', report
    return '', report

  def read_screen(self):
    self._screen.seek(0)
    lines = self._screen.read().decode(errors='replace').splitlines()
    return '\n'.join(line for line in lines if not line.startswith('step '))

  def stop(self):
    """Ends what is left of the run."""
    if self.is_running:
      self._launch.terminate()
      self._launch.wait(30)

  def close(self):
    self.stop()
    self._screen.close()


def run_with_faults(flags, num_faults, seed, keep=None):
  """Runs a training with up to `num_faults`; fewer if it ends before.

  Args:
    flags: list of str, of train, with --train_steps among them.
    num_faults: int.
    seed: int, of the tasks, kinds and moments.
    keep: path to copy the logs of a run to that has a problem, or None.

  Returns:
    (list of Fault, problem or '', report or None).
  """
  draw = random.Random(seed)
  [last_step] = [
    int(flag.partition('=')[2]) for flag in flags if '--train_steps' in flag
  ]
  marks = sorted(draw.uniform(0.02, 0.7) * last_step for _ in range(num_faults))
  faults, problem, report = [], 'broken off', None
  with tempfile.TemporaryDirectory() as folder:
    run = Run(folder, flags)
    try:
      for mark in marks:
        # All are well and under way.
        ready = run.wait_until(
          lambda mark=mark: (
            run.step >= mark and all(w.step for w in run.workers)
          ),
          limit_secs=300,
        )
        if not ready:
          break
        fault = Fault(draw.choice(TASKS), draw.choice(KINDS))
        if fault.task not in run.find_pids():
          break  # The training is over sooner than we were.
        faults.append(fault)
        run.inject(fault)
        if not fault.is_survived:
          break
      if faults and not faults[-1].is_survived:
        run.stop()
        problem, report = f'{faults[-1]}', None
      else:
        problem, report = run.finish()
    finally:
      run.close()
      if problem and keep:
        shutil.copytree(folder, keep, dirs_exist_ok=True)
  if problem:
    for fault in faults[-1:]:
      fault.is_survived = False
  return faults, problem, report


def measure_rules(rules, num_faults, seed, extra, keep):
  """Yields (rule, Fault) and prints what goes on to stderr."""
  share = -(-num_faults // len(rules))
  for rule in rules:
    flags = [*RULES[rule], *extra]
    _, problem, report = run_with_faults(flags, 0, seed, keep)
    if problem:
      raise RuntimeError(f'{rule} without faults: {problem}')
    wanted = report['test_accuracy']
    left = min(share, num_faults)
    num_faults -= left
    while left:
      faults, problem, report = run_with_faults(flags, left, seed, keep)
      seed += 1
      if report and abs(report['test_accuracy'] - wanted) > 0.005:
        problem = problem or 'accuracy'
        for fault in faults:
          fault.is_survived = False
      if not faults:
        raise RuntimeError(f'{rule}: {problem or "too short for a fault"}')
      accuracy = report and report['test_accuracy']
      print(
        f'{rule}: {len(faults)} faults, test accuracy {accuracy} '
        f'({wanted} without) {problem}',
        file=sys.stderr,
        flush=True,
      )
      for fault in faults:
        print(f'  {fault}', file=sys.stderr, flush=True)
        yield rule, fault
      left -= len(faults)


def print_faults(found):
  """Prints the table: a row a kind of fault and role."""
  rows = {}
  for _, fault in found:
    role = {'worker 0': 'chief'}.get(fault.task, fault.task.split()[0])
    rows.setdefault((role, fault.kind), []).append(fault)
  table = []
  for (role, kind), faults in sorted(rows.items()):
    secs = [f.recover_secs for f in faults if f.recover_secs is not None]
    table.append(
      [
        role,
        kind,
        f'{sum(f.is_survived for f in faults)} of {len(faults)}',
        f'{runs.median(secs):.1f}' if secs else '-',
        f'{max(secs):.1f}' if secs else '-',
        str(max(f.steps_lost for f in faults)),
      ]
    )
  print(f'{runs.describe_machine()}; {NUM_PS} ps, {NUM_WORKERS} workers')
  print(f'rules: {", ".join(dict.fromkeys(rule for rule, _ in found))}\n')
  header = 'task', 'fault', 'survived', 'median s', 'max s', 'most steps lost'
  runs.print_table(header, table)
  num_survived = sum(fault.is_survived for _, fault in found)
  print(f'\n{num_survived} of {len(found)} survived')


def read_memory(pid):
  """Returns the resident memory of a process in MB, None if it is gone."""
  try:
    status = pathlib.Path(f'/proc/{pid}/status').read_text()
  except OSError:
    return None
  found = re.search(r'VmRSS:\s+(\d+) kB', status)
  return int(found[1]) / 1000 if found else None


def soak(rule, every_secs, seed, extra):
  """One run to its end with a fault every `every_secs`; returns a problem.

  A leak shows as a peak of a process's second half of life above that of its
  first; a process must have lived a minute and a half to be looked at.
  """
  draw = random.Random(seed)
  faults, memory = [], {}
  start = time.monotonic()
  with tempfile.TemporaryDirectory() as folder:
    run = Run(folder, [*RULES[rule], *extra])
    try:
      next_fault = start + every_secs
      while run.is_running:
        run.wait_until(lambda: False, 1.0)
        now, pids = time.monotonic(), run.find_pids()
        for name, pid in pids.items():
          if megabytes := read_memory(pid):
            memory.setdefault((name, pid), []).append((now, megabytes))
        fault = Fault(draw.choice(TASKS), draw.choice(KINDS))
        if now > next_fault and fault.task in pids:
          next_fault = max(now, next_fault + every_secs)
          run.inject(fault)
          faults.append(fault)
          print(f'{now - start:.0f} s: {fault}', file=sys.stderr, flush=True)
      problem, report = run.finish()
    finally:
      run.close()
  minutes = (time.monotonic() - start) / 60
  print(
    f'{runs.describe_machine()}; {rule}, {NUM_PS} ps, {NUM_WORKERS} workers'
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
  for name in TASKS:
    lives = rows.get(name, [])
    if lives:
      secs, first, second = max(lives)
      growths = [second - first for _, first, second in lives]
      table.append(
        [
          name,
          str(len(lives)),
          f'{secs:.0f}',
          f'{first:.0f}',
          f'{second:.0f}',
          f'{runs.median(growths):+.0f}',
          f'{max(growths):+.0f}',
        ]
      )
  header = (
    'task',
    'lives over 90 s',
    'longest, s',
    'its peak MB, first half',
    'second half',
    'growth, median life, MB',
    'worst life',
  )
  runs.print_table(header, table)


def main():
  parser = argparse.ArgumentParser(
    description=__doc__.splitlines()[0],
    epilog='What comes after -- is given to train.',
  )
  parser.add_argument('--faults', type=int, default=100)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--rules', default=','.join(RULES))
  parser.add_argument('--soak', metavar='RULE', choices=RULES)
  parser.add_argument('--every_secs', type=float, default=20)
  parser.add_argument('--keep', help='where to copy the logs of a bad run')
  # So that a run is ended, too.
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
  words = sys.argv[1:]
  cut = words.index('--') if '--' in words else len(words)
  args, extra = parser.parse_args(words[:cut]), words[cut + 1 :]
  if args.soak:
    return bool(soak(args.soak, args.every_secs, args.seed, extra))
  found = list(
    measure_rules(
      args.rules.split(','), args.faults, args.seed, extra, args.keep
    )
  )
  print_faults(found)
  return not all(fault.is_survived for _, fault in found)


if __name__ == '__main__':
  sys.exit(main())
