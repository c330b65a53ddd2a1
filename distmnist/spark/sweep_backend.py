"""Spark's executors as the place where trials run, each a task in a slot.

The driver is this process: it starts Spark, and a TrialHost on it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import IO, TYPE_CHECKING

from absl import flags

from distmnist.common import cli, console, refusals, signals, stop_grace
from distmnist.common.refusals import Refusal
from distmnist.launching.supervisor import task_group
from distmnist.spark import context, executors, trial_host
from distmnist.sweeps import runners, search_space

if TYPE_CHECKING:
  import pyspark

  from distmnist.sweeps import spec as spec_lib

FLAGS = flags.FLAGS

# The sweep restarts a lost trial; Spark must not.
_CONF = (
  'spark.app.name=distmnist.sweep',
  'spark.task.maxFailures=1',
  'spark.speculation=false',
)

# From the order to stop to the end of an agent, beyond its trial's grace.
_STOP_MARGIN_SECS = 6.5

# They need no facts.
_REFUSALS = (
  Refusal(
    lambda f: '--runner=spark',
    lambda f: FLAGS.launcher != 'local',
    lambda f: (
      f' and --launcher={FLAGS.launcher} exclude each other: a trial has one '
      'executor of Spark, and no other machine'
    ),
  ),
  Refusal(
    'gpus',
    lambda f: FLAGS['gpus'].present,
    ' is for trials on this machine, and not for --runner=spark: leave it out',
  ),
)
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class SparkBackend(runners.Backend):
  """Trials on executors of Spark, which share a folder with this machine.

  Attributes:
    conf: the settings of Spark.
    wait_secs: how long to wait for executors.
    check: called with the master; raises cli.RunError if Spark cannot start.
  """

  conf: dict[str, str]
  wait_secs: float
  check: Callable[[str], None]

  @contextlib.contextmanager
  def open_host(
    self, folder: str, lock: IO[str], stop_grace_secs: float
  ) -> Iterator[trial_host.TrialHost]:
    """See runners.Backend; `lock` is open for reading and writing, too."""
    stop_secs = stop_grace.for_worker(stop_grace_secs) + _STOP_MARGIN_SECS
    with contextlib.ExitStack() as stack:
      with signals.raising():
        sc = stack.enter_context(context.opened(self.conf, folder))
        _log.info(executors.describe_python(sc))
        executors.warn_of_network(sc.getConf())
        executors.ship_package(sc)
        _wait_for_slot(sc, self.wait_secs)
        host = trial_host.TrialHost(sc, lock, self.wait_secs, stop_secs)
      yield stack.enter_context(host)

  def check_ready(self) -> None:
    self.check(self.conf['spark.master'])

  def find_env(self, slot: int) -> dict[str, str]:
    return {}  # Spark gives each slot its GPUs.

  def find_data_dir(self, train_flags: Sequence[str]) -> list[str]:
    return executors.find_data_dir(train_flags, os.environ)


def from_flags(
  num_parallel: int | None,
  spec: spec_lib.Spec,
  sweep_dir: str | None,
  launcher: ModuleType,
) -> SparkBackend:
  """Returns a SparkBackend.

  Args:
    num_parallel: how many trials run at the same time; None for as many as
      Spark has slots.
    sweep_dir: as it was given, or None.
    launcher: the module launchers/spark.py, which this package must not import.

  Raises:
    cli.UsageError: the sweep cannot work.
  """
  refusals.refuse(_REFUSALS)
  master = launcher.get_master()
  _check_paths(master, spec, sweep_dir)
  num_slots = _choose_num_parallel(num_parallel, master, spec.num_trials)
  settings = [*_CONF, *FLAGS.spark_conf]
  conf = launcher.make_conf(master, num_slots, settings)
  return SparkBackend(
    num_slots,
    _count_cores(conf),
    conf,
    FLAGS.spark_wait_secs,
    launcher.check_ready,
  )


def _check_paths(
  master: str, spec: spec_lib.Spec, sweep_dir: str | None
) -> None:
  """Checks that each path is the same place on all executors.

  Raises:
    cli.UsageError: one cannot be.
  """
  if sweep_dir is None and not master.startswith('local'):
    raise cli.UsageError(
      '--sweep_dir is missing: give a folder that the driver and all executors '
      'of Spark share'
    )
  if sweep_dir is not None and not sweep_dir.startswith(('/', '~')):
    raise cli.UsageError(
      f'--sweep_dir={sweep_dir}: expected the absolute path of a folder that '
      'the driver and all executors of Spark share'
    )
  executors.check_paths(spec.flags)
  for combination in spec.find_examples():
    executors.check_paths(search_space.to_flags(combination))


def _choose_num_parallel(
  wanted: int | None, master: str, num_trials: int
) -> int:
  """Returns how many of the trials run at the same time.

  Raises:
    cli.UsageError: it is not known, or is more than Spark can ever run.
  """
  if wanted is None:
    wanted = executors.count_fixed_slots(master)
  if wanted is None:
    raise cli.UsageError(
      '--parallel is missing: give the number of trials that Spark is to run '
      'at the same time, each in a slot of an executor'
    )
  num_parallel = min(wanted, num_trials)
  executors.check_fixed_slots(
    master,
    num_parallel,
    who='{} trials run at the same time',
    advice='give a lower --parallel',
  )
  return num_parallel


def _count_cores(conf: dict[str, str]) -> int:
  """Returns the cores of a slot.

  Raises:
    cli.UsageError: Spark's setting for it is not a number >= 1.
  """
  text = conf.get('spark.task.cpus', '1')
  if not re.fullmatch('[1-9][0-9]*', text):
    raise cli.UsageError(
      f'--spark_conf=spark.task.cpus={text}: expected a number of cores >= 1'
    )
  return int(text)


def _wait_for_slot(sc: pyspark.SparkContext, wait_secs: float) -> None:
  """Returns once an executor can take a trial.

  Raises:
    cli.RunError: none can within wait_secs.
  """
  if sc.getConf().get('spark.dynamicAllocation.enabled') == 'true':
    return  # Executors come once there is work.
  wait = console.Wait(wait_secs)
  while not executors.count_slots(sc):
    if wait.is_over('for an executor of Spark'):
      raise cli.RunError(
        f'after {wait_secs:g} s Spark has no executor with a slot for a'
        ' trial: are its workers there, and have they spark.task.cpus cores'
        ' and spark.executor.memory to give?'
      )
    time.sleep(task_group.TICK_SECS)
