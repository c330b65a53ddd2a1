"""Measures how fast a run is: a real run, ended once its speed is known."""

import contextlib
import json
import logging
import os
import signal
import subprocess
import threading
import time

from distmnist.common import child_program, cli
from distmnist.watching import metrics_file

_log = logging.getLogger(__name__)

# Until all workers train; a job may have to wait for its turn.
START_SECS = 600.0
_TICK_SECS = 0.2
# From one sample to the next.
_SAMPLE_SECS = 0.5
# A trial that has not left this long after it was told to is killed.
_LEAVE_SECS = 60.0


def compute_speed(samples, secs):
  """Returns the examples per second of all workers together (float).

  Args:
    samples: {worker: list of (time in seconds, examples)}.
    secs: float, how long each worker has to have been observed.

  Returns:
    None until every worker has been, and has made a step meanwhile.
  """
  speed = 0.0
  for seen in samples.values():
    # The first step sets up the graph on the devices.
    seen = [(t, n) for t, n in seen if n]
    if len(seen) < 2:
      return None
    (start, first), (end, last) = seen[0], seen[-1]
    # A step may take longer than the trial was to be.
    if end - start < secs or last == first:
      return None
    speed += (last - first) / (end - start)
  return speed if samples else None


def read_samples(logdir, num_workers):
  """Returns the samples for `compute_speed` that a run has written so far."""
  samples = {}
  for index in range(num_workers):
    task = f'worker {index}'
    samples[task] = []
    with (
      contextlib.suppress(OSError),
      open(metrics_file.path_of(logdir, task)) as file,
    ):
      samples[task] += filter(None, map(_read, file))
  return samples


def _read(line):
  found = _parse(line)
  if found.get('kind') != 'sample' or found.get('examples') is None:
    return None
  return found['time'], found['examples']


def _read_unit(logdir):
  """Returns what the run calls its examples (str), or None."""
  with (
    contextlib.suppress(OSError),
    open(metrics_file.path_of(logdir, 'worker 0')) as file,
  ):
    return next(filter(None, (_parse(line).get('unit') for line in file)), None)
  return None


def _parse(line):
  try:
    return json.loads(line)
  except ValueError:
    return {}


class Runner:
  """Runs trials, one after another.

  Attributes:
    signals: list of int, received by this process; after one, no more trials.
    unit: str, what the last trial called its examples.
  """

  def __init__(self, words, folder, num_workers, secs, signals):
    """
    Args:
      words: list of str, the flags of launch and train.
      folder: str, for the files of all trials; the tasks can see it.
      num_workers: int.
      secs: float, how long each trial is measured.
      signals: list, to which signals.collecting adds.
    """
    self._words = words
    self._folder = folder
    self._num_workers = num_workers
    self._secs = secs
    self.signals = signals
    self.unit = 'examples'
    self._count = 0

  def measure(self, more):
    """Runs a trial; returns (examples per second or None, why there is none).

    Args:
      more: list of str, flags in addition to those of all trials.
    """
    if self.signals:
      return None, 'stopped'
    self._count += 1
    logdir = os.path.join(self._folder, f'trial_{self._count}')
    os.makedirs(logdir)
    words = [
      *(*self._words, *more, f'--logdir={logdir}', '--resume=never'),
      *(f'--logs_dir={logdir}/logs', f'--log_secs={_SAMPLE_SECS}'),
      # We end it.
      *('--train_steps=1000000000', '--epochs=1000000'),
    ]
    path = os.path.join(logdir, 'launch.log')
    with open(path, 'wb') as log:
      process, writer = child_program.start(
        'launch', words, stdout=log, stderr=log
      )
    try:
      speed = self._wait(process, logdir)
    finally:
      _end(process)
      os.close(writer)
    if self.signals:
      return None, 'stopped'
    why = '' if speed is not None else _find_cause(path)
    self.unit = _read_unit(logdir) or self.unit
    told = f'{speed:,.0f} {self.unit}/s' if speed is not None else why
    _log.info(f'trial {self._count}, {" ".join(more) or "as given"}: {told}')
    return speed, why

  def _wait(self, process, logdir):
    deadline = time.monotonic() + START_SECS + self._secs
    while time.monotonic() < deadline and not self.signals:
      # Checked before the samples are read for the last time.
      has_ended = process.poll() is not None
      samples = read_samples(logdir, self._num_workers)
      speed = compute_speed(samples, self._secs)
      if speed is not None or has_ended:
        return speed
      threading.Event().wait(_TICK_SECS)
    return None


def _end(process):
  if process.poll() is None:
    process.send_signal(signal.SIGTERM)
    try:
      process.wait(_LEAVE_SECS)
    except subprocess.TimeoutExpired:
      process.kill()
      process.wait()


def _find_cause(path):
  """Returns why a trial ended too early (str)."""
  with open(path, encoding='utf-8', errors='replace') as file:
    lines = [line.strip() for line in file if line.strip()]
  for line in reversed(lines):
    if found := cli.ERROR_LINE.search(line):
      return found[2]
  return lines[-1] if lines else 'it said nothing'
