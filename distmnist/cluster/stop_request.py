"""SIGTERM, SIGHUP, Ctrl-C: the first asks to save, the second ends at once.

What comes within a second of the first belongs to it: a system that signals
every process reaches a task twice, the second time by its launcher. What a
scheduler sends before it kills (signals.NOTICES) asks to save, too, but never
ends at once. A signal that the user's code handles is his alone.

Python runs a signal handler only between two bytecodes of the main thread,
which may sit in C++ for as long as another task keeps it waiting. So a separate
thread reads the signals from a wake-up descriptor.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
import types
from collections.abc import Callable
from typing import Any, NoReturn

from absl import flags

from distmnist.common import cli, signals

_log = logging.getLogger(__name__)

STOP_GRACE_SECS = flags.DEFINE_float(
  'stop_grace_secs',
  8.0,
  'Seconds after the first SIGTERM or Ctrl-C until a task that has not exited '
  'is forced to: long enough for a checkpoint. The launchers for Slurm and '
  'Kubernetes set it from the time that the cluster allows.',
  lower_bound=2.0,
)

# What comes through the descriptor besides signal numbers: 0, and the number of
# a signal that another task got, with _ASKED added.
_GIVEN_UP = 0
_ASKED = 128
# The most that a stop waits for one of its lines to be written.
_SAY_SECS = 1.0
# What a worker says whose step waits for one that will make no more.
LEFT = (
  'another worker has left its loop, and no step is made without it: the '
  'training ends here'
)


class StoppedError(Exception):
  """A wait for other tasks was given up: this process was asked to stop."""


class StopRequest:
  """Whether this process was asked to stop, and by whom.

  Attributes:
    signal: the number of the first signal, or None.
    error: what it gives up for, or None; `main` raises it once
      all is saved.
  """

  def __init__(self, grace_secs: float = 8.0) -> None:
    """Takes over the signals; to be called in the main thread.

    Args:
      grace_secs: seconds from the first signal until the process is ended by
        force.

    Raises:
      cli.RunError: this is not the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
      raise cli.RunError(
        'a training has to run in the main thread, the only one where Python '
        'handles SIGTERM and Ctrl-C: call it there, or start python -m '
        'distmnist.train as a separate process'
      )
    self.signal: int | None = None
    self.error: cli.RunError | None = None
    self._unsaved: Callable[[], str | None] | str | None = None
    self._deadline: float | None = None
    self._exit_code: int | None = None
    self._grace_secs = grace_secs
    self._requested = threading.Event()
    self._callbacks: list[Callable[[], object]] = []
    self._reader, self._writer = socket.socketpair()
    self._writer.setblocking(False)
    for number in signals.find_heeded():
      signal.signal(number, _note)
    signal.set_wakeup_fd(self._writer.fileno())
    threading.Thread(target=self._watch, daemon=True).start()

  def note_unsaved(
    self, unsaved: Callable[[], str | None] | str | None
  ) -> None:
    """Notes what would be lost if this process ended now.

    Args:
      unsaved: None for nothing; a callable where it changes from step to step,
        which must not block.
    """
    self._unsaved = unsaved

  def find_unsaved(self) -> str | None:
    """Returns what would be lost if this process ended now, or None."""
    return self._unsaved() if callable(self._unsaved) else self._unsaved

  def listen_again(self) -> None:
    """Takes the wake-up descriptor back if the user's code has taken it.

    To be called in the main thread once that code is loaded; a line says so.
    """
    own = self._writer.fileno()
    if signal.set_wakeup_fd(own) != own:
      _log.info(
        'signal.set_wakeup_fd was called (asyncio does so): it is set back, as '
        'without it no signal would save this training'
      )

  @property
  def is_requested(self) -> bool:
    return self.signal is not None or self.error is not None

  @property
  def exit_code(self) -> int:
    if self.error is not None:
      return self.error.exit_code
    if self._exit_code is not None:
      return self._exit_code
    return 0 if self.signal is None else 128 + self.signal

  @property
  def secs_left(self) -> float:
    """Seconds until the forced end, once a stop is requested."""
    if self._deadline is None:  # The thread that counts has yet to wake.
      return self._grace_secs
    return max(0.0, self._deadline - time.monotonic())

  def end(self) -> int:
    """Returns the exit code of a task that has stopped, or was never asked to.

    Raises:
      cli.RunError: the error for which the work was given up.
      cli.NotSavedError: not all is saved.
    """
    unsaved = self.find_unsaved() if self.is_requested else None
    if self.error:
      if unsaved:
        _say(_log.info, unsaved)
      raise self.error
    if unsaved:
      raise cli.NotSavedError(unsaved)
    return self.exit_code

  def wait(self, secs: float) -> None:
    """Waits for `secs`; raises StoppedError once a stop is requested."""
    if self._requested.wait(secs):
      raise StoppedError

  def request(self, signum: int, exit_code: int | None = None) -> None:
    """Stops as if `signum` had come, as another task received it.

    This process then ends with `exit_code`, by default 128 + signum.

    A signal to a whole cluster reaches its tasks one after the other: so one
    that follows counts as the first, not as the second that stops at once.
    """
    if not self.is_requested:
      self._exit_code = exit_code
      self.signal = signum
      self._writer.send(bytes([_ASKED + signum]))
      # Log the stop before its effects; else that might come after the end.
      self._requested.wait()

  def give_up(self, error: cli.RunError) -> None:
    """Stops because of `error`, as if a signal had come.

    What may pass ends this task with 3: it is amid its work.
    """
    if not self.is_requested:
      if isinstance(error, cli.PassingError):
        error.is_amid_run = True
      self.error = error
      self._writer.send(bytes([_GIVEN_UP]))

  def end_at_once(self, error: cli.RunError) -> NoReturn:
    """Ends the process without saving, as another has taken its place.

    Args:
      error: printed; gives the exit code.
    """
    _say(_log.info, 'ending at once, without saving')
    _say(_print_error, error)
    os._exit(error.exit_code)

  def on_request(self, callback: Callable[[], object]) -> None:
    """Calls `callback` from the watching thread when a stop is requested.

    Its purpose is to wake a main thread that waits for another task.
    """
    self._callbacks.append(callback)

  def wake(self) -> None:
    """Wakes the main thread as a request does, without one."""
    # A callback may hang, as the other tasks may be gone: it gets no say in
    # when this process ends.
    for callback in self._callbacks:
      threading.Thread(target=callback, daemon=True).start()

  def _watch(self) -> None:
    first = self._reader.recv(1)[0]
    while not _is_ours(first):
      first = self._reader.recv(1)[0]
    self._deadline = time.monotonic() + self._grace_secs
    name, more = _describe(first)
    # Before the main thread knows: it may end the process at once.
    _say(_log.info, f'{name}: saving and stopping{more}')
    self.signal = first % _ASKED or None
    self._requested.set()
    self.wake()
    try:
      _wait_for_second(first, self._reader, self._deadline)
      cause = 'a second signal'
    except TimeoutError:
      cause = f'not done {self._grace_secs:g} s after {name}'
    _say(_log.info, f'{cause}: stopping at once')
    try:
      code = self.end()
    except cli.RunError as error:
      _say(_print_error, error)
      code = error.exit_code
    os._exit(code)


