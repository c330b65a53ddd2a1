"""Stands in on this machine for a task that a scheduler runs.

It submits the job, shows what the task writes, passes signals on and ends as
the task does. On the node job_agent.py runs the task. The two communicate only
through the folder of job_meeting.py.
"""

import contextlib
import os
import resource
import select
import shlex
import signal
import subprocess
import sys
import tempfile

from distmnist.common import cli
from distmnist.common import signals as signals_lib
from distmnist.common.names import ATTEMPT, JOB_AGENT
from distmnist.launching import child_process
from distmnist.launching.scheduler import job_meeting, job_template
from distmnist.launching.screen import log_view
from distmnist.launching.supervisor import failures

# How the last line of a log begins if the scheduler failed.
SUBMIT_FAILED = 'submit: '
# How often to look at the shared folder.
TICK_SECS = 0.2


def make_argv(folder, name, template, python):
  """Returns the argv (tuple of str) of the process that stands in for a task.

  Args:
    folder: str, an absolute path that the nodes share.
    name: str, of the task.
    template: str, see job_template.
    python: str, the path of Python on the nodes.
  """
  return ('python', '-m', __name__, folder, name, template, python)


def run():
  """Runs the task that our argv asks for; ends as it does."""
  folder, name, template, python = sys.argv[1:]
  code = _Client(folder, name).run(template, python)
  if -code in {*signal.valid_signals()} - {*signals_lib.STOPS}:
    # Ends as a task on this machine would, so that the signal is named.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), -code)
  sys.exit(128 - code if code < 0 else code)


class _Client:
  """A task, from its submission to its end."""

  def __init__(self, folder, name):
    attempt = os.environ.get(ATTEMPT, '')
    # When one task has failed, all meet again in a new folder.
    self._folder = os.path.join(folder, attempt or '1')
    os.makedirs(self._folder, exist_ok=True)
    self._name = name
    self._meeting = job_meeting.Meeting(self._folder, name)
    self._meeting.say('attempt', attempt)
    self._pulse = job_meeting.Pulse(self._meeting, 'launcher', 'job')
    self._signals = signals_lib.Reader(*signals_lib.STOPS)
    self._log = log_view.Log(self._meeting.path('out'))
    self._told = []
    self._num_said = 0  # lines of the scheduler that were shown

  def run(self, template, python):
    """Submits and follows the task; returns its code (int)."""
    with tempfile.TemporaryFile() as self._words:
      self._submit = subprocess.Popen(
        ['sh', '-c', self._fill(template, python)],
        stdin=subprocess.DEVNULL,
        stdout=self._words,
        stderr=self._words,
        start_new_session=True,
        preexec_fn=child_process.die_with_parent,
      )
      try:
        return self._follow()
      finally:
        self._show(log_view.Log.finish)
        if self._submit.poll() is None and not self._has_place:
          # A submit command that waits then withdraws its job.
          os.killpg(self._submit.pid, signal.SIGTERM)

  def _fill(self, template, python):
    command = shlex.join([python, '-m', JOB_AGENT, self._folder, self._name])
    script = self._meeting.path('sh')
    with open(script, 'w', encoding='utf-8') as file:
      file.write(f'#!/bin/sh\nexec {command}\n')
    os.chmod(script, 0o755)
    log = self._meeting.path('scheduler')
    return job_template.fill(template, command, script, self._name, log)

  @property
  def _has_place(self):
    return bool(self._meeting.hear('place'))

  def _follow(self):
    num_ticks_alone = 0
    while True:
      self._pass_on()
      end = self._meeting.hear('end')
      self._show(log_view.Log.read_lines)
      if end:
        return int(end)
      self._show_scheduler()
      code, has_place = self._submit.poll(), self._has_place
      if code and not has_place:
        print(f'{SUBMIT_FAILED}{self._last_words(code)}', flush=True)
        return cli.FAILED
      if self._told and not has_place:
        return -self._told[0]
      # A job killed with its node, as a submit command that waited reports.
      num_ticks_alone += bool(code and has_place)
      if num_ticks_alone * TICK_SECS > job_meeting.BEAT_SECS:
        print(f'the job has ended without a word: {self._last_words(code)}')
        return cli.LOST
      # A job may wait in its queue for days.
      if self._pulse.is_lost() and has_place:
        secs = job_meeting.LOST_SECS
        print(f'nothing was heard of the job for {secs:g} s')
        return cli.LOST

  def _pass_on(self):
    if select.select([self._signals], [], [], TICK_SECS)[0]:
      found = self._signals.read()
      self._told += map(signals_lib.choose_passed_on, found)
      # The count tells two equal signals apart.
      self._meeting.say('signal', f'{self._told[-1]} {len(self._told)}')

  def _show(self, read):
    for line in read(self._log):
      print(line, flush=True)

  def _show_scheduler(self):
    """Shows what the scheduler writes until the task begins: why it may not."""
    if self._has_place:
      return
    path = self._meeting.path('scheduler')
    with contextlib.suppress(OSError), open(path, errors='replace') as file:
      *said, _ = file.read().split('\n')  # The last one is not complete.
      for line in said[self._num_said :]:
        print(f'scheduler: {line}', flush=True)
      self._num_said = len(said)

  def _last_words(self, code):
    self._words.seek(0)
    lines = self._words.read().decode(errors='replace').splitlines()
    said = [line.strip() for line in lines if line.strip()]
    return '; '.join(said[-2:]) or failures.describe_end(code)
