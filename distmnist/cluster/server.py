"""This task's TensorFlow server, and the config of its sessions."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import identity, keepalive
from distmnist.common import cli, ports
from distmnist.common.names import ATTEMPT

if TYPE_CHECKING:
  from distmnist.cluster.cluster import Cluster

_log = logging.getLogger(__name__)

_ALLOW_SOFT_PLACEMENT = flags.DEFINE_bool(
  'allow_soft_placement',
  True,
  'Run an op on the CPU if it has no kernel for its device.',
)
_LOG_DEVICE_PLACEMENT = flags.DEFINE_bool(
  'log_device_placement',
  False,
  'Print the device assigned to each op of the training graph.',
)
_INTRA_OP_THREADS = flags.DEFINE_integer(
  'intra_op_parallelism_threads',
  0,
  'Threads within an op; 0 means one per core. Set it where tasks share a '
  'machine.',
  lower_bound=0,
)
_INTER_OP_THREADS = flags.DEFINE_integer(
  'inter_op_parallelism_threads',
  0,
  'Ops that run at the same time; 0 means one per core.',
  lower_bound=0,
)


def make_server_config(num_gpus: int = 0) -> tf.ConfigProto:
  """The ConfigProto of a server, or of the one process: threads and GPUs."""
  config = tf.ConfigProto(
    allow_soft_placement=_ALLOW_SOFT_PLACEMENT.value,
    intra_op_parallelism_threads=_INTRA_OP_THREADS.value,
    inter_op_parallelism_threads=_INTER_OP_THREADS.value,
  )
  if not num_gpus:
    config.device_count['GPU'] = 0
    # Of TensorFlow's rewrites of a graph before its first run, only these, done
    # once, save more than they cost on CPUs (docs/bytes_and_time.md).
    rewriting = config.graph_options.rewrite_options
    rewriting.optimizers.extend(['pruning', 'arithmetic', 'dependency'])
    rewriting.meta_optimizer_iterations = rewriting.ONE
  # Idle threads that spin take cores from other tasks on the machine.
  config.experimental.disable_thread_spinning = True
  return config


def log_placement(graph: tf.Graph) -> None:
  """Prints where each op goes, if --log_device_placement asks for it.

  TensorFlow's own log of it is at a level that runtime.py silences.
  """
  if _LOG_DEVICE_PLACEMENT.value:
    for op in graph.get_operations():
      _log.info(f'{op.name} ({op.type}): {op.device}')


def make_server(
  cluster: Cluster, config: tf.ConfigProto
) -> tf.train.Server | None:
  """Starts this task's server; one process without hosts needs none.

  Raises:
    cli.RunError: the port is taken, or TensorFlow refuses the spec.
  """
  if not cluster.is_distributed:
    return None
  _check_port_is_free(cluster)
  try:
    server = tf.train.Server(
      cluster.spec(),
      cluster.job_name,
      cluster.task_index,
      config=config,
    )
  except tf.errors.OpError as error:
    raise cli.RunError(
      f'{cluster.name} cannot serve on {cluster.address}: {error.message}'
    ) from error
  keepalive.ask_who_connects(cluster.port)
  keepalive.look_after_own([*cluster.ps_hosts, *cluster.worker_hosts])
  return server


def _check_port_is_free(cluster: Cluster) -> None:
  """TensorFlow's own message names neither the port nor the cause."""
  try:
    ports.check_is_free(cluster.port)
  except OSError as error:
    raise _choose_port_error()(
      f'{cluster.name} cannot listen on port {cluster.port}: '
      f'{error.strerror}; stop the process that has it or give {cluster.name} '
      'another port'
    ) from error


def _choose_port_error() -> type[cli.RunError]:
  """Returns a kind of error; the launcher goes by its exit code."""
  if identity.FIRST_PORT in os.environ:
    return cli.PortTakenError  # Chosen by the number of the job.
  if ATTEMPT in os.environ:
    return cli.LostError  # An earlier attempt has not left yet.
  return cli.RunError
