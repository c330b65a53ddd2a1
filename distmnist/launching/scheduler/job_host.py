"""Tasks that a scheduler runs, each as a job that a command submits.

On the node job_agent.py runs the task. The two communicate only through the
folder of job_meeting.py.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping

from distmnist.common import cli, signals
from distmnist.common.names import ATTEMPT, JOB_AGENT
from distmnist.launching import beats, child_process
from distmnist.launching import host as host_lib
from distmnist.launching.scheduler import job_meeting, job_template
from distmnist.launching.screen import log_view, task_logs
from distmnist.launching.supervisor import failures

# How often to look at the shared folder.
TICK_SECS = 0.2
# For the submit commands of jobs that have ended: one may outlive its job.
_SUBMIT_SECS = 1.0


class JobHost(host_lib.Host):
  """Runs each task as a job of its own."""

  name = 'launcher'

  def __init__(
    self,
    folder: str,
    templates: Mapping[str, str],
    python: str,
    grace_secs: float,
  ) -> None:
    """
    Args:
      folder: an absolute path that the nodes share; each attempt at all tasks
        gets a folder in it, where they meet.
      templates: by the names of the tasks; see job_template.
      python: the path of Python on the nodes.
      grace_secs: from SIGTERM to the end of a task.
    """
    super().__init__()
    self.is_ready = True
    self._folder = folder
    self._templates = templates
    self._python = python
    self._grace_secs = grace_secs
    self._jobs: dict[str, _Job] = {}  # Until their ends.
    self._ended: list[tuple[str, int | None]] = []
    # Of jobs that have ended, until they have ended themselves.
    self._submits: list[subprocess.Popen[bytes]] = []
    self._look_time = 0.0

  def __enter__(self) -> JobHost:
    child_process.allow_many_files()  # One a task.
    with contextlib.ExitStack() as stack:
      self._wake = stack.enter_context(signals.waking(self.signals))
      self._beats = stack.enter_context(beats.Beats())
      self._at_exit = stack.pop_all()
    return self

  def __exit__(self, *error: object) -> None:
    with self._at_exit:
      self.signal(list(self._jobs), signal.SIGTERM)
      deadline = time.monotonic() + self._grace_secs
      while self._jobs and time.monotonic() < deadline:
        self.poll(TICK_SECS)
      self.kill()
      deadline = time.monotonic() + _SUBMIT_SECS
      for submit in self._submits:
        with contextlib.suppress(subprocess.TimeoutExpired):
          submit.wait(max(0.0, deadline - time.monotonic()))

  def start(self, request: host_lib.Request) -> None:
    """Submits a task: its job makes `argv` and `env` itself.

    It needs the addresses of the others, which only the jobs know.
    """
    name, attempt = request.name, request.env.get(ATTEMPT, '')
    folder = os.path.join(self._folder, attempt or '1')
    try:
      if not os.path.isdir(folder):
        os.makedirs(folder)
        self._beats.add_file(job_meeting.Meeting(folder, name).launcher_path)
      job = _Job(folder, name, attempt, request.log)
      job.submit(self._templates[name], self._python)
    except OSError as error:
      self.reasons[name] = f'nothing was submitted: {error.strerror}'
      self._ended.append((name, cli.NOT_STARTED))
      return
    self._jobs[name] = job

  def signal(self, names: Iterable[str], signum: int) -> None:
    for name in [name for name in names if name in self._jobs]:
      self._jobs[name].tell(signum)
      if signum == signal.SIGKILL:
        self._end(name, -signum)

  def kill(self) -> None:
    self.signal(list(self._jobs), signal.SIGKILL)

  def poll(
    self, timeout_secs: float | None = None
  ) -> list[tuple[str, int | None]]:
    due_secs = max(0.0, self._look_time - time.monotonic())
    secs = due_secs if timeout_secs is None else min(timeout_secs, due_secs)
    if select.select([self._wake], [], [], 0 if self._ended else secs)[0]:
      self._wake.recv(4096)
    if time.monotonic() >= self._look_time:
      self._look_time = time.monotonic() + TICK_SECS
      for name, job in list(self._jobs.items()):
        code = job.find_code()
        if job.has_place and not job.has_begun:
          job.has_begun = True
          self.begun.append((name, None))
        if code is not None:
          self._end(name, code)
    ended, self._ended = self._ended, []
    return ended

  def _end(self, name: str, code: int) -> None:
    job = self._jobs.pop(name)
    self._submits = [s for s in self._submits if s.poll() is None]
    self._submits.append(job.close())
    if job.reason:
      self.reasons[name] = job.reason
    self._ended.append((name, code))


class _Job:
  """A task, from its submission to its end.

  Attributes:
    reason: why it has ended, where its code does not say.
    has_begun: whether that was told.
  """

  def __init__(self, folder: str, name: str, attempt: str, log: str) -> None:
    # When one task has failed, all meet again in a new folder.
    self._folder = folder
    self._name = name
    self._path = log
    self._meeting = job_meeting.Meeting(folder, name)
    self._meeting.say('attempt', attempt)
    # Once it has a place: a queue may take days.
    self._pulse: job_meeting.Pulse | None = None
    self._output = log_view.Log(self._meeting.path('out'))
    self._told: list[int] = []
    self._num_said = 0  # lines of the scheduler that were shown
    # When one that ends without a word is given up.
    self._end_time: float | None = None
    self.reason = ''
    self.has_begun = False

  @property
  def has_place(self) -> bool:
    """Whether it runs on a node."""
    return self._pulse is not None

  def submit(self, template: str, python: str) -> None:
    """Runs the command that submits it.

    Raises:
      OSError: the system refuses.
    """
    command = shlex.join([python, '-m', JOB_AGENT, self._folder, self._name])
    script = self._meeting.path('sh')
    with open(script, 'w', encoding='utf-8') as file:
      file.write(f'#!/bin/sh\nexec {command}\n')
    os.chmod(script, 0o755)
    log = self._meeting.path('scheduler')
    words = job_template.fill(template, command, script, self._name, log)
    with open(self._meeting.path('submit'), 'wb') as said:
      self._process = subprocess.Popen(
        ['sh', '-c', words],
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=said,
        start_new_session=True,
        preexec_fn=child_process.die_with_parent,
      )

  def tell(self, signum: int) -> None:
    """Has the task get a signal."""
    self._told.append(int(signum))
    # The count tells two equal signals apart.
    self._meeting.say('signal', f'{self._told[-1]} {len(self._told)}')

  def find_code(self) -> int | None:
    """Returns its code, -n after signal n; None while it runs or waits.

    Shows meanwhile what it writes.
    """
    end = self._meeting.hear('end')
    self._show_output(log_view.Log.read_lines)
    if end:
      return int(end)
    code = self._process.poll()
    pulse = self._look_for_place()
    if pulse is None:
      self._show_scheduler()
      if code:
        return self._fail(cli.FAILED, f'submit: {self._last_words(code)}')
      return -self._told[0] if self._told else None
    if code and self._is_over():
      words = self._last_words(code)
      return self._fail(cli.LOST, f'the job has ended without a word: {words}')
    if pulse.is_lost():
      reason = f'nothing was heard of the job for {job_meeting.LOST_SECS:g} s'
      return self._fail(cli.LOST, reason)
    return None

  def close(self) -> subprocess.Popen[bytes]:
    """Ends what was started here for it; returns its submit command."""
    self._show_output(log_view.Log.finish)
    if self._process.poll() is None and not self.has_place:
      # A submit command that waits then withdraws its job.
      with contextlib.suppress(PermissionError):  # It runs as another user.
        os.killpg(self._process.pid, signal.SIGTERM)
    return self._process

  def _look_for_place(self) -> job_meeting.Pulse | None:
    if not self._pulse and self._meeting.hear('place'):
      self._pulse = job_meeting.Pulse(self._meeting.path('job'))
    return self._pulse

  def _is_over(self) -> bool:
    """Whether a job killed with its node has had the time for a last word.

    Its submit command, which has waited for it, has said so.
    """
    now = time.monotonic()
    self._end_time = self._end_time or now + job_meeting.BEAT_SECS
    return now >= self._end_time

  def _fail(self, code: int, reason: str) -> int:
    self.reason = reason
    self._write([reason])
    return code

  def _show_output(self, read: Callable[[log_view.Log], list[str]]) -> None:
    """Adds what the task has written to its log; what cannot be read is not."""
    with contextlib.suppress(OSError):
      self._write(read(self._output))

  def _write(self, lines: list[str]) -> None:
    """Adds lines to the task's log; those that do not fit are lost."""
    if lines:
      task_logs.append_if_possible(self._path, lines)

  def _show_scheduler(self) -> None:
    """Shows what the scheduler writes until the task begins: why it may not."""
    path = self._meeting.path('scheduler')
    with contextlib.suppress(OSError), open(path, errors='replace') as file:
      *said, _ = file.read().split('\n')  # The last one is not complete.
      self._write([f'scheduler: {line}' for line in said[self._num_said :]])
      self._num_said = len(said)

  def _last_words(self, code: int) -> str:
    said = []
    with (
      contextlib.suppress(OSError),
      open(self._meeting.path('submit'), errors='replace') as file,
    ):
      said = [line.strip() for line in file if line.strip()]
    return '; '.join(said[-2:]) or failures.describe_end(code)
