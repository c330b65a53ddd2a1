"""The role of this task, from flags or environment variables.

Every task is started with the same two lists of hosts and with its own
--job_name and --task_index, or finds both in its environment variables
(cluster/task_environment.py). Flags come first.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Mapping

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import addresses, cluster, task_environment
from distmnist.common import cli
from distmnist.common.names import GPU_FILES

_log = logging.getLogger(__name__)

_JOB_NAME = flags.DEFINE_enum(
  'job_name',
  None,
  ['ps', 'worker', 'evaluator'],
  'Role of this task in the cluster. An evaluator is not part of the cluster '
  'and needs no hosts: it evaluates each checkpoint in --logdir.',
)
_TASK_INDEX = flags.DEFINE_integer(
  'task_index',
  None,
  'Index of this task within its job. Worker 0 is the chief: it initialises '
  'the variables, writes the checkpoints and evaluates.',
  lower_bound=0,
)
_PS_HOSTS = flags.DEFINE_string(
  'ps_hosts', None, 'host:port of each ps, in order, separated by commas.'
)
_WORKER_HOSTS = flags.DEFINE_string(
  'worker_hosts',
  None,
  'host:port of each worker, in order, separated by commas.',
)
_START_TIMEOUT_SECS = flags.DEFINE_float(
  'start_timeout_secs',
  60,
  'How long to wait for the other tasks before giving up, in seconds.',
  lower_bound=0,
)
_NUM_GPUS = flags.DEFINE_integer(
  'num_gpus',
  None,
  'GPUs that this worker computes on, with --batch_size images on each; 0: the '
  'CPU only. By default 1 where TensorFlow sees a GPU, else 0. (A ps never '
  'takes one.)',
  lower_bound=0,
)
_WIRE_DTYPE = flags.DEFINE_enum(
  'wire_dtype',
  'float32',
  ['float32', 'float16', 'bfloat16'],
  'Type that pulled variables and pushed gradients are cast to between worker '
  'and ps. The center is always float32.',
)


def parse_hosts(text: str | None, flag_name: str) -> tuple[str, ...]:
  """Returns each 'host:port' in `text`.

  Raises:
    cli.UsageError: an empty entry, no host, or a port out of 1..65535.
  """
  if text is None or not text.strip():
    return ()
  hosts = tuple(entry.strip() for entry in text.split(','))
  for entry in hosts:
    addresses.check_address(
      entry, f'--{flag_name}', f' (the whole list: {text})'
    )
  return hosts


def from_flags(environ: Mapping[str, str] | None = None) -> cluster.Cluster:
  """Returns the cluster, and this task's place in it.

  Args:
    environ: environment variables, read where no flag gives a role;
      None for flags alone.

  Raises:
    cli.UsageError: one clear line on what does not fit.
  """
  environ = environ or {}
  names = task_environment.find(environ)
  has_flags = any(
    flag.value is not None
    for flag in (_JOB_NAME, _TASK_INDEX, _PS_HOSTS, _WORKER_HOSTS)
  )
  identity = None if has_flags else task_environment.read(environ)
  unused = names if has_flags else names[1:]
  if unused:
    source = 'flags' if has_flags else names[0]
    _log.info(
      f'the cluster is read from {source}: {", ".join(unused)} not used'
    )
  is_alone = not (has_flags or identity)
  if is_alone and (line := task_environment.describe_alone(environ)):
    _log.info(line)
  settings = {
    'start_timeout_secs': _START_TIMEOUT_SECS.value,
    'num_gpus': _find_num_gpus(
      identity.job_name if identity else _JOB_NAME.value
    ),
    'wire_dtype': _WIRE_DTYPE.value,
  }
  if identity:
    return cluster.Cluster(**vars(identity), **settings)
  return cluster.make_cluster(
    parse_hosts(_PS_HOSTS.value, 'ps_hosts'),
    parse_hosts(_WORKER_HOSTS.value, 'worker_hosts'),
    _JOB_NAME.value,
    _TASK_INDEX.value,
    source='flags' if has_flags else '',
    **settings,
  )


def _find_num_gpus(job_name: str | None) -> int:
  """Returns how many GPUs a task of this job computes on."""
  num_gpus = _NUM_GPUS.value
  if job_name == 'ps':
    num_gpus = 0
  elif num_gpus != 0:
    num_found = len(tf.config.list_physical_devices('GPU'))
    if num_gpus is None:
      num_gpus = min(1, num_found)
      if not num_found:
        _tell_of_unused_card()
    elif num_gpus > num_found:
      raise cli.UsageError(
        f'--num_gpus={num_gpus}, but TensorFlow sees {num_found} here: see '
        'nvidia-smi and CUDA_VISIBLE_DEVICES, or give --num_gpus=0'
      )
  return num_gpus


def _tell_of_unused_card() -> None:
  """A TensorFlow without the libraries of CUDA trains on the CPU in silence."""
  cards = glob.glob(GPU_FILES)
  if cards and os.environ.get('CUDA_VISIBLE_DEVICES') != '':
    _log.warning(
      f'{cards[0]} is here, but TensorFlow sees no GPU, so this task computes '
      "on the CPU: pip install 'distmnist[gpu]', or give --num_gpus=0"
    )
