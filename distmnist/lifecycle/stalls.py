"""What a task is doing, since when, and what it logs when it takes too long.

All of a task is watched, from the reading of its log directory to the last line
of its report. The thread that watches must not hang with what it watches: it
writes nothing itself, takes no lock that is held during a write, and asks other
tasks only in ways that end.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from absl import flags

from distmnist import runtime, tf_internals
from distmnist.cluster import deadlines, incarnations, repeated_runs
from distmnist.common import cli, console
from distmnist.common.names import PACKAGE_DIR
from distmnist.data import streamed

if TYPE_CHECKING:
  from distmnist.cluster import stop_request
  from distmnist.lifecycle import watchdog as watchdog_lib
  from distmnist.watching import own_metrics

_log = logging.getLogger(__name__)

_STALL_WARN_SECS = flags.DEFINE_float(
  'stall_warn_secs',
  10,
  'Seconds after which a task logs what it is waiting for in a step, a save, '
  'an evaluation or at the end.',
  lower_bound=0.1,
)
_STALL_FAIL_SECS = flags.DEFINE_float(
  'stall_fail_secs',
  600,
  'Seconds after which a task fails if a step, a save, an evaluation or the '
  'end is still not over.',
  lower_bound=0.1,
)

_PACKAGE = str(PACKAGE_DIR)
_LIBRARIES = (
  sysconfig.get_path('stdlib') + os.sep,
  f'{os.sep}site-packages{os.sep}',
  f'{os.sep}dist-packages{os.sep}',
)
# Every call of a session goes through these files; its caller says more.
_PASS_ON = (
  incarnations.__file__,
  repeated_runs.__file__,
  tf_internals.__file__,
)
# A wait that goes on is asked about more often.
_LOOK_SECS = 5.0
# After this long a task tells the others what it is doing.
TELL_SECS = 2.0
# Lines that wait to be written; more are dropped.
_MAX_LINES = 100
# Held while the garbage collection is switched off and on again.
_uncollected = threading.Lock()


class _Stage(NamedTuple):
  """What goes on.

  Attributes:
    begin: by time.monotonic().
    what: None for a step.
    own_limit_secs: until then it ends by itself; it gives its own lines as long
      as its console.Wait is asked about.
    waits_for_others: whether other workers may hold it up.
    may_fail: whether it is given up in the end.
    describe_wait: gives what a step waits for.
  """

  begin: float
  what: str | None
  own_limit_secs: float = 0.0
  waits_for_others: bool = False
  may_fail: bool = True
  describe_wait: Callable[[], str] | None = None


class Stalls:
  """A clock for what the task is doing, watched by a thread.

  Attributes:
    num_steps: the steps that this task has made.
    warn_secs: a wait this long is logged.
    fail_secs: a wait this long is given up.
  """

  def __init__(
    self,
    warn_secs: float,
    fail_secs: float,
    stop: stop_request.StopRequest,
    metrics: own_metrics.OwnMetrics | None = None,
  ) -> None:
    """
    Args:
      warn_secs, fail_secs: see above.
      stop: asked to give up after fail_secs.
      metrics: waits are written to it.
    """
    self.num_steps = 0
    self.warn_secs = warn_secs
    self.fail_secs = fail_secs
    self._stop, self._metrics = stop, metrics
    self._others: watchdog_lib.Watchdog | None = None
    self._stage: _Stage | None = None
    # Replaced, never changed: the watch reads it.
    self._beside: tuple[_Stage, ...] = ()
    self._is_closed = threading.Event()
    self._lines: queue.Queue[str] = queue.Queue(_MAX_LINES)

  def start(self) -> Stalls:
    """Begins to watch; returns itself."""
    for work in self._watch, self._write_lines:
      threading.Thread(target=work, daemon=True).start()
    return self

  def close(self) -> None:
    """Ends the watch. A task's own goes on to the end of its process."""
    self._is_closed.set()

  def ask_about_others(self, others: watchdog_lib.Watchdog) -> None:
    """From now on asks the watchdog about the other tasks."""
    self._others = others

  def step_begins(
    self,
    waits_for_others: bool = False,
    describe_wait: Callable[[], str] | None = None,
  ) -> None:
    """Watches the step that begins now.

    Args:
      waits_for_others: whether other workers may hold it up.
      describe_wait: gives what it is waiting for.
    """
    self._stage = _Stage(
      time.monotonic(),
      None,
      waits_for_others=waits_for_others,
      describe_wait=describe_wait,
    )

  def step_ends(self) -> None:
    self._stage = None
    self.num_steps += 1

  def idle(self) -> None:
    """Watches nothing, as what comes now is no work of ours.

    A user's own code outside a session, or the loop of a ps, which looks at the
    workers twice a second.
    """
    self._stage = None

  def busy(
    self,
    what: str,
    own_limit_secs: float = 0.0,
    waits_for_others: bool = False,
    may_fail: bool = True,
  ) -> None:
    """Watches what begins now, until something else begins or ends.

    Args:
      what: such as 'the start of a session'.
      own_limit_secs: for what has a limit and a console.Wait of its own: it is
        given up later by as much, and there are lines only while it does not
        ask about that wait, as it hangs in something else.
      waits_for_others: whether other workers may hold it up.
      may_fail: False for work whose length nobody can tell, such as a user's
        `load`: there are lines, and no end.
    """
    self._stage = _Stage(
      time.monotonic(), what, own_limit_secs, waits_for_others, may_fail
    )

  def goes_on(self) -> None:
    """Notes that what is done now has come on: its time begins anew."""
    stage = self._stage
    if stage:
      self._stage = stage._replace(begin=time.monotonic())

  @contextlib.contextmanager
  def beside(self, what: str) -> Iterator[None]:
    """Watches the block, which a thread of its own runs, beside the steps."""
    stage = _Stage(time.monotonic(), what)
    self._beside = *self._beside, stage
    try:
      yield
    finally:
      self._beside = tuple(x for x in self._beside if x is not stage)

  def secs(self) -> float:
    """Returns for how many seconds the same thing has gone on."""
    stage = self._stage
    return time.monotonic() - stage.begin if stage else 0.0

  def step_secs(self) -> float:
    """Returns how long the present step has taken, 0.0 between two of them."""
    stage = self._stage
    if stage is None or stage.what is not None:
      return 0.0
    return time.monotonic() - stage.begin

  def describe_own(self) -> str:
    """Returns what this task takes long over, 'waits for ...' or 'is at ...'.

    '' if it has not taken long, or waits for another task.
    """
    stage = self._stage
    if not stage or time.monotonic() - stage.begin < TELL_SECS:
      return ''
    frames = _read_frames()
    if stage.what is None:
      return _describe_step(frames)
    main = _find_main(frames)
    if stage.waits_for_others or _asks_others(main):
      return ''
    return f'is at {stage.what}{_describe_place(main)}'

  def _watch(self) -> None:
    # Stage: when its next line is due.
    next_secs: dict[_Stage, float] = {}
    while not self._is_closed.wait(min(0.25, self.warn_secs / 2)):
      stages = self._find_stages()
      next_secs = {x: next_secs.get(x, self.warn_secs) for x in stages}
      for stage in stages:
        secs = time.monotonic() - stage.begin
        limit = math.inf
        if stage.may_fail:
          limit = stage.own_limit_secs + self.fail_secs
        if secs < min(next_secs[stage], limit):
          continue
        if stage.own_limit_secs and _gives_own_lines() and secs < limit:
          continue
        text = self._describe(stage)
        if stage not in self._find_stages():
          continue  # It has ended while we asked around.
        if secs >= limit:
          self._stop.give_up(
            cli.LostError(
              f'{text}; given up (--stall_fail_secs={self.fail_secs:g})'
            )
          )
          return
        if stage.what is None:
          text += f'; given up at {limit:g} s (--stall_fail_secs)'
        self._say(text)
        next_secs[stage] = secs + self.warn_secs

  def _find_stages(self) -> tuple[_Stage, ...]:
    stage = self._stage
    return self._beside if stage is None else (*self._beside, stage)

  def _say(self, text: str) -> None:
    with contextlib.suppress(queue.Full):  # Nothing is written any more.
      self._lines.put_nowait(text)
    if self._metrics:
      self._metrics.write('event', event='wait', text=text)

  def _write_lines(self) -> None:
    while not self._is_closed.is_set():
      with contextlib.suppress(queue.Empty):
        _log.info(self._lines.get(timeout=1.0))

  def _describe(self, stage: _Stage) -> str:
    secs = time.monotonic() - stage.begin
    try:
      cause = self._find_cause(stage)
    except Exception as error:  # The watch goes on, whatever it cannot find.
      cause = f'the cause cannot be found ({type(error).__name__})'
    if stage.what is None:
      return f'no step for {secs:.0f} s: {cause}'
    cause = cause and f': {cause}'
    where = ''
    if stage is self._stage:
      where = _describe_place(_find_main(_read_frames()))
    return f'{stage.what}{where} has taken {secs:.0f} s so far{cause}'

  def _find_cause(self, stage: _Stage) -> str:
    """Returns what holds up a stage, '' where its own name says it."""
    if stage.what is None:
      return self._find_cause_of_step(stage)
    if stage is not self._stage:
      return ''
    frame = _find_main(_read_frames())
    if not (stage.waits_for_others or _asks_others(frame)):
      examples = streamed.find_wait()
      return f'it waits for {examples}' if examples else ''
    if silent := self._describe_silent(stage.waits_for_others):
      return f'waiting for {silent}'
    busy = self._describe_busy() if stage.waits_for_others else ''
    return busy or 'all tasks answer'

  def _describe_silent(self, with_workers: bool) -> str:
    return self._others.describe_silent(with_workers) if self._others else ''

  def _describe_busy(self) -> str:
    return self._others.describe_busy() if self._others else ''

  def _find_cause_of_step(self, stage: _Stage) -> str:
    if ps := self._describe_silent(False):
      found = f'waiting for {ps}'
    elif own := _describe_step(_read_frames()):
      found = f'this task {own}'
    elif workers := self._describe_silent(True):
      waits = stage.waits_for_others
      found = f'{"waiting for" if waits else "all ps answer; not so"} {workers}'
    else:
      busy = self._describe_busy() if stage.waits_for_others else ''
      found = busy or 'all tasks answer, and none says what holds it up'
    wait = stage.describe_wait() if stage.describe_wait else ''
    return found + (wait and f'; {wait}')


