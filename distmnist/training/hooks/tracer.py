"""Chrome timelines of chosen steps."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli, files
from distmnist.training.telemetry import clocks, step_events
from distmnist.watching import timeline

if TYPE_CHECKING:
  from distmnist.exchange.steps import fused_steps
  from distmnist.lifecycle import task as task_lib

_log = logging.getLogger(__name__)

_TRACE_STEPS = flags.DEFINE_list(
  'trace_steps',
  [],
  'Local steps of each worker, such as 100,200, for which a Chrome timeline of '
  'worker and ps is written to --logdir.',
)


def steps_from_flags(logdir: str | None) -> list[int]:
  """Returns --trace_steps.

  Raises:
    cli.UsageError: they are not steps, or there is no folder.
  """
  words = _TRACE_STEPS.value
  given = f'--trace_steps={",".join(words)}'
  if not all(w.isascii() and w.isdigit() and int(w) for w in words):
    raise cli.UsageError(f'{given}: expected local steps >= 1, such as 100,200')
  if words and not logdir:
    raise cli.UsageError(f'{given} needs a --logdir to write to')
  return [int(word) for word in words]


class Tracer:
  """Writes what the devices of this worker and of every ps did in a step.

  A Chrome timeline: load the file in ui.perfetto.dev or chrome://tracing. All
  times are by the clock of ps 0, which is read after the step; see clocks.py.
  """

  def __init__(
    self,
    local_steps: Iterable[int],
    steps: fused_steps.Steps,
    folder: str,
    task: task_lib.Task,
  ) -> None:
    """
    Args:
      local_steps: which steps of this worker, from 1.
      steps: a run of several steps is one file.
      folder: where trace_STEP.json goes.
    """
    self._wanted = sorted(local_steps)
    self._steps = steps
    self._folder = folder
    self._task = task
    self._num_steps = 0

  def choose_args(self) -> tf.train.SessionRunArgs | None:
    """Returns the tf.train.SessionRunArgs of a run to be traced, or None."""
    last = self._num_steps + len(self._steps.chosen_tensors())
    self._is_traced = any(self._num_steps < n <= last for n in self._wanted)
    if not self._is_traced:
      return None
    return tf.train.SessionRunArgs(
      [], options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    )

  def write(self, run_values: tf.train.SessionRunValues) -> None:
    """Writes the timeline of a run that was traced."""
    self._num_steps += len(self._steps.done)
    if not self._is_traced:
      return
    path = os.path.join(self._folder, f'trace_{self._num_steps}.json')
    cluster = self._task.cluster
    events = step_events.find_events(
      run_values.run_metadata.step_stats,
      cluster.name,
      clocks.measure(cluster, self._task.server),
    )
    for event in events:
      event['args']['step'] = f'{cluster.name}, local step {self._num_steps}'
    try:
      os.makedirs(self._folder, exist_ok=True)
      with files.replacing(path) as file:
        json.dump(timeline.lay_out(events), file)
    except OSError as error:
      _log.info(f'cannot write {path}: {error.strerror}')
      return
    _log.info(f'local step {self._num_steps}: trace in {path}')

  def end(self) -> None:
    """Says which of the steps this worker has not made."""
    if missed := [n for n in self._wanted if n > self._num_steps]:
      steps = ', '.join(map(str, missed))
      _log.info(
        f'no trace of local step {steps}: this worker made {self._num_steps}'
      )
