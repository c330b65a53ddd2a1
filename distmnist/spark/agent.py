"""A task of the cluster, or a trial of a sweep, within a Spark task.

The processes on the executor are

  Spark's Python process     starts an agent and waits for its end;
    `run_in_barrier`         first finds a port, and learns the others' by
                             allGather;
    `run_trial`              has no port
  the agent                  `python -m distmnist.spark.agent`: runs the task
                             (launching/supervisor), talks to the driver
                             (spark/agent_host.py)
  the task                   distmnist.train, its output in a file

Spark itself starts all agents of a training or none (a barrier stage), tells
them each other's addresses, and says that a job has ended. What it does not do
is what the agent and its connection are for: it ends its Python processes with
SIGKILL when it cancels a job and when another task of the stage has failed, so
the agent is a process of its own, which notices the end of its stdin; and the
driver has to decide which task stops when, so that the chief still finds the ps
for its last checkpoint, to see the logs as they grow, and to learn exit codes.
If the driver is gone, or silent after the loss of the executor, the agent stops
the task on its own. Whatever happens, the task's processes end with the agent.

Messages are as in spark/links.py. The agent sends

  {"hello": name, "attempt": n, "address": host:port, "executor": text}
  {"lines": [...]}   new lines of the task's log
  {"lost": reason}   Spark has ended its task; ours still runs
  {"end": code}      -n for signal n; a chief adds "report"; null when stopped,
                     unless not all is saved, or it had to be killed
  {"refused": why}   instead of an end: the trial cannot run there

and the driver sends

  {"go": true}       start the task
  {"stop": 15}       end it by SIGTERM, with grace; a second time, at once
  {"leave": true}    done
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from distmnist.common import cli, command_line, stop_grace
from distmnist.common.names import ATTEMPT, CHIEF
from distmnist.launching import jobs
from distmnist.launching.forking import fork_client
from distmnist.launching.screen import log_view, task_logs
from distmnist.launching.supervisor import task_group
from distmnist.spark import links
from distmnist.storage import process_tag

# From the loss of the executor to the stop, if the driver says nothing.
ORPHAN_SECS = 20.0
# The most of a log that one message holds; a message may have 4 MiB.
_READ_BYTES = 1 << 18


class Agent:
  """Runs one task as the driver says, and reports what the task does."""

  def __init__(self, spec: dict[str, Any], stdin: int) -> None:
    """
    Args:
      spec: see partition.py, `_run_agent`.
      stdin: a descriptor; it ends when Spark's Python process does.
    """
    lists = {key: tuple(spec['task'][key]) for key in ('argv', 'env')}
    self._spec = spec
    self._task = jobs.Task(**{**spec['task'], **lists})
    self._stdin = stdin
    # From the threads that read.
    self._heard: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    self._told: set[str] = set()  # the keys of the driver's messages
    self._signals: list[int] = []  # end the task: the second one at once
    self._orphan_deadline: float | None = None

  def run(self) -> int:
    """Runs to the end; returns the exit code of the agent."""
    name, (host, port) = self._spec['name'], self._spec['driver']
    try:
      self._link = links.connect(
        *(host, port, self._spec['secret']),
        lambda _, order: self._heard.put(lambda: self._take(order)),
      )
    except OSError as error:
      print(
        f'{name} cannot reach the driver at {host}:{port}: {error}',
        file=sys.stderr,
      )
      return cli.LOST
    threading.Thread(target=self._read_stdin, daemon=True).start()
    self._link.send(
      hello=name,
      attempt=self._spec['attempt'],
      address=self._task.address,
      executor=self._describe_executor(),
    )
    self._wait_for('go')
    if 'go' in self._told and 'leave' not in self._told:
      why = self._find_obstacle()
      self._link.send(**({'refused': why} if why else self._run_task()))
      self._wait_for('leave')
    self._link.close()
    return 0

  def _find_obstacle(self) -> str | None:
    """Takes the lock of a trial; returns what is in the way, or None."""
    if not self._spec['lock']:
      return None
    path, word = self._spec['lock']
    try:
      # Held until this process ends: the trial does not outlive it.
      self._lock = open(path, encoding='utf-8')  # noqa: SIM115
      fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
      if self._lock.read() == word:
        return None
      why = 'it has another one in its place'
    except BlockingIOError:
      why = 'another sweep has it'
    except OSError as error:
      why = error.strerror
    return f'{self._describe_executor()} does not share {path}: {why}'

  def _run_task(self) -> links.Message:
    task, number = self._task, self._spec['attempt']
    if number > 1:
      task = task.with_env((ATTEMPT, str(number)))
    grace_secs = stop_grace.parse(task.argv)
    folder = self._spec['folder']
    self._log = log_view.Log(task_logs.log_path(folder, task))
    host = fork_client.make_host(
      *(task.module, folder, os.environ),
      fork_tasks=False,
      stop_grace_secs=grace_secs,
    )
    host.signals += self._signals
    self._signals = host.signals
    with task_group.TaskGroup(
      host, folder, on_tick=self._tick, stop_grace_secs=grace_secs
    ) as group:
      group.start(task)
      if group.wait([task]):
        group.stop()
    while self._send_lines():
      pass
    self._link.send(lines=self._log.finish())
    if self._signals:
      record = group.records[task.name]
      is_lost = 'stop' in self._told and record.has_lost_steps
      return {'end': record.code if is_lost else None}
    if group.failure:
      return {'end': group.failure.code}
    report = None
    logdir = command_line.find_value(task.argv, 'logdir')
    if logdir and task.name == CHIEF:
      report = _read_report(os.path.expanduser(logdir))
    return {'end': 0, 'report': report}

  def _tick(self) -> None:
    """Passes on what is new, to and from the driver."""
    self._send_lines()
    self._look()
    deadline = self._orphan_deadline
    is_orphan = deadline and time.monotonic() > deadline
    if not self._signals and (is_orphan or not self._link.is_open):
      self._take({'stop': signal.SIGTERM})

  def _wait_for(self, key: str) -> None:
    """Waits until told `key` or to leave, or until neither will come."""
    while not self._told & {key, 'leave'} and self._link.is_open:
      if key == 'go' and self._orphan_deadline:
        return
      self._heard.get()()

  def _look(self) -> None:
    with contextlib.suppress(queue.Empty):
      while True:
        self._heard.get_nowait()()

  def _take(self, order: links.Message | None) -> None:
    """Notes what the driver has said, or None if it is gone."""
    if order is None:
      self._link.close()
      return
    # The first order is no second signal, whoever has sent us one.
    if 'stop' in order and ('stop' in self._told or not self._signals):
      self._signals.append(signal.SIGTERM)
    self._told |= order.keys()

  def _read_stdin(self) -> None:
    """Waits for the end of stdin, in a thread."""
    while os.read(self._stdin, 4096):
      pass
    self._heard.put(self._note_orphaned)

  def _note_orphaned(self) -> None:
    """Tells the driver that Spark's Python process has ended."""
    self._orphan_deadline = time.monotonic() + ORPHAN_SECS
    pid = self._spec['executor_pid']
    what = self._describe_executor()
    self._link.send(
      lost=f'Spark has ended its Python process on {what}'
      if pid and process_tag.read_start(pid) is not None  # Not a zombie.
      else f'its executor, {what}, has died'
    )

  def _send_lines(self) -> bool:
    """Sends a piece of what is new in the log; returns whether there was any.

    One piece at a time, as the log is a file, and can wait.
    """
    lines = self._log.read_lines(_READ_BYTES)
    if lines:
      self._link.send(lines=lines)
    return bool(lines)

  def _describe_executor(self) -> str:
    pid = self._spec['executor_pid']
    return self._spec['executor'] + (f' (pid {pid})' if pid else '')


def _read_report(logdir: str) -> dict[str, Any] | None:
  try:
    # As written by logdir/report.py; a logdir on another file system has none.
    with open(os.path.join(logdir, 'report.json'), encoding='utf-8') as file:
      return links.parse_object(file.read(links.MAX_MESSAGE_BYTES))
  except OSError:
    return None


def main() -> int:
  """Runs the agent for the spec on stdin; returns its exit code."""
  with open(0, 'rb', buffering=0, closefd=False) as stdin:
    line = stdin.readline()
  if not line.endswith(b'\n'):
    return 0
  spec = json.loads(line)
  try:
    return Agent(spec, 0).run()
  finally:
    shutil.rmtree(spec['folder'], ignore_errors=True)


if __name__ == '__main__':
  sys.exit(main())