def from_flags(
  stop: stop_request.StopRequest, metrics: own_metrics.OwnMetrics
) -> Stalls:
  """Returns the clock of this task; it does not watch yet."""
  return Stalls(_STALL_WARN_SECS.value, _STALL_FAIL_SECS.value, stop, metrics)


def _gives_own_lines() -> bool:
  return time.monotonic() - console.Wait.last_look < _LOOK_SECS


def _read_frames() -> dict[int, types.FrameType]:
  """Returns {thread id: frame}, as sys._current_frames does."""
  # Two threads call this.
  with _uncollected, runtime.uncollected():
    return _read_uncollected()


def _read_uncollected() -> dict[int, types.FrameType]:
  """Does so; no garbage may be collected meanwhile.

  sys._current_frames makes objects under an interpreter lock, and a
  threading.local, of which each tf.Graph has one, takes the same lock when it
  is freed: a garbage collection in between would hang the whole process for
  ever.
  """
  return sys._current_frames()


def _find_main(frames: Mapping[int, types.FrameType]) -> types.FrameType | None:
  ident = threading.main_thread().ident
  return None if ident is None else frames.get(ident)


def _walk(frame: types.FrameType | None) -> Iterator[types.FrameType]:
  """Yields a frame, and those that called it."""
  while frame:
    yield frame
    frame = frame.f_back


