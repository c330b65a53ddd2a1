"""The folder in which the jobs of --launcher=command find each other.

Each message is a file, written whole or not at all. The launcher and the nodes
share only the file system, not even a clock.

  request.json     what to run, from the launcher
  NAME.place       host:port of a task, from its job
  NAME.signal      for a task, from its launcher
  NAME.attempt     the number of this attempt, from the second on
  launcher         changes as long as the launcher lives
  NAME.job         changes as long as the job lives
  NAME.end         the exit code of a task, -n after signal n
  NAME.out         what a task writes

job_host.py keeps its own files there: NAME.sh, NAME.submit, NAME.scheduler.

Once the folder is gone, the run is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from typing import TypedDict

from distmnist.common import files

# How often each side shows that it lives, and when it counts as lost.
BEAT_SECS = 5.0
LOST_SECS = 60.0
REQUEST = 'request.json'


class Request(TypedDict):
  """The launcher's request of all jobs."""

  cwd: str
  module: str
  num_ps: int
  num_worker: int
  train_flags: list[str]
  grace_secs: float
  env: dict[str, str]


class Meeting:
  """Messages between a task and its launcher, and to the other tasks."""

  def __init__(self, folder: str, name: str) -> None:
    """
    Args:
      folder: an existing folder for one attempt of all tasks.
    """
    self._folder = folder
    self._name = name.replace(' ', '_')

  @property
  def is_open(self) -> bool:
    return os.path.isdir(self._folder)

  @property
  def launcher_path(self) -> str:
    """The file that changes as long as the launcher lives."""
    return os.path.join(self._folder, 'launcher')

  def path(self, what: str, name: str | None = None) -> str:
    return os.path.join(self._folder, f'{name or self._name}.{what}')

  def say(self, what: str, text: str) -> None:
    """Writes a file; that the folder is gone is not an error."""
    with (
      contextlib.suppress(OSError),
      files.replacing(self.path(what)) as file,
    ):
      file.write(text)

  def hear(self, what: str, name: str | None = None) -> str:
    """Returns the content of a file, '' as long as there is none."""
    return _read(self.path(what, name))

  def read_places(self, names: Iterable[str]) -> dict[str, str]:
    """Returns {name: host:port} of those `names` that have said theirs."""
    places = {
      name: self.hear('place', name.replace(' ', '_')) for name in names
    }
    return {name: place for name, place in places.items() if place}


def _read(path: str) -> str:
  try:
    with open(path, encoding='utf-8') as file:
      return file.read()
  except OSError:
    return ''


def read_request(folder: str) -> Request | None:
  """Returns the request of a run; None if the run is over."""
  try:
    with open(os.path.join(os.path.dirname(folder), REQUEST)) as file:
      return json.load(file)
  except OSError:
    return None


class Pulse:
  """Whether the other side is alive: a file of its changes as long as it is."""

  def __init__(self, path: str) -> None:
    self._path = path
    self._next_look = 0.0
    self._heard, self._heard_time = None, time.monotonic()

  def is_lost(self) -> bool:
    """Whether nothing was heard from the other side for LOST_SECS."""
    now = time.monotonic()
    if now >= self._next_look:
      self._next_look = now + BEAT_SECS
      heard = _read(self._path)
      if heard != self._heard:
        self._heard, self._heard_time = heard, now
    return now - self._heard_time > LOST_SECS
