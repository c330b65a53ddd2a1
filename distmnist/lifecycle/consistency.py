"""Tasks of one run have the same flags, hosts, code and TensorFlow."""

from __future__ import annotations

import hashlib
import logging
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import tensorflow.compat.v1 as tf

from distmnist.common.names import CHIEF, PACKAGE_DIR
from distmnist.logdir import logdirs, run_flags

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.lifecycle import watchdog as watchdog_lib

_log = logging.getLogger(__name__)

# Flags that may differ between tasks; all others must agree.
_OWN_FLAGS = {
  'best',
  'allow_soft_placement',
  'continuous_timeout_secs',
  'data_dir',
  'download_only',
  'early_stopping_patience',
  'end_timeout_secs',
  'fed_dir',
  'help',
  'helpfull',
  'history',
  'inter_op_parallelism_threads',
  'intra_op_parallelism_threads',
  'job_name',
  'keep_checkpoints',
  'log_device_placement',
  'log_secs',
  'logdir',
  'num_gpus',
  'print_cluster',
  'report_file',
  'resume',
  'save_secs',
  'save_steps',
  'stall_fail_secs',
  'stall_warn_secs',
  'stop_grace_secs',
  'start_timeout_secs',
  'summary_steps',
  'task_index',
  'trace_steps',
  'validation_steps',
}
_HOSTS = 'ps_hosts', 'worker_hosts'
# User code that a task has imported: {'problem_code': its hash}.
_imported: dict[str, str] = {}
# Settings that are not flags.
_PROGRAM = {
  'problem_code': 'the file of --problem (its hash)',
  'code': 'code (a hash of its .py files)',
  'tensorflow': 'TensorFlow',
}


def settings_from_flags(cluster: cluster_lib.Cluster) -> dict[str, Any]:
  """Returns {name: value}, this task's settings that all must agree on.

  For a ps these are its hosts and its program: it needs no other flags.
  """
  settings = {
    flag.name: flag.value
    for flag in run_flags.ours()
    if flag.name not in _OWN_FLAGS and cluster.job_name == 'worker'
  }
  settings |= {name: ','.join(getattr(cluster, name)) for name in _HOSTS}
  return settings | _imported | {'code': _CODE, 'tensorflow': tf.__version__}


def note_problem(source: bytes) -> None:
  """Makes the source of a problem a setting that all must agree on."""
  _imported['problem_code'] = hashlib.sha256(source).hexdigest()[:12]


def hash_code(folder: pathlib.Path = PACKAGE_DIR) -> str:
  """Returns a hash of the .py files below `folder`, 12 hexadecimal digits."""
  digest = hashlib.sha256()
  for path in sorted(folder.rglob('*.py')):
    digest.update(f'{path.relative_to(folder)}\0'.encode())
    digest.update(path.read_bytes())
  return digest.hexdigest()[:12]


# Hashed at import, not when a task is started again: the fork server goes on
# with the code that it has loaded, even if the files are edited.
_CODE = hash_code()


def find_differences(
  mine: Mapping[str, Any], theirs: Mapping[str, Any], is_ps: bool
) -> list[str]:
  """Returns a text for each setting in which two tasks differ.

  Args:
    mine: {name: value}, the settings of this task.
    theirs: the settings of another task.
    is_ps: whether one of the two is a ps, which has fewer settings.
  """
  names = mine.keys() & theirs.keys() if is_ps else mine.keys() | theirs.keys()
  return [
    f'{_show(name, theirs)} there but {_show(name, mine)} here'
    for name in sorted(names)
    if theirs.get(name) != mine.get(name)
  ]


def _show(name: str, settings: Mapping[str, Any]) -> str:
  value = settings.get(name)
  if name in _PROGRAM:
    return f'{_PROGRAM[name]} {value}'
  return f'--{name}={"(not given)" if value is None else value}'


def check_logdir(watchdog: watchdog_lib.Watchdog, logdir: str) -> None:
  """Says so if this worker does not share the chief's folder.

  Only the chief writes and reads checkpoints, so nothing is lost if it does
  not; but graphs, reports and `evaluate` expect the chief's folder. A chief
  that is started again signs before it checks in: until then this worker knows
  the one before it.
  """
  life = watchdog.find_life(CHIEF)
  if life and not logdirs.was_signed(logdir, life):
    _log.info(
      f'--logdir={logdir} is not the folder that worker 0 has under this name: '
      'the checkpoints are there, the summaries of this worker here; give all '
      'workers a folder that they share'
    )