def _describe_step(frames: Mapping[int, types.FrameType]) -> str:
  """Returns what a step of this task does in Python, or ''."""
  if batch := streamed.find_wait():
    return f'waits for {batch}'
  for frame in frames.values():
    files = [each.f_code.co_filename for each in _walk(frame)]
    if tf_internals.PY_FUNC_FILE in files:
      return f'runs a Python function in its graph{_describe_place(frame)}'
  return ''


def _asks_others(frame: types.FrameType | None) -> bool:
  """Whether a thread waits for the answer of another task."""
  for each in _walk(frame):
    file = each.f_code.co_filename
    if file == deadlines.__file__:
      return True
    if file == tf_internals.SESSION_FILE:
      session = each.f_locals.get('self')
      # That of a session on this machine alone is empty.
      return bool(getattr(session, 'sess_str', None))
  return False


def _describe_place(frame: types.FrameType | None) -> str:
  """Returns where a thread is, in our code or the user's, '' if unknown."""
  for each in _walk(frame):
    file = each.f_code.co_filename
    is_ours = file.startswith(_PACKAGE) and file not in _PASS_ON
    if is_ours or _is_users(file):
      name = os.path.basename(file)
      return f' ({name}:{each.f_lineno}, {each.f_code.co_name})'
  return ''


def _is_users(file: str) -> bool:
  """Whether a file of code belongs to no package that was installed."""
  if file.startswith('<') or file.startswith(_PACKAGE):
    return False
  return not any(folder in file for folder in _LIBRARIES)
