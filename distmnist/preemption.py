"""SIGTERM and Ctrl-C: the first asks for a checkpoint and an end, the second
ends at once.

Python runs a signal handler only between two bytecodes of the main thread,
and the main thread may sit in C++ for as long as another task likes. So the
signals are read from a wake-up descriptor by a thread of their own.
"""

import os
import signal
import socket
import sys
import threading


class StopRequest:
  """Whether this process was asked to stop, and by which signal.

  Attributes:
    signal: the number of the first signal, or None.
  """

  def __init__(self, grace_secs=8.0):
    """Takes over SIGTERM and SIGINT; to be called in the main thread.

    Args:
      grace_secs: float, seconds from the first signal until the process is
        ended by force.
    """
    self.signal = None
    self._grace_secs = grace_secs
    self._callbacks = []
    self._reader, self._writer = socket.socketpair()
    self._writer.setblocking(False)
    for number in (signal.SIGTERM, signal.SIGINT):
      signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(self._writer.fileno())
    threading.Thread(target=self._watch, daemon=True).start()

  @property
  def is_requested(self):
    return self.signal is not None

  @property
  def exit_code(self):
    return 128 + self.signal if self.is_requested else 0

  def on_request(self, callback):
    """Calls `callback` from the watching thread when a stop is requested.

    It is there to wake a main thread that waits for another task.
    """
    self._callbacks.append(callback)

  def _watch(self):
    self.signal = self._reader.recv(1)[0]
    name = signal.Signals(self.signal).name
    print(f'{name}: saving and stopping; once more stops at once', flush=True)
    # A callback may hang, as the other tasks may be gone: it gets no say in
    # when this process ends.
    for callback in self._callbacks:
      threading.Thread(target=callback, daemon=True).start()
    self._reader.settimeout(self._grace_secs)
    try:
      self._reader.recv(1)
      cause = 'a second signal'
    except TimeoutError:
      cause = f'not done {self._grace_secs:g} s after {name}'
    print(f'{cause}: stopping at once', flush=True)
    sys.stderr.flush()
    os._exit(self.exit_code)
