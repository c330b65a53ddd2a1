"""The barrier stage in which Spark runs the agents of all tasks.

Spark starts all tasks of such a stage or none, and gives up the job when one is
lost. So after a failure the job is submitted again.
"""

import time

from distmnist.common import cli, console
from distmnist.spark import barrier_job


class BarrierStage:
  """One Spark job after another, with the same tasks.

  Attributes:
    attempt: int, how often a job was submitted.
  """

  def __init__(self, make_job, wait_for_slots, start):
    """
    Args:
      make_job: callable(attempt, port of the driver, callback at its end) ->
        barrier_job.Job, not yet started.
      wait_for_slots: callable, returns once Spark can start all tasks.
      start: (str, float), what Spark does until the agents are connected, and
        the seconds it may take.
    """
    self.attempt = 0
    self._make_job = make_job
    self._wait_for_slots = wait_for_slots
    self._verb, self._start_secs = start
    self._job = None

  def submit(self, port, on_end):
    """Has Spark start all agents, once the previous ones are gone.

    Raises:
      cli.RunError: the previous job was cancelled, but not by `cancel`, or
        there are too few slots for another one.
    """
    if self._job:
      self._job.end()
      self.check_end(has_failed=True)
      self._wait_for_slots()
    self.attempt += 1
    self._deadline = None
    self._job = self._make_job(self.attempt, port, on_end)
    self._job.start()
    self._wait = console.Wait(self._start_secs)

  def find_loss(self, missing, has_agents):
    """Returns what Spark says about an executor lost early, or None.

    Args:
      missing: list of str, the tasks whose agents have not connected yet.
      has_agents: whether any agent is connected.

    Raises:
      cli.RunError: Spark does not start the agents, or has given up the job.
    """
    if self._job.has_ended:
      # Agents that Spark has abandoned say so within a few seconds.
      now = time.monotonic()
      self._deadline = self._deadline or now + barrier_job.END_SECS
      if not has_agents or now > self._deadline:
        if missing and (lost := self._job.find_lost_executor()):
          return lost
        raise self._explain()
    if missing:
      what = f'for Spark to {self._verb} {", ".join(missing)}'
      if self._wait.is_over(what):
        raise cli.LostError(
          f'waited {self._start_secs:g} s {what}: are the executors still'
          ' there, and their slots free?'
        )
    return None

  def check_end(self, has_failed):
    """Checks how Spark has ended the job.

    Args:
      has_failed: whether a task has failed, which explains the job's error
        unless the job was cancelled.

    Raises:
      cli.RunError: Spark has given up the job.
    """
    if self._job.error and (self._job.is_cancelled or not has_failed):
      raise self._explain()

  def cancel(self):
    if self._job:
      self._job.cancel()

  def end(self):
    """Waits until Spark is done with the job."""
    if self._job:
      self._job.end()

  def _explain(self):
    return cli.RunError(f'Spark has given up the job: {self._job.explain()}')
