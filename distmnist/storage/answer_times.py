"""How long a process waits for its stores, said where that is long.

A store that is slow delays every start and every save, and nothing else tells
it from a training that is.
"""

import logging
import threading
import time

_log = logging.getLogger(__name__)

# An answer that took so long was waited for, and it is said when so much of it
# has come together.
_SLOW_SECS = 0.5
_MANY_SECS = 5.0
# From one line to the next.
_PAUSE_SECS = 30.0


class AnswerTimes:
  """The slow answers to the requests of one process."""

  def __init__(self, clock=time.monotonic):
    self._clock = clock
    self._lock = threading.Lock()
    self._num_slow = 0
    self._secs = 0.0  # What they took together.
    self._said_secs = 0.0  # Of it, what the last line has counted.
    self._said_at = -_PAUSE_SECS

  def note(self, url, secs):
    """Takes in that the request for `url` (str) was answered after `secs`."""
    if secs < _SLOW_SECS:
      return
    with self._lock:
      self._num_slow += 1
      self._secs += secs
      now = self._clock()
      if (
        self._secs - self._said_secs < _MANY_SECS
        or now - self._said_at < _PAUSE_SECS
      ):
        return
      self._said_secs, self._said_at = self._secs, now
      line = (
        f'{url}: the store has answered after {secs:.1f} s; {self._num_slow} '
        f'slow answers have taken {self._secs:.0f} s so far'
      )
    _log.info(line)
