"""Runs real tasks of distmnist.train, forked from one import as launch does.

What a test starts here is the shipped program: flags in, a process of its
own, a log and an exit code out.
"""

import contextlib
import dataclasses
import importlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

from distmnist.logdir import invariants
from tests.support import in_process
from tests.support.paths import REPO

DEADLINE_SECS = 200

# Small enough that a run takes a second or two.
SMALL = (
  '--dataset=synthetic',
  '--synthetic_train_images=3000',
  '--synthetic_test_images=500',
  '--validation_images=500',
  '--model=softmax',
  '--optimizer=adam',
  '--learning_rate=0.01',
  '--intra_op_parallelism_threads=1',
  '--inter_op_parallelism_threads=2',
)


@dataclasses.dataclass
class Task:
  """A task that was started; `code` is None while it runs."""

  name: str
  log: pathlib.Path
  code: int | None = None
  end_time: float | None = None

  @property
  def output(self):
    return self.log.read_text() if self.log.exists() else ''

  @property
  def last_line(self):
    return self.output.splitlines()[-1]


class Runner:
  """Starts tasks through a fork server that has imported distmnist.train."""

  def __init__(self):
    self._socket, theirs = socket.socketpair(
      socket.AF_UNIX, socket.SOCK_SEQPACKET
    )
    with theirs:
      self._server = subprocess.Popen(
        [
          sys.executable,
          '-m',
          'distmnist.launching.forking.fork_server',
          str(theirs.fileno()),
          'distmnist.train',
        ],
        cwd=REPO,
        env={**os.environ, 'OPENBLAS_NUM_THREADS': '1'},
        pass_fds=[theirs.fileno()],
        start_new_session=True,
      )
    self._tasks = {}
    self.pids = {}
    assert self._read() == {'ready': True}

  @property
  def num_started(self):
    return len(self._tasks)

  def start(self, log, *flags, module='distmnist.train', **env):
    """Starts `python -m module flags...`, with its output in `log` (a path)."""
    name = f'task {len(self._tasks)}'
    task = Task(name, pathlib.Path(log))
    self._tasks[name] = task
    argv = ['python', '-m', module, *(str(flag) for flag in flags)]
    self._send({'start': name, 'argv': argv, 'env': env, 'log': str(log)})
    while name not in self.pids:
      self._take(self._read())
    return task

  def signal(self, task, signum):
    self._send({'signal': int(signum), 'name': task.name})

  def suspend(self, task):
    """Stops a task by SIGSTOP; returns once all of its threads stand still."""
    self.signal(task, signal.SIGSTOP)
    threads = pathlib.Path(f'/proc/{self.pids[task.name]}/task')
    deadline = time.monotonic() + DEADLINE_SECS
    while any(_read_state(thread) != 'T' for thread in threads.iterdir()):
      assert time.monotonic() < deadline, f'{task.log} still runs'
      time.sleep(0.01)

  def wait(self, *tasks, timeout_secs=DEADLINE_SECS):
    """Waits for the end of `tasks`; returns their exit codes, -n by signal n.

    Raises:
      TimeoutError: shows the logs of those that still run.
    """
    deadline = time.monotonic() + timeout_secs
    while left := [task for task in tasks if task.code is None]:
      try:
        self._take(self._read(max(0.01, deadline - time.monotonic())))
      except TimeoutError:
        logs = '\n'.join(f'{t.log}:\n{t.output}' for t in left)
        raise TimeoutError(f'after {timeout_secs} s:\n{logs}') from None
    return [task.code for task in tasks]

  def run(self, log, *flags, module='distmnist.train', **env):
    """Starts a task and waits for its end; returns it."""
    task = self.start(log, *flags, module=module, **env)
    self.wait(task)
    return task

  def kill_all(self):
    """Ends what a test has left running."""
    left = [task for task in self._tasks.values() if task.code is None]
    for task in left:
      self.signal(task, 9)
    self.wait(*left)

  def close(self):
    self._socket.close()
    self._server.wait(DEADLINE_SECS)

  def _send(self, message):
    self._socket.send(json.dumps(message).encode())

  def _read(self, timeout_secs=DEADLINE_SECS):
    self._socket.settimeout(timeout_secs)
    return json.loads(self._socket.recv(1 << 18))

  def _take(self, message):
    if 'pid' in message:
      self.pids[message['name']] = message['pid']
    else:
      task = self._tasks[message['name']]
      task.code, task.end_time = message['code'], time.monotonic()


