"""A task that has failed: which one, how it ended, and in what words."""

import dataclasses
import signal


@dataclasses.dataclass(frozen=True)
class Failure:
  """A task's end with anything but exit code 0; code -n is signal n.

  `reason` says what happened where the code does not.
  """

  task: object
  code: int
  num_restarts: int = 0
  reason: str = ''

  @property
  def cause(self):
    return self.reason or describe_end(self.code)

  @property
  def exit_code(self):
    return 128 - self.code if self.code < 0 else self.code

  def __str__(self):
    if self.reason:
      return f'{self.task.name} ({self.task.address}): {self.reason}'
    cause = self.cause if self.code < 0 else f'ended with {self.cause}'
    return f'{self.task.name} ({self.task.address}) {cause}'


def describe_end(code):
  """Returns 'exit code 3', or 'killed by SIGKILL' for -9 (str)."""
  if code < 0:
    try:
      return f'killed by {signal.Signals(-code).name}'
    except ValueError:  # One of real time, say.
      return f'killed by signal {-code}'
  return f'exit code {code}'
