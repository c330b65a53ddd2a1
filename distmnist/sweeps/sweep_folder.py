"""The folder of a sweep: found again by the same command, held by one sweep."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

from distmnist.common import cli, console, files, stop_grace

if TYPE_CHECKING:
  from distmnist.sweeps import spec as spec_lib


class SweepFolder:
  """Where a sweep keeps its trials and results.

  Attributes:
    path: absolute.
    trials: the folder that holds one folder per trial.
  """

  def __init__(self, given: str | None, spec: spec_lib.Spec) -> None:
    """
    Args:
      given: the value of --sweep_dir; None for a temporary folder that is named
        after the spec, the problem's file and where we are.
      spec: of the sweep.
    """
    self._grace_secs = spec.stop_grace_secs
    self._is_default = not given
    self.path = os.path.abspath(os.path.expanduser(given or _find(spec)))
    self.trials = self.join('trials')

  def join(self, name: str) -> str:
    """Returns the path of `name` in the folder."""
    return os.path.join(self.path, name)

  @contextlib.contextmanager
  def opened(self) -> Iterator[IO[str]]:
    """Holds the folder for this sweep alone; yields the lock of its trials.

    Raises:
      cli.UsageError: it cannot be written, or is in use.
    """
    try:
      self._make()
      own = _open_lock(self.join('sweep.lock'))
      of_trials = _open_lock(os.path.join(self.trials, 'lock'))
    except OSError as error:
      raise cli.UsageError(
        f'--sweep_dir={self.path} cannot be written: {error.strerror}'
      ) from error
    files.warn_of_owner('sweep_dir', self.path)
    with own, of_trials:
      if not _lock(own):
        raise cli.UsageError(
          f'--sweep_dir={self.path} is in use by another sweep: wait for its'
          ' end, or give another folder'
        )
      self._wait_for_trials(of_trials)
      yield of_trials

  def _make(self) -> None:
    """Makes the folder, and trials/ in it.

    Raises:
      cli.UsageError: it is the default one, and another user has prepared it.
      OSError: it cannot be made.
    """
    if self._is_default:
      # Anyone can predict its name and write next to it. A folder that the user
      # has named may be for a group, or for executors that run as other users.
      try:
        files.make_private(self.path)
      except PermissionError as error:
        raise cli.UsageError(
          f'{error}, and a sweep without --sweep_dir needs a folder of its own:'
          ' give --sweep_dir'
        ) from error
    os.makedirs(self.trials, exist_ok=True)

  def _wait_for_trials(self, lock: IO[str]) -> None:
    """Locks `lock`, which the trials of a killed sweep may still hold.

    They have a few seconds to save and exit.

    Raises:
      cli.RunError: they do not.
    """
    wait = console.Wait(stop_grace.for_orphans(self._grace_secs) + 5)
    while not _lock(lock):
      what = f'for the trials of a sweep that was killed in {self.path}'
      if wait.is_over(what):
        raise cli.RunError(
          f'--sweep_dir={self.path}: trials of a sweep that was killed are'
          ' still running'
        )
      time.sleep(0.05)


def _find(spec: spec_lib.Spec) -> str:
  # The same words stand for other trials where a path in them is another's.
  words = [dataclasses.asdict(spec), spec.problem_sha256, os.getcwd()]
  digest = hashlib.sha256(json.dumps(words).encode()).hexdigest()
  return os.path.join(
    tempfile.gettempdir(), f'distmnist_sweep_{os.getuid()}_{digest[:8]}'
  )


def _open_lock(path: str) -> IO[str]:
  return open(path, 'a+', opener=files.no_follow)


def _lock(file: IO[str]) -> bool:
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True