def _note(signum: int, frame: types.FrameType | None) -> None:
  """Stands for a signal that is read from the wake-up descriptor."""


def _is_ours(byte: int) -> bool:
  """Whether a byte from the descriptor is none of a signal of the user's.

  The descriptor gets a byte for each signal that Python handles.
  """
  always = _GIVEN_UP, signal.SIGTERM, signal.SIGINT
  if byte in always or byte >= _ASKED:
    return True
  return signal.getsignal(byte) is _note


def _wait_for_second(byte: int, reader: socket.socket, deadline: float) -> None:
  """Waits for a signal that is not part of the first stop.

  Args:
    byte: what came first.
    reader: where the next bytes come from.
    deadline: by time.monotonic().

  Raises:
    TimeoutError: it is past the deadline.
  """
  first_time = None
  while True:
    now = time.monotonic()
    is_signal = _GIVEN_UP < byte < _ASKED and _is_ours(byte)
    if is_signal and (first_time is None or byte not in signals.NOTICES):
      first_time = now if first_time is None else first_time
      if now >= first_time + signals.ONE_STOP_SECS:
        return
    reader.settimeout(max(0.001, deadline - now))
    byte = reader.recv(1)[0]


def _say(write: Callable[[Any], object], line: Any) -> None:
  """Calls write(line), and goes on if that fails or takes too long.

  A full disk, a pipe that nobody reads or a terminal that was halted must not
  keep this process from ending.
  """

  def try_to_write() -> None:
    with contextlib.suppress(OSError):
      write(line)

  thread = threading.Thread(target=try_to_write, daemon=True)
  thread.start()
  thread.join(_SAY_SECS)


def _print_error(error: cli.RunError) -> None:
  print(f'error: {error}', file=sys.stderr, flush=True)


def _describe(first: int) -> tuple[str, str]:
  """Returns (name, what else to say) for `first`, the byte that came first."""
  if first == _GIVEN_UP:
    return 'giving up', ''
  name = signal.Signals(first % _ASKED).name
  if first in signals.NOTICES:
    return name, '; SIGTERM stops at once'
  if first < _ASKED:
    return name, '; once more stops at once'
  return name, ', with all tasks'
