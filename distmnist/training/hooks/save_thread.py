"""A save beside the steps: the chief trains while a checkpoint is written."""

import threading


class SaveThread:
  """One save at a time, in its own thread; `finish` raises its errors."""

  def __init__(self):
    self._thread = None
    self._error = None

  @property
  def is_running(self):
    """Whether a save is in progress."""
    return self._thread is not None and self._thread.is_alive()

  @property
  def is_begun(self):
    """Whether a save was begun and not yet passed to `finish`."""
    return self._thread is not None

  def begin(self, save):
    """Calls `save`, which takes no arguments, in a thread.

    The thread ends with the process: what it has written by then has no final
    name and is not a checkpoint.
    """
    self._thread = threading.Thread(
      target=self._run, args=(save,), name='save', daemon=True
    )
    self._thread.start()

  def _run(self, save):
    try:
      save()
    except BaseException as error:
      self._error = error

  def finish(self):
    """Waits for the save that was begun; raises what it raised."""
    thread, self._thread = self._thread, None
    thread.join()
    error, self._error = self._error, None
    if error:
      raise error
