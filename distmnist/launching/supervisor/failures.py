"""A task that has failed: which one, how it ended, and in what words."""

from __future__ import annotations

import dataclasses
import signal

from distmnist.common import signals
from distmnist.launching import jobs


@dataclasses.dataclass(frozen=True)
class Failure:
  """A task's end with anything but exit code 0; code -n is signal n.

  `reason` says what happened where the code does not.
  """

  task: jobs.Task
  code: int
  num_restarts: int = 0
  reason: str = ''

  @property
  def cause(self) -> str:
    return self.reason or describe_end(self.code)

  @property
  def exit_code(self) -> int:
    return 128 - self.code if self.code < 0 else self.code

  def __str__(self) -> str:
    if self.reason:
      return f'{self.task.name} ({self.task.address}): {self.reason}'
    cause = self.cause if self.code < 0 else f'ended with {self.cause}'
    return f'{self.task.name} ({self.task.address}) {cause}'


def from_shell(code: int) -> int:
  """Returns -n for an exit code 128 + n, as of a shell for signal n.

  Not for one of signals.STOPS: train itself ends with that code.
  """
  is_signal = code - 128 in {*signal.valid_signals()} - {*signals.STOPS}
  return 128 - code if is_signal else code


def describe_end(code: int) -> str:
  """Returns 'exit code 3', or 'killed by SIGKILL' for -9."""
  if code < 0:
    try:
      return f'killed by {signal.Signals(-code).name}'
    except ValueError:  # One of real time, say.
      return f'killed by signal {-code}'
  return f'exit code {code}'
