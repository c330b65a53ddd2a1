"""Calls something that may never return, and limits the wait for it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow.compat.v1 as tf

_LOOK_SECS = 0.05
_Answer = TypeVar('_Answer')
# (answer, None), or (None, error).
_Answers = queue.Queue[tuple[Any, BaseException | None]]


class StillRunningError(tf.errors.DeadlineExceededError):
  """The call has not returned, and may never do so."""


def call(work: Callable[[], _Answer], timeout_secs: float) -> _Answer:
  """Returns what `work()` returns, or raises what it raises.

  TensorFlow's own timeouts only cover running a session: creating it, which is
  part of the first run, waits for a suspended task without a limit.

  Raises:
    StillRunningError: it has not returned within `timeout_secs`;
      its thread is left running.
  """
  try:
    return _get(_start(work), timeout_secs)
  except queue.Empty:
    raise StillRunningError(
      None, None, f'no answer within {timeout_secs:g} s'
    ) from None


def call_and_look(
  work: Callable[[], _Answer], look: Callable[[], object]
) -> _Answer:
  """Returns what `work()` returns, or raises what it raises.

  Args:
    work: may never return.
    look: called again and again meanwhile; what it raises ends the wait, and
      the thread of `work` is left running.
  """
  answers = _start(work)
  while True:
    try:
      return _get(answers, _LOOK_SECS)
    except queue.Empty:
      look()


def _start(work: Callable[[], Any]) -> _Answers:
  """Returns a queue that gets (answer, error) of work()."""
  answers: _Answers = queue.Queue()

  def run() -> None:
    try:
      answers.put((work(), None))
    except BaseException as error:
      answers.put((None, error))

  threading.Thread(target=run, daemon=True).start()
  return answers


def _get(answers: _Answers, timeout_secs: float) -> Any:
  answer, error = answers.get(timeout=timeout_secs)
  if error:
    raise error
  return answer
