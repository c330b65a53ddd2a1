"""A run whose tasks are on hosts of their own, for faults of the network.

The hosts are network namespaces (network.py) that share the file system, like
hosts that mount one. A task that ends with a code other than 0 is restarted,
but code 1 ends the run; with the chief those that are done start again, as in
a launch.
"""

import signal
import time

from distmnist.common.names import ATTEMPT, TRAIN
from distmnist.launching.screen import task_logs
from lib import fault_run, processes, runs
from lib import network as network_lib

MBITS = 1000


class HostsRun(fault_run.Run):
  """A Run whose tasks are started here, each in a network of its own.

  Attributes:
    host_flags: list of str, train's flags that come last.
    module: str, what a task runs by `python -m`.
  """

  # A lost packet costs a TCP timeout: send fewer bytes, give up after seconds.
  host_flags = ['--model=softmax', '--stall_fail_secs=20']
  module = TRAIN

  def _start(self):
    num_ps, num_workers = self.shape
    # One more host, to take the place of another.
    self._network = network_lib.Network(num_ps + num_workers + 1, MBITS)
    self.logs_dir.mkdir()
    self.logdir.mkdir()
    tasks = network_lib.make_tasks(
      *(self._network, num_ps, num_workers),
      [*self.flags, *self.host_flags],
      self.module,
    )
    self._argv = {task.name: task.argv for task in tasks}
    self._hosts = {task.name: i for i, task in enumerate(tasks)}
    self._env = {**self._env, 'CUDA_VISIBLE_DEVICES': ''}
    self._running, self._attempts, self._old = {}, {}, []
    self._code = None
    for name in self.logs:
      self._start_task(name)

  def start_again(self):
    self._code = None
    for name in self.logs:
      self._start_task(name)

  def _start_task(self, name):
    self._attempts[name] = attempt = self._attempts.get(name, 0) + 1
    env = self._env
    if attempt > 1:
      env = {**env, ATTEMPT: str(attempt)}
      task_logs.begin_attempt(self.logs[name].path, f'restart {attempt - 1}')
    self._running[name] = self.group.start(
      processes.Process(
        name,
        self._network.wrap(self._hosts[name], self._argv[name]),
        self.logs[name].path,
        env=env,
      )
    )

  @property
  def code(self):
    return self._code

  def look(self):
    super().look()
    if self._code is not None:
      return
    codes = {name: process.code for name, process in self._running.items()}
    if 1 in codes.values():
      self._code = 1
    elif all(code == 0 for code in codes.values()):
      self._code = 0
    else:
      is_chief_lost = bool(codes['worker 0'])  # None runs.
      for name, code in codes.items():
        if code or (code == 0 and is_chief_lost):
          self._start_task(name)

  def drop_packets(self, names, share):
    """Drops this share of the packets that the hosts of `names` send."""
    for name in names:
      self._network.drop(self._hosts[name], share)

  def let_packets_through(self, names):
    for name in names:
      self._network.let_through(self._hosts[name])

  def replace(self, name, secs):
    """Suspends a task, starts it elsewhere at its address, and resumes it.

    The old host has lost its network but not the file system: the old task has
    to find out for itself that it is no longer wanted.

    Returns:
      Whether the task was running.
    """
    if not self.signal(name, signal.SIGSTOP):
      return False
    start = time.time()
    log = self.logs[name]
    log.path.rename(log.path.with_suffix('.old'))
    self.logs[name] = fault_run.Log(log.path)
    spare = len(self._hosts)
    self._network.take_over(self._hosts[name], spare)
    self._hosts[name] = spare
    old = self._running[name]
    self._old.append(old)
    self._start_task(name)
    self.wait_until(lambda: False, secs)
    self.group.signal(old, signal.SIGCONT)
    self.frozen.append((name, start, time.time()))
    return True

  def finish(self, limit_secs=600):
    problem, report = super().finish(limit_secs)

    def have_ended():
      return all(process.code is not None for process in self._old)

    # It waits --start_timeout_secs for the ps, which it cannot reach.
    if not self.group.wait_until(have_ended, 60 + runs.LIMIT_SECS):
      problem = problem or 'the one that was replaced has not ended'
    return problem, report

  @property
  def screen(self):
    return '\n'.join(
      f'{name}: {text}'
      for name, log in self.logs.items()
      for _, text in log.lines[-5:]
    )

  def close(self):
    super().close()
    self._network.close()
    self._code = self._code or 143
