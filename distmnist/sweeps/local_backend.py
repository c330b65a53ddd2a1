"""This machine as the place where trials run, sharing its cores and GPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING

from absl import flags

from distmnist.common import cli, files
from distmnist.common.names import LAUNCHERS
from distmnist.launching import gpus as gpus_lib
from distmnist.launching.forking import fork_client
from distmnist.sweeps import runners

if TYPE_CHECKING:
  from distmnist.launching import host as host_lib

_SPARK = f'{LAUNCHERS}.spark'


@dataclasses.dataclass(frozen=True)
class LocalBackend(runners.Backend):
  """Trials on this machine, or launched from it.

  Attributes:
    gpus: devices that the trials share; None to set nothing.
    forked_module: dotted name of the module that trials are forked with, or ''.
  """

  gpus: list[str] | None
  forked_module: str

  def check_ready(self) -> None:
    pass

  @contextlib.contextmanager
  def open_host(
    self, folder: str, lock: IO, stop_grace_secs: float
  ) -> Iterator[host_lib.Host]:
    log = os.path.join(folder, 'fork_server.log')
    # It covers only this run.
    open(log, 'wb', opener=files.no_follow).close()
    with fork_client.make_host(
      self.forked_module,
      folder,
      os.environ,
      stop_grace_secs=stop_grace_secs,
      what='the trials',
      kept_fds=[lock.fileno()],
    ) as host:
      yield host

  def find_env(self, slot: int) -> dict[str, str]:
    if self.gpus is None:
      return {}
    mine = share_gpus(self.gpus, self.num_parallel, slot)
    return {'CUDA_VISIBLE_DEVICES': ','.join(mine)}

  def find_data_dir(self, train_flags: Sequence[str]) -> list[str]:
    return []  # The trials inherit our environment.


def from_flags(
  num_parallel: int, module: str, is_launched: bool
) -> LocalBackend:
  """Returns what the flags say of this machine.

  Args:
    num_parallel: how many trials run at the same time.
    module: dotted name, what a trial runs.
    is_launched: whether each trial is a `distmnist.launch`.

  Raises:
    cli.UsageError: a flag is for another runner, or asks for too many GPUs.
  """
  values = flags.FLAGS
  if values.launcher != 'spark':
    for flag in values.flags_by_module_dict()[_SPARK]:
      if flag.present:
        raise cli.UsageError(
          f'--{flag.name} is for --runner=spark, and this is --runner=local: '
          'leave it out, or give --runner=spark'
        )
  num_cores = max(1, len(os.sched_getaffinity(0)) // num_parallel)
  return LocalBackend(
    num_parallel,
    # Other machines have cores of their own.
    num_cores if values.launcher == 'local' else None,
    gpus_lib.find_gpus(values.gpus, os.environ),
    module if values.fork_tasks and not is_launched else '',
  )


def share_gpus(gpus: list[str], num_parallel: int, slot: int) -> list[str]:
  """Returns the `gpus` that belong to a slot, 0 <= slot < num_parallel.

  With fewer GPUs than slots, some slots share one.
  """
  return gpus[slot::num_parallel] or gpus[slot % max(1, len(gpus)) :][:1]
