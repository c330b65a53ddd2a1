"""Spark jobs that run in another thread, and what their errors say."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
  import pyspark

# From the end of the tasks to the end of Spark's job, and vice versa.
END_SECS = 5.0


def explain(error: BaseException | None) -> str:
  """Returns one line that says what is wrong, from a Spark exception."""
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


def find_lost_executor(error: BaseException | None) -> str | None:
  """Returns what Spark says about a lost executor; None if nothing."""
  match = re.search(
    r'ExecutorLostFailure \(executor (\S+) .*?\) Reason: (.*)', str(error)
  )
  if not match:
    return None
  return f'executor {match[1]} was lost before its task began: {match[2][:200]}'


class Job:
  """A Spark job in a thread of its own: the caller's reads from the agents.

  Attributes:
    error: what it ended with, or None.
    is_ours: whether `cancel` has cancelled it.
  """

  def __init__(
    self, sc: pyspark.SparkContext, rdd: pyspark.RDD, on_end: Callable[[], None]
  ) -> None:
    """
    Args:
      rdd: to compute; its result is ignored.
      on_end: called by the job's thread at its end.
    """
    self.error: Exception | None = None
    self.is_ours = False
    self._ended = threading.Event()
    self._sc = sc
    self._rdd = rdd
    self._on_end = on_end
    self._group = f'distmnist-{secrets.token_hex(8)}'

  def start(self) -> None:
    from pyspark import InheritableThread

    InheritableThread(target=self._run, daemon=True).start()

  @property
  def is_cancelled(self) -> bool:
    """Whether something other than `cancel` cancelled it."""
    return 'cancelled' in str(self.error) and not self.is_ours

  @property
  def has_ended(self) -> bool:
    return self._ended.is_set()

  def end(self) -> None:
    """Waits until Spark is done with it; cancels it if it does not end."""
    if not self._ended.wait(END_SECS):
      self.cancel()
      self._ended.wait(END_SECS)

  def cancel(self) -> None:
    """Has Spark end it, and its Python processes."""
    self.is_ours = True
    with contextlib.suppress(Exception):  # The context may be stopped.
      self._sc.cancelJobGroup(self._group)

  def explain(self) -> str:
    """Returns why it failed, in one line."""
    why = explain(self.error)
    if 'ModuleNotFoundError' in why:
      why += (
        f": the executors' Python, {self._sc.pythonExec}, lacks it: install it"
        ' there, or set PYSPARK_PYTHON to one that has it before Spark starts'
      )
    return why

  def _run(self) -> None:
    try:
      self._sc.setJobGroup(self._group, 'distmnist', True)
      self._rdd.collect()
    except Exception as error:
      self.error = error
    finally:
      self._ended.set()
      self._on_end()
