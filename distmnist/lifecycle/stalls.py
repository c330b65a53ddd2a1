"""What a task is doing, since when, and what it logs when it takes too long.

Not only steps are watched, but also what follows a step (a save, an
evaluation), the start of a session and the end.
"""

import gc
import logging
import os
import sys
import threading
import time

import tensorflow.compat.v1 as tf

from distmnist.cluster import incarnations
from distmnist.common import cli
from distmnist.common.names import PACKAGE_DIR
from distmnist.watching import own_metrics

_log = logging.getLogger(__name__)

_PACKAGE = str(PACKAGE_DIR)
# Every call of a session goes through this file; its caller says more.
_PASSES_ON = incarnations.__file__


class Stalls:
  """A clock for what the task is doing, to be watched by a thread.

  Attributes:
    num_steps: int, the steps that this task has made.
    describe_wait: callable() -> str, what a step is waiting for, or None.
  """

  def __init__(self, warn_secs, fail_secs, describe_others, stop):
    """
    Args:
      warn_secs: float, a wait this long is logged.
      fail_secs: float, a wait this long is given up.
      describe_others: callable() -> str, which tasks are silent.
      stop: stop_request.StopRequest, asked to give up after fail_secs.
    """
    self.num_steps = 0
    self.describe_wait = None
    self._warn_secs = warn_secs
    self._fail_secs = fail_secs
    self._describe_others = describe_others
    self._stop = stop
    self._stage = None  # (when it began, what it is; None for a step)

  def step_begins(self):
    self._stage = time.monotonic(), None

  def step_ends(self):
    self._stage = None
    self.num_steps += 1

  def idle(self):
    """Watches nothing: what comes now has a limit of its own, or none."""
    self._stage = None

  def busy(self, what):
    """Watches what begins now, until something else begins or ends.

    Args:
      what: str, such as 'the start of a session'.
    """
    self._stage = time.monotonic(), what

  def secs(self):
    """Returns for how many seconds the same thing has gone on, a float."""
    stage = self._stage
    return time.monotonic() - stage[0] if stage else 0.0

  def step_secs(self):
    """Returns how long the present step has taken, 0.0 between two of them."""
    stage = self._stage
    is_step = stage is not None and stage[1] is None
    return time.monotonic() - stage[0] if is_step else 0.0

  def watch(self, is_closed):
    """Looks until `is_closed`, a threading.Event, is set; runs in a thread."""
    next_secs, stage = self._warn_secs, None
    while not is_closed.wait(min(0.25, self._warn_secs / 2)):
      if stage != self._stage:
        stage, next_secs = self._stage, self._warn_secs
      if stage is None:
        continue
      secs = time.monotonic() - stage[0]
      if secs < min(next_secs, self._fail_secs):
        continue
      text = self._describe(stage, secs)
      if stage != self._stage:
        continue  # It has ended while we asked around.
      if secs >= self._fail_secs:
        self._stop.give_up(
          cli.LostError(
            f'{text}; given up (--stall_fail_secs={self._fail_secs:g})'
          )
        )
        return
      _log.info(text)
      own_metrics.write('event', event='wait', text=text)
      next_secs = secs + self._warn_secs

  def _describe(self, stage, secs):
    _, what = stage
    others = self._describe_others()
    if what:
      where = _find_main_thread()
      return f'{what}{where} has taken {secs:.0f} s so far: {others}'
    wait = self.describe_wait() if self.describe_wait else ''
    return f'no step for {secs:.0f} s: {others}' + (wait and f'; {wait}')


def _read_frames():
  """Returns {thread id: frame}, as sys._current_frames does.

  That function makes objects under an interpreter lock, and a threading.local,
  of which each tf.Graph has one, takes the same lock when it is freed: a
  garbage collection in between would hang the whole process for ever.
  """
  is_enabled = gc.isenabled()
  gc.disable()
  try:
    return sys._current_frames()
  finally:
    if is_enabled:
      gc.enable()


def _find_main_thread():
  """Returns where the main thread is in our code, a str, '' if unknown."""
  frame = _read_frames().get(threading.main_thread().ident)
  while frame and (
    not frame.f_code.co_filename.startswith(_PACKAGE)
    or frame.f_code.co_filename == _PASSES_ON
  ):
    frame = frame.f_back
  if not frame:
    return ''
  file = os.path.basename(frame.f_code.co_filename)
  return f' ({file}:{frame.f_lineno}, {frame.f_code.co_name})'


class StallHook(tf.train.SessionRunHook):
  """Tells Stalls what begins and ends; the first of the hooks of train."""

  def __init__(self, stalls):
    self._stalls = stalls

  def after_create_session(self, session, coord):
    self._stalls.busy('the start of a session')

  def before_run(self, run_context):
    self._stalls.step_begins()

  def after_run(self, run_context, run_values):
    self._stalls.step_ends()
    self._stalls.busy('what follows a step')

  def end(self, session):
    self._stalls.busy('the end')
