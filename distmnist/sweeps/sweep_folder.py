"""The folder of a sweep: found again by the same command, held by one sweep."""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import logging
import os
import tempfile
import time

from distmnist.common import cli, console, files, stop_grace
from distmnist.launching import problem_file
from distmnist.sweeps import search_space

_log = logging.getLogger(__name__)


class SweepFolder:
  """Where a sweep keeps its trials and results.

  Attributes:
    path: str, absolute.
    trials: str, the folder that holds one folder per trial.
  """

  def __init__(self, given, study):
    """
    Args:
      given: str, the value of --sweep_dir; None for a temporary folder that
        is named after the study, the problem's file and where we are.
      study: study.Study.
    """
    self._study = dataclasses.asdict(study)
    # A file that is not sent along, such as a module, is not looked at.
    source = problem_file.read(study.problem)
    self._problem = source and hashlib.sha256(source).hexdigest()
    self._grace_secs = study.stop_grace_secs
    self._is_default = not given
    self.path = os.path.abspath(os.path.expanduser(given or self._find()))
    self.trials = self.join('trials')

  def _find(self):
    # The same words stand for other trials where a path in them is another's.
    words = json.dumps([self._study, self._problem, os.getcwd()])
    digest = hashlib.sha256(words.encode()).hexdigest()
    return os.path.join(
      tempfile.gettempdir(), f'distmnist_sweep_{os.getuid()}_{digest[:8]}'
    )

  def join(self, name):
    """Returns the path (str) of `name` in the folder."""
    return os.path.join(self.path, name)

  @contextlib.contextmanager
  def opened(self):
    """Holds the folder for this sweep alone; yields the lock of its trials.

    Raises:
      cli.UsageError: it cannot be written, holds another sweep, or is in use.
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
      self._check_problem(self.check_study())
      yield of_trials

  def save_study(self):
    """Marks the folder as this sweep's for good."""
    known = {**self._study, 'problem_sha256': self._problem}
    files.write_json(self.join('sweep.json'), known)

  def _make(self):
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

  def _wait_for_trials(self, lock):
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

  def check_study(self):
    """Returns the content of sweep.json, a dict, empty without one.

    Raises:
      cli.UsageError: it holds another sweep.
      cli.RunError: the file was not written by `save_study`.
    """
    path = self.join('sweep.json')
    try:
      known = files.read_json(path)
      if not isinstance(known, dict):
        raise ValueError('it is no JSON object')
    except FileNotFoundError:
      return {}
    except (OSError, ValueError) as error:
      raise cli.RunError(
        f'{path} cannot be read ({error}): that was not written by a sweep;'
        ' give another --sweep_dir'
      ) from error
    for name, value in self._study.items():
      if known.get(name) != value:
        raise cli.UsageError(
          f'--sweep_dir={self.path} holds another sweep: its {name} were '
          f'{_compare(known.get(name), value)}; give the same command line'
          ' again, or another folder'
        )
    return known

  def _check_problem(self, known):
    """Says so if the file of the problem was another one at first."""
    first = known.get('problem_sha256', self._problem)
    if first != self._problem:
      _log.info(
        f'the file of --problem has changed since the sweep in {self.path}'
        ' began: trials that have ended are of the earlier file; another'
        ' --sweep_dir runs them anew'
      )
    self._problem = first


def _open_lock(path):
  return open(path, 'a+', opener=files.no_follow)


def _lock(file):
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def _compare(known, given):
  """Returns 'KNOWN and not GIVEN' (str), of trials the first that differ."""
  if not _are_combinations(known) or not _are_combinations(given):
    return f'{known!r} and not {given!r}'
  pairs = zip(known, given, strict=False)
  same = sum(1 for _ in itertools.takewhile(lambda p: p[0] == p[1], pairs))
  return ' and not '.join(_shorten(value, same) for value in (known, given))


def _are_combinations(value):
  return isinstance(value, list) and all(isinstance(v, dict) for v in value)


def _shorten(combinations, index):
  found = combinations[index : index + 1]
  if not found:
    return str(len(combinations))
  first = search_space.describe(found[0])
  return f'{len(combinations)} (number {index + 1}: {first})'
