"""Starts workers one after the other, at given global steps.

The first steps of a training move the weights farthest and, with many
asynchronous workers, have the most staleness. Downpour (Dean et al. 2012)
therefore starts with one replica; TF-Slim calls this `startup_delay_steps`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import stop_request
from distmnist.common import cli

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.lifecycle import stalls as stalls_lib

_log = logging.getLogger(__name__)

_STARTUP_DELAY_STEPS = flags.DEFINE_integer(
  'startup_delay_steps',
  0,
  'Global steps from the start of one worker to that of the next: worker k '
  'starts at k times this global step. For asynchronous rules; 0: all start at '
  'once.',
  lower_bound=0,
)
_LOOK_SECS = 0.1


def find_start(cluster: cluster_lib.Cluster, last_step: int) -> int:
  """Returns the global step at which this worker starts.

  Args:
    last_step: the global step at which the training ends.

  Raises:
    cli.UsageError: the last worker would never start.
  """
  delay, last_worker = _STARTUP_DELAY_STEPS.value, cluster.num_workers - 1
  if delay and last_worker and delay * last_worker >= last_step:
    raise cli.UsageError(
      f'--startup_delay_steps={delay} lets worker {last_worker} start at '
      f'global step {delay * last_worker}, and the training ends at '
      f'{last_step}: expected at most {(last_step - 1) // last_worker}'
    )
  return delay * cluster.task_index


class StartupHook(tf.train.SessionRunHook):
  """Waits for the global step at which this worker starts.

  It comes before the hooks of the rule, so that a copy of the center is made
  only when the wait is over.
  """

  def __init__(
    self,
    start_step: int,
    global_step: tf.Variable,
    stop: stop_request.StopRequest,
    stalls: stalls_lib.Stalls,
    is_stop_for_all: Callable[[], bool],
  ) -> None:
    """
    Args:
      global_step: int64 scalar variable.
      stalls: notified when the others make a step.
    """
    self._start_step = start_step
    self._global_step = global_step
    self._stop = stop
    self._stalls = stalls
    self._is_stop_for_all = is_stop_for_all

  def after_create_session(
    self, session: tf.Session, coord: tf.train.Coordinator
  ) -> None:
    seen = None
    while not (self._stop.is_requested or self._is_stop_for_all()):
      step = session.run(self._global_step)
      if step >= self._start_step:
        return
      if seen is None:
        _log.info(
          f'waits for global step {self._start_step} to start '
          f'(--startup_delay_steps); it is {step} now'
        )
      if step != seen:
        seen = step
        self._stalls.busy(
          f'the wait for global step {self._start_step}', waits_for_others=True
        )
      with contextlib.suppress(stop_request.StoppedError):
        self._stop.wait(_LOOK_SECS)
