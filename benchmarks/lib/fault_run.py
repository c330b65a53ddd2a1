"""A run to inject faults into: a launch, its tasks, and what they write."""

import json
import pathlib
import re
import signal
import time

import distmnist.runtime  # noqa: F401  TensorFlow, quietly.
from distmnist.logdir import checkpoints, history
from lib import processes, runs

# What is trained, as train's flags.
NET = [
  '--model=mlp',
  '--initializer=glorot',
  '--batch_size=100',
  '--optimizer=adam',
  '--learning_rate=0.003',
]


class Log(processes.Log):
  """What a task has written, and what it says about its steps and lives.

  Attributes:
    step: int, the last one reported, 0 for none.
    step_time: float, when that was.
    start_times: list of float, when it was restarted.
    recoveries: list of (time, step it came back to, steps lost).
  """

  def __init__(self, path):
    # The times are compared with those in the history.
    super().__init__(path, clock=time.time)
    self.step, self.step_time = 0, 0.0
    self.start_times, self.recoveries = [], []

  def _take(self, now, text):
    super()._take(now, text)
    if match := re.match(r'step (\d+)/', text):
      self.step, self.step_time = int(match[1]), now
    elif text.startswith('--- '):
      self.start_times.append(now)
    elif match := re.match(r'recovered at step (\d+): (\d+) steps', text):
      self.recoveries.append((now, int(match[1]), int(match[2])))


class Run(runs.Launch):
  """A launch that restarts lost tasks, and what its training leaves.

  Attributes:
    common: list of str, train's flags that come before the given ones.
    launch_flags: list of str, launch's besides --max_restarts.
    steps_flag: str, the flag that has the last step.
    logdir: path, train's --logdir.
    own_flags: list of str, the given ones.
    frozen: list of (task, from, until), when SIGSTOP had suspended it.
    files: fault_files.Files, or None: calls of the tasks that fail or hang.
  """

  make_log = Log
  common = [
    *NET,
    '--save_steps=200',
    # Never stops the training, but has the best evaluation reported.
    '--validation_steps=150',
    '--early_stopping_patience=1000',
    '--log_secs=0',
    '--stall_warn_secs=3',
    '--history',
  ]
  launch_flags = ()
  steps_flag = '--train_steps='

  def __init__(self, folder, flags, num_ps=2, num_workers=3, files=None):
    """
    Args:
      folder: path, for the logdir and the logs.
      flags: list of str, train's flags, with --train_steps=N among them.
      num_ps, num_workers: ints.
      files: fault_files.Files, or None.
    """
    self.files = files
    self.logdir = self.find_logdir(folder)
    self.frozen = []
    self._history_positions = {}
    self.own_flags = flags
    flags = [*self.common, *flags, f'--logdir={self.logdir}']
    super().__init__(
      folder,
      (num_ps, num_workers),
      flags,
      ['--max_restarts=1000', *self.launch_flags],
      files.env if files else None,
    )

  def find_logdir(self, folder):
    """Returns the --logdir, a path."""
    return pathlib.Path(folder) / 'run'

  @property
  def step(self):
    return max(log.step for log in self.logs.values())

  @property
  def last_step(self):
    """The int of `steps_flag`."""
    [*_, last] = [f for f in self.flags if f.startswith(self.steps_flag)]
    return int(last.partition('=')[2])

  @property
  def workers(self):
    return [log for name, log in self.logs.items() if name[0] == 'w']

  def freeze(self, names, secs):
    """Suspends tasks for `secs`; returns whether all of them were running."""
    start = time.time()
    frozen = [name for name in names if self.signal(name, signal.SIGSTOP)]
    self.wait_until(lambda: False, secs)
    for name in frozen:
      self.signal(name, signal.SIGCONT)
      self.frozen.append((name, start, time.time()))
    return frozen == names

  def read_history(self):
    """Returns the events of all lives so far; see distmnist.logdir.history."""
    return history.read(str(self.logdir))

  def read_new_events(self):
    """Returns the events since the last call, of all lives."""
    events = []
    for path in (self.logdir / 'distmnist-files' / 'history').glob('*.jsonl'):
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

  def wait_for_event(self, kind, limit_secs=30.0):
    """Returns whether an event of that kind has come since the last read."""
    return self.wait_until(
      lambda: any(e['event'] == kind for e in self.read_new_events()),
      limit_secs,
      every_secs=0.002,
    )

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
      lines = self.read_last_lines()
      self.close()
      return f'still ran after {limit_secs} s\n{lines}', None
    if self.code:
      return f'exit code {self.code}: {self.screen}', None
    if left := self.find_pids():
      return f'left behind: {left}', None
    report = self.read_report()
    if report['global_step'] < self.last_step:
      problem = f'ended at step {report["global_step"]} of {self.last_step}'
      return problem, report
    return '', report

  def read_last_lines(self, num_lines=8):
    """Returns what each task wrote last, and the launcher, a str."""
    texts = {'launcher': self.screen} | {
      name: log.path.read_text() if log.path.exists() else ''
      for name, log in self.logs.items()
    }
    return '\n'.join(
      f'{name}: {line}'
      for name, text in texts.items()
      for line in text.splitlines()[-num_lines:]
    )

  def read_report(self):
    """Returns the report of a run that has ended, a dict."""
    return json.loads((self.logdir / 'report.json').read_text())
