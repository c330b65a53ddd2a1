"""A run whose tasks are on hosts of their own, for faults of the network.

The hosts are network namespaces (network.py) that share the file system, as
hosts do that mount one. What ends with another code than 0 is started again.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

import fault_run
import network as network_lib
import runs

from distmnist import tasks as tasks_lib

MBITS = 1000
# A loss costs a time-out of TCP: fewer bytes, and given up after seconds.
FLAGS = ['--model=softmax', '--stall_fail_secs=20']


class HostsRun(fault_run.Run):
  """A Run whose tasks are started here, each in a network of its own."""

  def _start(self, env):
    num_ps, num_workers = self.shape
    num_tasks = num_ps + num_workers
    self._stack = contextlib.ExitStack()
    # One more host, to take the place of another.
    self._network = self._stack.enter_context(
      network_lib.Network(num_tasks + 1, MBITS)
    )
    self.logs_dir.mkdir()
    self.logdir.mkdir()
    addresses = [
      f'{self._network.address(i)}:{tasks_lib.FIRST_PORT}'
      for i in range(num_tasks)
    ]
    cluster = tasks_lib.make_tasks(
      addresses[:num_ps],
      addresses[num_ps:],
      [*self.flags, *FLAGS],
      num_cores=len(os.sched_getaffinity(0)),
    )
    self._argv = {task.name: list(task.argv[1:]) for task in cluster}
    self._hosts = {task.name: i for i, task in enumerate(cluster)}
    self._env = env
    self._processes, self._attempts, self._old = {}, {}, []
    self._code = None
    for name in self.names:
      self._start_task(name)

  def _start_task(self, name):
    self._attempts[name] = attempt = self._attempts.get(name, 0) + 1
    env = {**self._env, 'CUDA_VISIBLE_DEVICES': ''}
    with open(self.logs[name].path, 'a') as log:
      if attempt > 1:
        env[tasks_lib.ATTEMPT] = str(attempt)
        log.write(f'--- restart {attempt - 1} ---\n')
        log.flush()
      self._processes[name] = subprocess.Popen(
        self._network.wrap(
          self._hosts[name], [sys.executable, *self._argv[name]]
        ),
        cwd=runs.REPO,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
      )

  @property
  def is_running(self):
    return self._code is None

  @property
  def code(self):
    return self._code

  def look(self):
    super().look()
    if self._code is not None:
      return
    codes = {name: p.poll() for name, p in self._processes.items()}
    if 1 in codes.values():
      self._code = 1
    elif all(code == 0 for code in codes.values()):
      self._code = 0
    else:
      for name, code in codes.items():
        if code:
          self._start_task(name)

  def drop_packets(self, names, share):
    """Loses this share of what the hosts of `names` send."""
    for name in names:
      self._network.drop(self._hosts[name], share)

  def let_packets_through(self, names):
    for name in names:
      self._network.let_through(self._hosts[name])

  def replace(self, name, secs):
    """Stops a task, starts it elsewhere under its address, and wakes it up.

    Its own host has no network any more, but the file system: it is for it to
    find out that it is not wanted.

    Returns:
      Whether it was there.
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
    old = self._processes[name]
    self._old.append(old)
    self._start_task(name)
    self.wait_until(lambda: False, secs)
    old.send_signal(signal.SIGCONT)
    self.frozen.append((name, start, time.time()))
    return True

  def finish(self, limit_secs=600):
    problem, report = super().finish(limit_secs)
    for old in self._old:
      try:
        old.wait(fault_run.LIMIT_SECS)
      except subprocess.TimeoutExpired:
        problem = problem or 'the one that was replaced has not ended'
    return problem, report

  def read_screen(self):
    return '\n'.join(
      f'{name}: {text}'
      for name, log in self.logs.items()
      for _, text in log.lines[-5:]
    )

  def stop(self):
    for process in [*self._processes.values(), *self._old]:
      process.kill()
      process.wait()
    self._code = self._code or 143

  def close(self):
    self.stop()
    self._stack.close()
