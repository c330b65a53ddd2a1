"""Spark jobs that run in another thread, and what their errors say."""

import contextlib
import re
import secrets
import threading
import time

from distmnist.common import cli, console

# From the end of the tasks to the end of Spark's job, and vice versa.
END_SECS = 5.0


def explain(error):
  """Returns one line (str) that says what is wrong, from a Spark exception."""
  text = str(error).strip()
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  if 'Traceback (most recent call last)' in text:
    # A Python exception on an executor: the line after its stack trace.
    raw = text[text.rindex('Traceback (most recent call last)') :].splitlines()
    for line in raw[1:]:
      if line and not line.startswith((' ', '\t')):
        return line[:500]
  for line in lines:
    if match := re.match(r'(?:: )?[\w.$]*(?:Exception|Error): (.+)', line):
      return match[1][:500]
  return lines[0][:500] if lines else type(error).__name__


def find_lost_executor(error):
  """Returns what Spark says about a lost executor (str); None if nothing."""
  match = re.search(
    r'ExecutorLostFailure \(executor (\S+) .*?\) Reason: (.*)', str(error)
  )
  if not match:
    return None
  return f'executor {match[1]} was lost before its task began: {match[2][:200]}'


class Job:
  """A Spark job in a thread of its own: the caller's reads from the agents.

  Attributes:
    error: Exception that it ended with, or None.
  """

  def __init__(self, sc, rdd, on_end):
    """
    Args:
      sc: pyspark.SparkContext.
      rdd: RDD to compute; its result is ignored.
      on_end: callable, called by the job's thread at its end.
    """
    self.error = None
    self._is_our_end = False
    self._ended = threading.Event()
    self._sc = sc
    self._rdd = rdd
    self._on_end = on_end
    self._group = f'distmnist-{secrets.token_hex(8)}'

  def start(self):
    from pyspark import InheritableThread

    InheritableThread(target=self._run, daemon=True).start()

  @property
  def is_cancelled(self):
    """Whether something other than `cancel` cancelled it."""
    return 'cancelled' in str(self.error) and not self._is_our_end

  @property
  def has_ended(self):
    return self._ended.is_set()

  def end(self):
    """Waits until Spark is done with it; cancels it if it does not end."""
    if not self._ended.wait(END_SECS):
      self.cancel()
      self._ended.wait(END_SECS)

  def cancel(self):
    """Has Spark end it, and its Python processes."""
    self._is_our_end = True
    with contextlib.suppress(Exception):  # The context may be stopped.
      self._sc.cancelJobGroup(self._group)

  def find_lost_executor(self):
    """Returns what Spark says about a lost executor (str); None if nothing."""
    return find_lost_executor(self.error)

  def explain(self):
    """Returns why it failed, in one line (str)."""
    why = explain(self.error)
    if 'ModuleNotFoundError' in why:
      why += (
        f": the executors' Python, {self._sc.pythonExec}, lacks it: install it"
        ' there, or set PYSPARK_PYTHON to one that has it before Spark starts'
      )
    return why

  def _run(self):
    try:
      self._sc.setJobGroup(self._group, 'distmnist', True)
      self._rdd.collect()
    except Exception as error:
      self.error = error
    finally:
      self._ended.set()
      self._on_end()


class BarrierStage:
  """The barrier stage in which Spark runs the agents of all tasks.

  Spark starts all tasks of such a stage or none, and gives up the job when one
  is lost. So after a failure the job is submitted again.

  Attributes:
    attempt: int, how often a job was submitted.
  """

  def __init__(self, make_job, wait_for_slots, start):
    """
    Args:
      make_job: callable(attempt, AgentServer.contact, callback at its end) ->
        Job, not yet started.
      wait_for_slots: callable, returns once Spark can start all tasks.
      start: (str, float), what Spark does until the agents are connected, and
        the seconds it may take.
    """
    self.attempt = 0
    self._make_job = make_job
    self._wait_for_slots = wait_for_slots
    self._verb, self._start_secs = start
    self._job = None

  def submit(self, contact, on_end):
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
    self._job = self._make_job(self.attempt, contact, on_end)
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
      self._deadline = self._deadline or now + END_SECS
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
