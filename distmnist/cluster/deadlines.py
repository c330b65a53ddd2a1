"""Calls something that may never return, and limits the wait for it."""

import queue
import threading

import tensorflow.compat.v1 as tf


class StillRunningError(tf.errors.DeadlineExceededError):
  """The call has not returned, and may never do so."""


def call(work, timeout_secs):
  """Returns what `work()` returns, or raises what it raises.

  TensorFlow's own timeouts only cover running a session: creating it, which is
  part of the first run, waits for a suspended task without a limit.

  Raises:
    StillRunningError: it has not returned within `timeout_secs`;
      its thread is left running.
  """
  answers = queue.Queue()

  def run():
    try:
      answers.put((work(), None))
    except BaseException as error:
      answers.put((None, error))

  threading.Thread(target=run, daemon=True).start()
  try:
    answer, error = answers.get(timeout=timeout_secs)
  except queue.Empty:
    raise StillRunningError(
      None, None, f'no answer within {timeout_secs:g} s'
    ) from None
  if error:
    raise error
  return answer
