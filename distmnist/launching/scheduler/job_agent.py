"""Runs a task on the node where a scheduler started it; see job_host.py.

It says where the task will serve, waits until all tasks have done so, runs the
task, and ends it when its launcher says so, falls silent, or has left.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping

from distmnist.common import ports, stop_grace
from distmnist.common import signals as signals_lib
from distmnist.common.names import ATTEMPT
from distmnist.launching import child_process, jobs
from distmnist.launching.scheduler import job_meeting

# How often to look at the shared folder.
TICK_SECS = 0.5


def run() -> None:
  """Runs the task that our argv asks for; ends as it does."""
  folder, name = sys.argv[1:]
  request = job_meeting.read_request(folder)
  if request is None or not os.path.isdir(folder):
    print(f'{name}: the run is over')
    return
  os.chdir(request['cwd'])
  code = _Agent(folder, name, request).run()
  sys.exit(128 - code if code < 0 else code)


class _Agent:
  """Runs the task of this job on behalf of the launcher."""

  def __init__(
    self, folder: str, name: str, request: job_meeting.Request
  ) -> None:
    self._name = name
    self._request = request
    self._meeting = job_meeting.Meeting(folder, name)
    self._pulse = job_meeting.Pulse(self._meeting.launcher_path)
    self._next_beat, self._num_beats = 0.0, 0
    self._signals = signals_lib.Reader(*signals_lib.STOPS, signal.SIGCHLD)
    self._told = ''
    self._is_stopped = False

  def run(self) -> int:
    """Announces the task's place and runs it; returns its code."""
    (held,) = ports.hold_ports(1)
    port = held.getsockname()[1]
    with open(self._meeting.path('out'), 'ab', buffering=0) as self._out:
      self._meeting.say('place', f'{socket.gethostname()}:{port}')
      places = self._wait_for_all()
      code = -signal.SIGTERM if places is None else self._run_task(places)
    self._meeting.say('end', str(code))
    held.close()
    return code

  def _say(self, text: str) -> None:
    self._out.write(f'{text}\n'.encode())

  def _wait_for_all(self) -> dict[str, str] | None:
    """Returns {name: place} of all tasks, None if we are told to leave.

    An evaluator waits for no task and gets {}.
    """
    num_ps, num_workers = self._request['num_ps'], self._request['num_worker']
    roles = jobs.list_roles(num_ps, num_workers, has_evaluator=False)
    names = [f'{job} {index}' for job, index in roles]
    if self._name not in names:
      return {}
    said = None
    while True:
      places = self._meeting.read_places(names)
      missing = [name for name in names if name not in places]
      if not missing:
        return places
      if missing != said:
        said = missing
        more = f' and {len(missing) - 3} more' if len(missing) > 3 else ''
        self._say(f'waiting for the jobs of {", ".join(missing[:3])}{more}')
      if self._listen():
        return None

  def _run_task(self, places: Mapping[str, str]) -> int:
    attempt = self._meeting.hear('attempt')
    task = child_process.Task(
      self._make_words(places),
      {**self._request['env'], **({ATTEMPT: attempt} if attempt else {})},
      self._out,
      stop_grace.for_remote(self._request['grace_secs']),
    )
    while (code := task.find_code()) is None:
      for signum in self._listen():
        task.leave(signum)
    return code

  def _make_words(self, places: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the task's command, without its Python."""
    words, module = self._request['train_flags'], self._request['module']
    hosts = {
      job: [place for name, place in places.items() if name.startswith(job)]
      for job in ('ps', 'worker')
    }
    if places:
      tasks = jobs.make_tasks(
        hosts['ps'], hosts['worker'], words, module=module
      )
    else:
      job = jobs.Job(train_flags=tuple(words), module=module, evaluator=True)
      tasks = jobs.make_evaluator_tasks(job)
    (task,) = [task for task in tasks if task.name == self._name]
    return task.argv[1:]

  def _listen(self) -> list[int]:
    """Waits for TICK_SECS or an event; returns new signals."""
    self._beat()
    found: list[int] = []
    if select.select([self._signals], [], [], TICK_SECS)[0]:
      found = [n for n in self._signals.read() if n != signal.SIGCHLD]
      found = [signals_lib.choose_passed_on(n) for n in found]
    told = self._meeting.hear('signal')
    if told and told != self._told:  # None once the folder is gone.
      self._told = told
      found.append(int(told.split()[0]))
    is_alone = self._pulse.is_lost() or not self._meeting.is_open
    if is_alone and not self._is_stopped:
      found.append(signal.SIGTERM)
    self._is_stopped = self._is_stopped or bool(found)
    return found

  def _beat(self) -> None:
    now = time.monotonic()
    if now >= self._next_beat:
      self._next_beat = now + job_meeting.BEAT_SECS
      self._num_beats += 1
      self._meeting.say('job', str(self._num_beats))


if __name__ == '__main__':
  run()
