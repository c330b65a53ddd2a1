"""Reports how long a process waits for its stores, if that is long.

A slow store delays every start and every save, and nothing else distinguishes
it from a slow training.
"""

import logging
import threading
import time

_log = logging.getLogger(__name__)

# An answer that takes this long is slow, and a line says so once the slow ones
# have taken this much more time in total.
_SLOW_SECS = 0.5
_MANY_SECS = 5.0
# At least this long from one line to the next.
_PAUSE_SECS = 30.0


class AnswerTimes:
  """The slow answers to the requests of one process."""

  def __init__(self, clock=time.monotonic):
    self._clock = clock
    self._lock = threading.Lock()
    self._num_slow = 0
    self._secs = 0.0  # What they took in total.
    self._said_secs = 0.0  # That total at the last line.
    self._said_at = -_PAUSE_SECS

  def note(self, url, secs):
    """Records that the request for `url` (str) was answered after `secs`."""
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
