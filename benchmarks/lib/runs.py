"""Runs of the shipped command line, and what their tasks write."""

import contextlib
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

from lib import processes

# How long to wait for something in a run.
LIMIT_SECS = 150.0


def make_command(num_ps, num_workers, flags, launch_flags=()):
  """Returns the command of a launch; `flags` are those of train."""
  return [
    *(sys.executable, '-m', 'distmnist.launch'),
    *(f'--num_ps={num_ps}', f'--num_workers={num_workers}'),
    *(*launch_flags, '--', *flags),
  ]


def name_tasks(num_ps, num_workers):
  """Returns the names of all tasks, such as 'ps 0'."""
  return [
    *(f'ps {i}' for i in range(num_ps)),
    *(f'worker {i}' for i in range(num_workers)),
  ]


class Launch:
  """A running launch, and its tasks' logs; a context that ends it.

  Attributes:
    shape: (number of ps, number of workers).
    logs: {task: processes.Log}.
    group: processes.Group, of the launch.
  """

  make_log = processes.Log

  def __init__(self, folder, shape, flags=(), launch_flags=(), env=None):
    """
    Args:
      folder: path, for the screen and the logs.
      shape: (number of ps, number of workers).
      flags, launch_flags: lists of str, train's and launch's.
      env: {name: value}, added to our own for all tasks.
    """
    self.shape, self.folder = shape, pathlib.Path(folder)
    self.flags, self._launch_flags = flags, launch_flags
    self.logs_dir = self.folder / 'logs'
    self.logs = {
      name: self.make_log(processes.task_log(self.logs_dir, name))
      for name in name_tasks(*shape)
    }
    self.group = processes.Group()
    self._env = env or {}
    self._start()

  def _start(self):
    flags = [f'--logs_dir={self.logs_dir}', *self._launch_flags]
    self._launch = processes.Process(
      'launch',
      make_command(*self.shape, self.flags, flags),
      self.folder / 'screen',
      env=self._env,
      has_tasks=True,
    )
    self.group.start(self._launch)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self.close()

  @property
  def code(self):
    """The exit code of the launch, an int, None while it runs."""
    return self._launch.code

  @property
  def is_running(self):
    return self.code is None

  def start_again(self):
    """Gives the same command once more, after its end."""
    self._start()

  def look(self):
    for log in self.logs.values():
      log.read()

  def wait_until(self, is_true, limit_secs=LIMIT_SECS, every_secs=0.02):
    """Returns whether is_true() became true while the run lasted."""
    deadline = time.monotonic() + limit_secs
    while time.monotonic() < deadline:
      is_running = self.is_running
      self.look()
      if is_true():
        return True
      if not is_running:
        return False
      self.group.turn(every_secs)
    return False

  def find_pids(self):
    """Returns {task: pid} of those that run on this machine."""
    names = {str(log.path): name for name, log in self.logs.items()}
    found = {}
    for stdout in pathlib.Path('/proc').glob('[0-9]*/fd/1'):
      with contextlib.suppress(OSError):
        if name := names.get(os.readlink(stdout)):
          found[name] = int(stdout.parts[2])
    return found

  def signal(self, name, signum):
    """Signals a task by a handle that can reach no other process.

    Returns:
      Whether the task was running; the training may be over.
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

  def end(self, signum=0, limit_secs=LIMIT_SECS):
    """Returns the seconds until the launch ends, after `signum` unless 0.

    Raises:
      ProcessError: it did not end with the expected exit code.
    """
    start = time.monotonic()
    if signum:
      self.group.signal(self._launch, signum)
    # Hundreds of logs are not read meanwhile.
    self.group.wait_until(lambda: not self.is_running, limit_secs)
    if self.code != (128 + signum if signum else 0):
      raise processes.ProcessError(f'exit code {self.code}:\n{self.screen}')
    return time.monotonic() - start

  @property
  def screen(self):
    """What the launch has printed except for steps, a str."""
    lines = self._launch.log.read_text(errors='replace').splitlines()
    return '\n'.join(line for line in lines if not line.startswith('step '))

  def close(self):
    """Ends what is left of the run."""
    self.group.close()


def launch(num_ps, num_workers, *flags, launch_flags=(), repo=processes.REPO):
  """Runs `python -m distmnist.launch` to its end.

  Args:
    num_ps, num_workers: int.
    *flags: str, train's.
    launch_flags: iterable of str, launch's.
    repo: path, the checkout whose program to run.

  Returns:
    dict with the report of the run, and in seconds since the command started:
    first_step_secs, last_step_secs (their lines on the screen) and end_secs.

  Raises:
    ProcessError: the launch has failed.
  """
  with tempfile.TemporaryDirectory() as logdir:
    command = make_command(
      num_ps, num_workers, [f'--logdir={logdir}/run', *flags], launch_flags
    )
    screen = processes.Log(f'{logdir}/screen')
    process = processes.Process(
      'launch', command, screen.path, cwd=repo, has_tasks=True
    )
    group = processes.Group(tick_secs=0.01)
    start, end = group.run([process], on_tick=screen.read)
    return {
      'report': json.loads(pathlib.Path(logdir, 'run/report.json').read_text()),
      'first_step_secs': screen.step_times[0] - start,
      'last_step_secs': screen.step_times[-1] - start,
      'end_secs': end - start,
    }
