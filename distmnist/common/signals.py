"""Signals as exceptions, or collected, for as long as a context lasts."""

from __future__ import annotations

import contextlib
import signal
import socket
import time
import types
from collections.abc import Iterator

_SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
# What a scheduler sends some time before it kills: Slurm's --signal, SGE's
# -notify, LSF at its run limit, the kernel at a limit of CPU time. They ask to
# end as SIGTERM does. Some come again and again, and none asks to end at once.
NOTICES = signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU
# All that ask a process to end.
STOPS = *_SIGNALS, *NOTICES
# One stop may come as several signals, and they as one: a system that signals
# every process reaches a task directly and by its launcher; a terminal that
# closes has the shell and the kernel each send SIGHUP.
ONE_STOP_SECS = 1.0
# Nobody types Ctrl-C twice as fast; `timeout -s INT` sends it twice, and so
# does a program that passes on what the terminal has sent to both.
ONE_KEY_SECS = 0.2


class SignalError(BaseException):
  """This program was sent a signal that should end it."""

  def __init__(self, signum: int) -> None:
    super().__init__(signum)
    self.signum = signum
    self.name = signal.Signals(signum).name
    self.exit_code = 128 + signum


def find_heeded() -> list[int]:
  """Returns the numbers of the signals that ask this process to end.

  After nohup SIGHUP is none of them: the process outlives its terminal. Nor is
  one of NOTICES that the user's own code handles.
  """
  ignored = signal.SIGHUP, signal.SIG_IGN
  heeded = [n for n in _SIGNALS if (n, signal.getsignal(n)) != ignored]
  return heeded + _find_free_notices()


def _find_free_notices() -> list[int]:
  caught = _find_caught()
  return [
    n
    for n in NOTICES
    if signal.getsignal(n) == signal.SIG_DFL and n not in caught
  ]


def _find_caught() -> set[int]:
  """Returns the numbers of the signals that have a handler.

  Python knows nothing of those of C, such as faulthandler.register's.
  """
  with open('/proc/self/status', encoding='ascii', errors='replace') as file:
    [mask] = [line.split()[1] for line in file if line.startswith('SigCgt:')]
  return {n for n in signal.valid_signals() if int(mask, 16) >> (n - 1) & 1}


def choose_passed_on(signum: int | None) -> signal.Signals:
  """Returns the signal that tells a task to end after `signum` came to another.

  Any --module saves on SIGINT and SIGTERM; the others may end it at once.
  """
  return signal.SIGINT if signum == signal.SIGINT else signal.SIGTERM


def is_signal(error: BaseException | None) -> bool:
  """Whether an exception stands for a signal, such as a Ctrl-C.

  Where the signal is taken in another way, Python raises nothing for it: then a
  KeyboardInterrupt comes from the user's code.
  """
  is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
  is_ctrl_c = is_default and isinstance(error, KeyboardInterrupt)
  return is_ctrl_c or isinstance(error, SignalError)


def end_on_ctrl_c() -> None:
  """Has a Ctrl-C end this process at once, until `raise_on_ctrl_c`."""
  if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def end_as_by_ctrl_c() -> None:
  """Ends this process by SIGINT, after a KeyboardInterrupt.

  It returns only where the kernel keeps that from a process, as from the first
  of a container.
  """
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  signal.raise_signal(signal.SIGINT)


def raise_on_ctrl_c() -> None:
  """Has a Ctrl-C raise KeyboardInterrupt, as it does in Python by default."""
  if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def raising() -> Iterator[None]:
  """Makes the first two signals raise SignalError where they arrive."""
  received = []

  def handle(signum: int, _: types.FrameType | None) -> None:
    if received and signum in NOTICES:
      return
    received.append(signum)
    if len(received) <= 2:
      raise SignalError(received[0])

  signums = [n for n in _SIGNALS if signal.getsignal(n) != signal.SIG_IGN]
  signums += _find_free_notices()
  before = [signal.signal(n, handle) for n in signums]
  try:
    yield
  finally:
    for signum, handler in zip(signums, before, strict=True):
      signal.signal(signum, handler)


@contextlib.contextmanager
def collecting(signals: list[int], fd: int | None = None) -> Iterator[None]:
  """Collects the signals that ask to end, which then do not end this process.

  SIGTERM and SIGHUP within ONE_STOP_SECS of the first signal are left out: they
  belong to the same stop. So do NOTICES, whenever they come. SIGINT counts each
  time, as a person types it, but not within ONE_KEY_SECS of the one before.

  Args:
    signals: their numbers are added to it.
    fd: non-blocking descriptor to which each writes a byte, or None.
  """
  first = last_key = None

  def handle(signum: int, _: types.FrameType | None) -> None:
    nonlocal first, last_key
    if first is not None and signum in NOTICES:
      return
    now = time.monotonic()
    then, secs = first, ONE_STOP_SECS
    if signum == signal.SIGINT:
      then, secs, last_key = last_key, ONE_KEY_SECS, now
    first = now if first is None else first
    if then is None or now >= then + secs:
      signals.append(signum)

  old_wakeup = signal.set_wakeup_fd(-1 if fd is None else fd)
  old_handlers = {n: signal.signal(n, handle) for n in find_heeded()}
  try:
    yield
  finally:
    for signum, handler in old_handlers.items():
      signal.signal(signum, handler)
    signal.set_wakeup_fd(old_wakeup)


@contextlib.contextmanager
def waking(signals: list[int]) -> Iterator[socket.socket]:
  """Like `collecting`; yields a socket that is readable once a signal came."""
  reader, writer = socket.socketpair()
  writer.setblocking(False)
  with reader, writer, collecting(signals, writer.fileno()):
    yield reader


class Reader:
  """The signals of this process, read from a socket instead of handled.

  As of those that are collected, NOTICES are left out after the first stop.
  """

  def __init__(self, *signums: int) -> None:
    self._is_stopped = False
    self.reader, self._writer = socket.socketpair()
    self._writer.setblocking(False)
    for signum in signums:
      signal.signal(signum, lambda *_: None)
    signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

  def fileno(self) -> int:
    return self.reader.fileno()

  def read(self) -> list[int]:
    """Returns the numbers of the signals that came."""
    found = []
    for signum in self.reader.recv(4096):
      if not (self._is_stopped and signum in NOTICES):
        found.append(signum)
      self._is_stopped |= signum in STOPS
    return found
