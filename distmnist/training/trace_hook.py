"""Chrome timelines of chosen steps."""

import logging
import os

import tensorflow.compat.v1 as tf
from absl import flags
from tensorflow.python.client import timeline

from distmnist.common import cli, files

_log = logging.getLogger(__name__)

_TRACE_STEPS = flags.DEFINE_list(
  'trace_steps',
  [],
  'Local steps of each worker, such as 100,200, of which a Chrome timeline of '
  'worker and ps is written to --logdir.',
)


def steps_from_flags(logdir):
  """Returns the list of int of --trace_steps.

  Args:
    logdir: str, --logdir, or None.

  Raises:
    cli.UsageError: they are no steps, or there is no folder.
  """
  words = _TRACE_STEPS.value
  given = f'--trace_steps={",".join(words)}'
  if not all(w.isascii() and w.isdigit() and int(w) for w in words):
    raise cli.UsageError(f'{given}: expected local steps >= 1, such as 100,200')
  if words and not logdir:
    raise cli.UsageError(f'{given} needs a --logdir to write to')
  return [int(word) for word in words]


class TraceHook(tf.train.SessionRunHook):
  """Writes what the devices of a step did, of this worker and of every ps.

  A Chrome timeline: load the file in chrome://tracing or ui.perfetto.dev. The
  clocks of the hosts are taken as they are.
  """

  def __init__(self, local_steps, steps, folder):
    """
    Args:
      local_steps: list of int, which steps of this worker, from 1.
      steps: fused_steps.Steps: a run of several steps is one file.
      folder: str, where trace_STEP.json goes.
    """
    self._wanted = sorted(local_steps)
    self._steps = steps
    self._folder = folder
    self._num_steps = 0

  def before_run(self, run_context):
    last = self._num_steps + len(self._steps.chosen_tensors())
    self._is_traced = any(self._num_steps < n <= last for n in self._wanted)
    if not self._is_traced:
      return None
    return tf.train.SessionRunArgs(
      [], options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    )

  def after_run(self, run_context, run_values):
    self._num_steps += len(self._steps.done)
    if not self._is_traced:
      return
    path = os.path.join(self._folder, f'trace_{self._num_steps}.json')
    trace = timeline.Timeline(run_values.run_metadata.step_stats)
    try:
      os.makedirs(self._folder, exist_ok=True)
      with files.replacing(path) as file:
        file.write(trace.generate_chrome_trace_format(show_memory=False))
    except OSError as error:
      _log.info(f'cannot write {path}: {error.strerror}')
      return
    _log.info(f'local step {self._num_steps}: trace in {path}')

  def end(self, session):
    if missed := [n for n in self._wanted if n > self._num_steps]:
      steps = ', '.join(map(str, missed))
      _log.info(
        f'no trace of local step {steps}: this worker made {self._num_steps}'
      )
