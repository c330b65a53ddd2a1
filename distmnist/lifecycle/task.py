"""One task of a cluster: its role, its server, and what may stop it."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from typing import TYPE_CHECKING

from distmnist import runtime
from distmnist.cluster import cluster as cluster_lib
from distmnist.cluster import role_flags, stop_request
from distmnist.cluster import server as server_lib
from distmnist.common import ports
from distmnist.common.names import ATTEMPT
from distmnist.lifecycle import stalls as stalls_lib
from distmnist.lifecycle import watchdog as watchdog_lib
from distmnist.logdir import history, logdirs
from distmnist.watching import own_metrics

if TYPE_CHECKING:
  import tensorflow.compat.v1 as tf

_log = logging.getLogger(__name__)


class Task:
  """What a process of the cluster has from its start to its end.

  Attributes:
    cluster: with the role of this task.
    stop: heeds signals.
    server: None before `serve`, and for one process.
    watchdog: there is none before `serve`.
    metrics: kept once there is a log directory.
    history: writes nothing before `begin_history`.
  """

  watchdog: watchdog_lib.Watchdog

  def __init__(
    self, cluster: cluster_lib.Cluster, stop: stop_request.StopRequest
  ) -> None:
    self.cluster = cluster
    self.stop = stop
    self.server: tf.train.Server | None = None
    self.metrics, self.history = own_metrics.OwnMetrics(), history.History()

  @functools.cached_property
  def stalls(self) -> stalls_lib.Stalls:
    """To be told what this task is doing."""
    return stalls_lib.from_flags(self.stop, self.metrics)

  @property
  def target(self) -> str:
    """What this task's sessions connect to; '' is this process alone."""
    return self.server.target if self.server else ''

  @functools.cached_property
  def server_config(self) -> tf.ConfigProto:
    """Settings of the server, with the GPUs of this task."""
    return server_lib.make_server_config(self.cluster.num_gpus)

  @functools.cached_property
  def session_config(self) -> tf.ConfigProto:
    """Settings of this task's sessions."""
    return self.cluster.session_config(
      self.server_config, with_workers=not self.cluster.num_ps
    )

  def log_role(self) -> None:
    """Says which task this is, unless the command line does."""
    cluster = self.cluster
    if cluster.source in ('', 'flags'):
      return
    alias = cluster_lib.name_in_source(cluster, cluster.name)
    _log.info(
      f'this task is {cluster.name}, by {cluster.source}'
      + (f', which calls it {alias}' if alias else '')
    )

  def loading(self) -> contextlib.AbstractContextManager[object]:
    """A context that shows the ps, which wait for workers, that this one comes.

    Data may take hours to load, and a ps that nobody answers gives up. Without
    a ps the others ask a worker's server itself, and there is none yet.
    """
    if not self.cluster.num_ps:
      return contextlib.nullcontext()
    return ports.answering(self.cluster.port)

  def serve(self) -> None:
    """Starts the server: from now on the other tasks count on this one."""
    self.stop.listen_again()
    self.stalls.busy(
      'the start of the server',
      own_limit_secs=self.cluster.start_timeout_secs,
    )
    self.server = server_lib.make_server(self.cluster, self.server_config)
    self.watchdog = watchdog_lib.from_flags(
      self.cluster, self.server, self.stalls, self.stop
    )
    self.stalls.ask_about_others(self.watchdog)

  def begin_history(self, logdir: str | None) -> None:
    """Writes `history` from now on, if the flags ask for it."""
    self.history = history.from_flags(
      logdir, self.cluster.task_index, self.watchdog.life
    )


def from_flags() -> Task:
  """Returns the task that the flags, TF_CONFIG or Slurm describe.

  It is watched from now on.

  Raises:
    cli.UsageError: what they say does not make a cluster.
  """
  # First, so that no signal comes too early.
  stop = stop_request.StopRequest(stop_request.STOP_GRACE_SECS.value)
  cluster = role_flags.from_flags(os.environ)
  if not cluster.num_gpus:
    runtime.hide_gpus()
  if cluster.is_chief and ATTEMPT in os.environ and logdirs.from_flags():
    stop.note_unsaved(
      'this chief was started anew and had no session yet: what was trained '
      'since its newest checkpoint is not saved'
    )
  task = Task(cluster, stop)
  task.stalls.start()
  return task
