"""The contract for what a supervisor runs tasks on."""

from __future__ import annotations

import abc
import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence

from distmnist.common import cli


@dataclasses.dataclass(frozen=True)
class Request:
  """What a host is asked to run: one attempt at a task.

  Attributes:
    name: what the task is called here.
    argv: ('python', '-m', module, flags...).
    env: variables beyond the host's.
    log: a path.
    is_isolated: whether it runs in the host's network namespace, if the host
      has one.
    title: what `ps` shows of it; '' leaves the host's.
  """

  name: str
  argv: Sequence[str]
  env: Mapping[str, str]
  log: str
  is_isolated: bool = False
  title: str = ''


class HostDiedError(cli.LostError):
  """The host is gone, and all its tasks with it.

  Attributes:
    cause: how it ended.
  """

  def __init__(self, message: str, cause: str) -> None:
    super().__init__(message)
    self.cause = cause


class Host(abc.ABC):
  """A place where tasks run. A context: leaving it ends all of them.

  While it is open, the signals that ask to end do not end this process: they
  are collected in `signals`, and they interrupt `poll`. Only `poll` waits, so
  that a launcher of many tasks can always be told to stop.

  Attributes:
    name: what the user knows it by.
    signals: what this process received.
    is_ready: whether it can start tasks yet; requests are kept until then.
    ends_as_one: whether all tasks end with those that are told to.
    begun: (name, pid) of the tasks that have begun, in order; who has heard of
      one takes it out. The pid is None for one elsewhere.
    reasons: by name, why a task has ended where its code does not say.
  """

  name = ''
  ends_as_one = False

  def __init__(self) -> None:
    self.signals: list[int] = []
    self.is_ready = False
    self.begun: list[tuple[str, int | None]] = []
    self.reasons: dict[str, str] = {}

  def __enter__(self) -> Host:
    """Opens it; returns itself."""
    return self

  @abc.abstractmethod
  def __exit__(self, *error: object) -> None:
    """Ends everything that it has started."""

  @property
  def pid(self) -> int:
    """The pid of the process that holds the tasks, by default this."""
    return os.getpid()

  @abc.abstractmethod
  def start(self, request: Request) -> None:
    """Begins a task, or keeps it until the host is ready.

    Raises:
      cli.RunError: the command is too long.
    """

  @abc.abstractmethod
  def signal(self, names: Iterable[str], signum: int) -> None:
    """Sends a signal to those of the named tasks that run."""

  @abc.abstractmethod
  def poll(
    self, timeout_secs: float | None = None
  ) -> list[tuple[str, int | None]]:
    """Waits for an event or a signal; returns [(name, code)] of ended tasks.

    Code -n is signal n. None stands for a task that the host has lost although
    it still runs: `reasons` says why, and its end comes later.

    Raises:
      cli.RunError: it cannot start tasks, and never will.
      HostDiedError: it is gone; raised once.
    """

  @abc.abstractmethod
  def kill(self) -> None:
    """Ends the host at once, and with it everything that it has started."""

  def restart(self) -> None:  # noqa: B027  Most hosts do not die.
    """Makes it ready for tasks again after a HostDiedError; starts none.

    Does nothing where none is raised. Returns once the old tasks are gone:
    until then their ports are taken.

    Raises:
      cli.PassingError: it cannot be made ready now; `poll` still waits.
    """
