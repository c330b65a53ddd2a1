"""A save beside the steps: the chief goes on while a checkpoint is written."""

import threading


class SaveThread:
  """One save at a time, in a thread of its own; its errors are the caller's."""

  def __init__(self):
    self._thread = None
    self._error = None

  @property
  def is_running(self):
    """Whether a save goes on at the moment."""
    return self._thread is not None and self._thread.is_alive()

  @property
  def is_begun(self):
    """Whether a save was begun whose end `finish` has not told yet."""
    return self._thread is not None

  def begin(self, save):
    """Calls `save`, which takes nothing, in a thread.

    The end of the process ends it as well: what was written until then has no
    name yet, and is no checkpoint.
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
    """Waits for the end of the save that was begun; raises what it raised."""
    thread, self._thread = self._thread, None
    thread.join()
    error, self._error = self._error, None
    if error:
      raise error
