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
import time

# Marks a request of `request` among the signals, which are numbers below it.
_ASKED = 128


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

  def request(self, signum):
    """Stops as if `signum` had come, as another task was sent it.

    What signals a whole cluster reaches its tasks one after the other: so a
    signal that comes next is the first, and not the second that stops at once.
    """
    if not self.is_requested:
      self.signal = signum
      self._writer.send(bytes([_ASKED + signum]))

  def on_request(self, callback):
    """Calls `callback` from the watching thread when a stop is requested.

    It is there to wake a main thread that waits for another task.
    """
    self._callbacks.append(callback)

  def _watch(self):
    first = self._reader.recv(1)[0]
    self.signal = first % _ASKED
    deadline = time.monotonic() + self._grace_secs
    num_signals = int(first < _ASKED)
    name = signal.Signals(self.signal).name
    more = '; once more stops at once' if num_signals else ', with all tasks'
    print(f'{name}: saving and stopping{more}', flush=True)
    # A callback may hang, as the other tasks may be gone: it gets no say in
    # when this process ends.
    for callback in self._callbacks:
      threading.Thread(target=callback, daemon=True).start()
    try:
      while num_signals < 2:
        self._reader.settimeout(max(0.001, deadline - time.monotonic()))
        num_signals += self._reader.recv(1)[0] < _ASKED
      cause = 'a second signal'
    except TimeoutError:
      cause = f'not done {self._grace_secs:g} s after {name}'
    print(f'{cause}: stopping at once', flush=True)
    sys.stderr.flush()
    os._exit(self.exit_code)
