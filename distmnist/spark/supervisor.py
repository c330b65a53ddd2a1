"""Submits the job of a training to Spark until it is done, or given up.

Spark itself gives up a job whose last stage is a barrier stage with a lost
task. So after a failure it is submitted again, up to `max_restarts` times, once
no task of the last attempt is left.
"""

import sys
import time

from distmnist.common import cli, console
from distmnist.launching import task_group
from distmnist.spark import barrier_job


class TaskError(cli.RunError):
  """A task has failed for good; `exit_code` is its own, 128 + n by signal n."""

  def __init__(self, message, exit_code):
    super().__init__(message)
    self.exit_code = exit_code


class Supervisor:
  """Runs one job of Spark after the other."""

  def __init__(self, desk, submit, wait_for_slots, start, max_restarts, say):
    """
    Args:
      desk: desk.Desk, to which the tasks report.
      submit: callable(number of the attempt) -> barrier_job.Job, not started.
      wait_for_slots: callable, returns once Spark can start all tasks again.
      start: (str, float), what Spark does until the tasks report, and the
        seconds it may take.
      max_restarts: int, how often all tasks are started again after a failure.
      say: callable, takes a line of ours.
    """
    self._desk = desk
    self._submit = submit
    self._wait_for_slots = wait_for_slots
    self._verb, self._start_secs = start
    self._max_restarts = max_restarts
    self._say = say

  def run(self):
    """Returns what the chief has reported (dict), or None.

    Raises:
      TaskError: a task has failed for good.
      cli.RunError: the training failed otherwise.
    """
    while True:
      number = self._desk.begin()
      lost = self._run_once(self._submit(number))
      failure = self._desk.failure
      if not (failure or lost):
        return self._desk.report
      is_final = failure and failure.exit_code in cli.FINAL_CODES
      if number > self._max_restarts or is_final:
        break
      what = lost
      if failure:
        what = f'{failure.name} ({failure.address}): {failure.cause}'
      self._say(
        f'{what}: restart {number} of {self._max_restarts}, with all other'
        ' tasks'
      )
      self._wait_for_slots()
    if not failure:
      raise cli.LostError(lost)
    self._say(f'the last lines of {failure.name}:')
    lines = self._desk.last_lines(failure.name)
    for line in lines or ['(it has written nothing)']:
      print(f'  | {line}', file=sys.stderr, flush=True)
    raise TaskError(str(failure), failure.exit_code)

  def _run_once(self, job):
    """Runs the job to its end; what its tasks have failed of, the desk knows.

    Returns:
      str, an executor that was lost before its task could report; or None.

    Raises:
      cli.RunError: Spark does not start the tasks, or has given up the job
        though no task has failed.
    """
    job.start()
    try:
      self._serve(job)
    finally:
      # Nothing stays behind, after Ctrl-C either.
      try:
        self._desk.end_all()
      finally:
        job.end()
    if job.error and (job.is_cancelled or not self._desk.failure):
      if lost := barrier_job.find_lost_executor(job.error):
        return lost
      why = job.explain()
      raise cli.RunError(f'Spark has given up the job: {why}')
    return None

  def _serve(self, job):
    """Returns once no task is left, or Spark has ended the job."""
    desk, secs = self._desk, self._start_secs
    wait = console.Wait(secs, self._say)
    deadline = float('inf')
    while not desk.is_over:
      desk.turn(task_group.TICK_SECS)
      if job.has_ended:
        # Where Spark has ended the tasks, they say so within some seconds.
        deadline = min(deadline, time.monotonic() + barrier_job.END_SECS)
        if not desk.has_tasks or time.monotonic() > deadline:
          break
      if desk.missing:
        what = f'for Spark to {self._verb} {", ".join(desk.missing)}'
        if wait.is_over(what):
          raise cli.LostError(
            f'waited {secs:g} s {what}: are the executors still there,'
            ' and their slots free?'
          )
