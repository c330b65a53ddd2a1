"""A call that may never return, and is not waited for any longer than that."""

import queue
import threading

import tensorflow.compat.v1 as tf


class StillRunningError(tf.errors.DeadlineExceededError):
  """The call has not returned, and may never do."""


def call(work, timeout_secs):
  """Returns what `work()` returns, or raises what it raises.

  TensorFlow's own timeouts are for the run of a session: its making, which is
  part of the first run, waits for as long as a suspended task likes.

  Raises:
    StillRunningError: it has not returned within `timeout_secs`;
      its thread is left to itself.
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
