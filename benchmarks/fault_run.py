"""A run that faults are done to: a launch, its tasks, and what they write."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import runs

sys.path.insert(0, str(runs.REPO))
from distmnist import checkpoints  # noqa: E402
from distmnist import history as history_lib  # noqa: E402

# So long a fault may take until it counts as not survived.
LIMIT_SECS = 60.0
COMMON = [
  '--model=mlp',
  '--initializer=glorot',
  '--batch_size=100',
  '--optimizer=adam',
  '--learning_rate=0.003',
  '--save_steps=200',
  # Of no end: it has the best of all evaluations told.
  '--validation_steps=150',
  '--early_stopping_patience=1000',
  '--log_secs=0',
  '--stall_warn_secs=3',
  '--history',
]


def name_tasks(num_ps, num_workers):
  """Returns the names of all tasks, such as 'ps 0'."""
  return [
    *(f'ps {i}' for i in range(num_ps)),
    *(f'worker {i}' for i in range(num_workers)),
  ]


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
  lines: list = dataclasses.field(default_factory=list)

  def read(self):
    """Takes in what was written since the last call."""
    if not self.path.exists():
      return
    with open(self.path, 'rb') as file:
      file.seek(self.position)
      data = file.read()
    self.position += len(data)
    *lines, self.rest = (self.rest + data).split(b'\n')
    now = time.time()
    for line in lines:
      text = line.decode(errors='replace')
      self.lines.append((now, text))
      if match := re.match(r'step (\d+)/', text):
        self.step, self.step_time = int(match[1]), now
      elif text.startswith('--- '):
        self.start_times.append(now)
      elif match := re.match(r'recovered at step (\d+): (\d+) steps', text):
        self.recoveries.append((now, int(match[1]), int(match[2])))


class Run:
  """A launch, and a look at its logs.

  Attributes:
    names: list of str, its tasks.
    logdir: path, of train.
    frozen: list of (task, from, until), when it was stopped by SIGSTOP.
  """

  def __init__(self, folder, flags, num_ps=2, num_workers=3, env=None):
    """
    Args:
      folder: path, for the logdir and the logs.
      flags: list of str, of train, with --train_steps=N among them.
      num_ps, num_workers: ints.
      env: {name: value} beside our own, of all tasks.
    """
    self.names = name_tasks(num_ps, num_workers)
    self.shape = num_ps, num_workers
    self.folder = pathlib.Path(folder)
    self.logdir = self.folder / 'run'
    self.logs_dir = self.folder / 'logs'
    self.flags = [*COMMON, *flags, f'--logdir={self.logdir}']
    self.frozen = []
    self._history_positions = {}
    self.logs = {
      name: Log(self.logs_dir / f'{name.replace(" ", "_")}.log')
      for name in self.names
    }
    self._start({**os.environ, **(env or {})})

  def _start(self, env):
    num_ps, num_workers = self.shape
    self._screen = open(self.folder / 'screen', 'w+b')  # noqa: SIM115
    self._launch = subprocess.Popen(
      [
        *(sys.executable, '-m', 'distmnist.launch'),
        *(f'--num_ps={num_ps}', f'--num_workers={num_workers}'),
        *(f'--logs_dir={self.logs_dir}', '--max_restarts=1000', '--'),
        *self.flags,
      ],
      cwd=runs.REPO,
      env=env,
      stdout=self._screen,
      stderr=subprocess.STDOUT,
    )

  @property
  def is_running(self):
    return self._launch.poll() is None

  @property
  def code(self):
    """The exit code of the launch, an int, None while it runs."""
    return self._launch.returncode

  @property
  def step(self):
    return max(log.step for log in self.logs.values())

  @property
  def last_step(self):
    """The int of --train_steps."""
    [*_, last] = [f for f in self.flags if f.startswith('--train_steps=')]
    return int(last.partition('=')[2])

  @property
  def workers(self):
    return [log for name, log in self.logs.items() if name[0] == 'w']

  def look(self):
    for log in self.logs.values():
      log.read()

  def wait_until(self, is_true, limit_secs=LIMIT_SECS, every_secs=0.02):
    """Returns whether it became true while the run lasted."""
    deadline = time.monotonic() + limit_secs
    while time.monotonic() < deadline:
      is_running = self.is_running
      self.look()
      if is_true():
        return True
      if not is_running:
        return False
      # A look at some files, again and again.
      threading.Event().wait(every_secs)
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

  def freeze(self, name, secs):
    """Stops a task for so long; returns whether it was there."""
    if not self.signal(name, signal.SIGSTOP):
      return False
    start = time.time()
    self.wait_until(lambda: False, secs)
    self.signal(name, signal.SIGCONT)
    self.frozen.append((name, start, time.time()))
    return True

  def read_history(self):
    """Returns the events of all lives so far; see distmnist.history."""
    return history_lib.read(str(self.logdir))

  def read_new_events(self):
    """Returns the events since the last call, of all lives."""
    events = []
    for path in (self.logdir / 'history').glob('*.jsonl'):
      with open(path, 'rb') as file:
        file.seek(self._history_positions.get(path, 0))
        lines = file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b'\n'):
          del lines[-1]
      length = sum(map(len, lines))
      self._history_positions[path] = (
        self._history_positions.get(path, 0) + length
      )
      events += map(json.loads, lines)
    return events

  def find_saved_step(self):
    """Returns the step of the latest checkpoint, 0 if there is none."""
    names = [path.name for path in self.logdir.glob('model.ckpt-*.index')]
    return max([0, *(int(re.search(r'-(\d+)\.', n)[1]) for n in names)])

  def find_kept_step(self):
    """Returns the step of the best checkpoint, or None if there is none."""
    path = checkpoints.find_latest(checkpoints.best_dir(str(self.logdir)))
    return path and checkpoints.read_step(path)

  def finish(self, limit_secs=600):
    """Waits for the end; returns (problem or '', report or None)."""
    if not self.wait_until(lambda: not self.is_running, limit_secs):
      self.stop()
      return f'still ran after {limit_secs} s', None
    if self.code:
      return f'exit code {self.code}: {self.read_screen()}', None
    if left := self.find_pids():
      return f'left behind: {left}', None
    report = json.loads((self.logdir / 'report.json').read_text())
    if report['global_step'] < self.last_step:
      problem = f'ended at step {report["global_step"]} of {self.last_step}'
      return problem, report
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