def _read_state(thread):
  """Returns the letter of a thread's state: T if it is stopped or has ended."""
  try:
    return (thread / 'stat').read_text().rpartition(') ')[2][0]
  except (FileNotFoundError, ProcessLookupError):
    return 'T'


class Cluster:
  """A ps and worker list started by hand, as on hosts of their own."""

  def __init__(self, runner, folder, num_ps, num_workers):
    self._runner = runner
    self._folder = folder
    self._counts = {'ps': num_ps, 'worker': num_workers}
    self._held = contextlib.ExitStack()
    ports = self._held.enter_context(
      in_process.hold_ports(num_ps + num_workers)
    )
    hosts = [f'127.0.0.1:{port}' for port in ports]
    self.hosts = {'ps': hosts[:num_ps], 'worker': hosts[num_ps:]}

  def close(self):
    """Lets go of the ports, which are held from one task to the next."""
    self._held.close()

  def start(self, job_name, index, *flags, **env):
    """Starts one task; a log file for each start."""
    return self._runner.start(
      self._folder / f'{job_name}_{index}.{self._runner.num_started}.log',
      f'--job_name={job_name}',
      f'--task_index={index}',
      f'--ps_hosts={",".join(self.hosts["ps"])}',
      f'--worker_hosts={",".join(self.hosts["worker"])}',
      *flags,
      **env,
    )

  def start_all(self, *flags):
    """Returns (list of ps, list of workers)."""
    return tuple(
      [self.start(job, i, *flags) for i in range(count)]
      for job, count in self._counts.items()
    )


def read_report(logdir):
  """Returns the report.json of a run, a dict, whose numbers must agree."""
  report = json.loads((logdir / 'report.json').read_text())
  assert invariants.check_invariants(report) == []
  return report


def check_kept_best(tasks, logdir):
  """Evaluates the file in best/: it must be what the report says of it."""
  report = read_report(logdir)
  evaluated = tasks.run(
    logdir.parent / 'evaluate',
    f'--logdir={logdir}',
    '--checkpoint=best',
    '--split=validation',
    module='distmnist.evaluate',
  )
  assert (
    f'step {report["best_step"]}  validation accuracy '
    f'{report["validation_accuracy"]:.4f}' in evaluated.output
  )


def import_benchmark(name):
  """Returns a program of benchmarks/ as a module; it finds its neighbours."""
  folder = str(REPO / 'benchmarks')
  sys.path.insert(0, folder)
  try:
    return importlib.import_module(name)
  finally:
    # It may have put more there.
    sys.path.remove(folder)


def steps_of(task):
  """Returns [global_step of each progress line]."""
  return [int(s) for s in re.findall(r'^step (\d+)/', task.output, re.M)]


def wait_for_step(task, step):
  """Waits until a task has printed a progress line at `step` or later."""
  deadline = time.monotonic() + DEADLINE_SECS
  while time.monotonic() < deadline:
    if steps_of(task)[-1:] >= [step]:
      return
    threading.Event().wait(0.05)  # A look at a log, again and again.
  raise TimeoutError(task.output)


def wait_for_line(task, text, timeout_secs=DEADLINE_SECS, count=1):
  """Returns the first (`count`-th) line of the task's log with `text` in it."""
  deadline = time.monotonic() + timeout_secs
  while time.monotonic() < deadline:
    # The last line may not be complete yet.
    lines = [line for line in task.output.split('\n')[:-1] if text in line]
    if len(lines) >= count:
      return lines[count - 1]
    time.sleep(0.02)
  raise TimeoutError(f'no {text!r} in {task.log}:\n{task.output}')
