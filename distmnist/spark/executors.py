"""Spark's executors: how many tasks they can run, and what those need."""

from __future__ import annotations

import logging
import os
import re
import time
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distmnist.cluster import addresses
from distmnist.common import cli, command_line, console
from distmnist.common.names import PACKAGE_DIR
from distmnist.spark import spark_job
from distmnist.storage import urls

if TYPE_CHECKING:
  import pyspark

_log = logging.getLogger(__name__)

_PATH_FLAGS = ('logdir', 'data_dir', 'resume')
_DECIDES_DATA = 'data_dir', 'problem'
_NO_PATHS = ('auto', 'never')
_SHIPPED = 'distmnist_of_driver.zip'


def check_paths(train_flags: Sequence[str]) -> None:
  """Checks --logdir, --data_dir and --resume; see `check_path`."""
  for name in _PATH_FLAGS:
    path = command_line.find_value(train_flags, name)
    if path and not (name == 'resume' and path in _NO_PATHS):
      check_path(name, path)


def check_path(name: str, path: str) -> None:
  """Refuses a path that would mean a different place on each executor.

  Raises:
    cli.UsageError: it is relative.
  """
  if not path.startswith(('/', '~')) and not urls.is_remote(path):
    raise cli.UsageError(
      f'--{name}={path} is relative, and would be another place on each'
      ' executor: give an absolute path that all of them share'
    )


def check_conf(conf: pyspark.SparkConf) -> None:
  if conf.get('spark.dynamicAllocation.enabled', 'false') == 'true':
    raise cli.UsageError(
      'spark.dynamicAllocation.enabled=true, but Spark has no barrier stages'
      ' with it: set it to false, and spark.executor.instances to a number'
    )


def describe_python(sc: pyspark.SparkContext) -> str:
  """Returns a line that says which Python a context's executors run."""
  return (
    f'the executors run {sc.pythonExec}, which has to have TensorFlow there'
    ' (PYSPARK_PYTHON names another)'
  )


def find_data_dir(
  train_flags: Sequence[str], environ: Mapping[str, str]
) -> list[str]:
  """Returns --data_dir for the executors, unless it is given.

  On a real cluster, executors do not have our environment. It is for images;
  a --problem has data of its own.

  Args:
    environ: ours.

  Raises:
    cli.UsageError: DISTMNIST_DATA_DIR is a relative path.
  """
  path = environ.get('DISTMNIST_DATA_DIR')
  given = [command_line.find_value(train_flags, n) for n in _DECIDES_DATA]
  if not path or any(value is not None for value in given):
    return []
  check_path('data_dir', path)
  return [f'--data_dir={path}']


def warn_of_network(conf: pyspark.SparkConf) -> None:
  """Logs who can reach a Spark cluster, unless it is this machine alone."""
  if conf.get('spark.master', '').startswith('local'):
    return
  _log.info(addresses.describe_exposure('the tasks on the executors'))
  if conf.get('spark.authenticate', 'false') != 'true':
    _log.info(
      'spark.authenticate is off: Spark sends the secret of this run in the'
      ' clear, and runs jobs for anyone who reaches it'
    )


def count_fixed_slots(master: str) -> int | None:
  """Returns the number of slots if `master` fixes it, else None."""
  if match := re.fullmatch(r'local(?:\[(\d+|\*)(?:, *\d+)?\])?', master):
    return os.cpu_count() if match[1] == '*' else int(match[1] or 1)
  if match := re.fullmatch(
    r'local-cluster\[ *(\d+) *, *(\d+) *, *\d+ *\]', master
  ):
    return int(match[1]) * int(match[2])
  return None


def check_fixed_slots(
  master: str,
  num_tasks: int,
  who: str = 'the cluster has {} tasks',
  advice: str = 'ask for fewer ps and workers',
) -> None:
  """Refuses more tasks than `master` can ever have slots for.

  Args:
    num_tasks: how many run at the same time.
    who: says what has the tasks; {} stands for their number.
    advice: what else would help.

  Raises:
    cli.UsageError: there are too few slots.
  """
  num_slots = count_fixed_slots(master)
  if num_slots is not None and num_slots < num_tasks:
    raise cli.UsageError(
      f'{master} has {num_slots} slot{"s" if num_slots != 1 else ""}, but'
      f' {who.format(num_tasks)}, and each takes one: give it more executors'
      f' or cores, or {advice}'
    )


def wait_for_slots(
  sc: pyspark.SparkContext, num_tasks: int, wait_secs: float
) -> None:
  """Returns once Spark has a slot for each task of the cluster.

  Spark itself would wait for 10 minutes, and check every 15 s.

  Raises:
    cli.UsageError: it can never have that many.
    cli.RunError: it does not have them within wait_secs.
  """
  check_fixed_slots(sc.master, num_tasks)
  wait = console.Wait(wait_secs)
  while (num_slots := count_slots(sc)) < num_tasks:
    need = f'{num_tasks} slots, of which Spark has {num_slots} so far'
    if wait.is_over(f'for {need}'):
      raise cli.RunError(
        f'after {wait_secs:g} s Spark has {num_slots} slots on'
        f' {_count_executors(sc)} executors, but the cluster has {num_tasks}'
        ' tasks, and each takes one: give it more executors or cores'
        ' (spark.executor.instances, spark.executor.cores,'
        ' spark.task.cpus), or ask for fewer ps and workers'
      )
    time.sleep(0.1)


def count_slots(sc: pyspark.SparkContext) -> int:
  """Returns how many tasks Spark can run at once.

  Raises:
    cli.RunError: the SparkContext is stopped, or does not answer.
  """
  try:
    scala = sc._jsc.sc()
    if not scala.isStopped():
      profile = scala.resourceProfileManager().defaultResourceProfile()
      return scala.maxNumConcurrentTasks(profile)
  except Exception as error:
    raise cli.RunError(
      f'Spark does not answer: {spark_job.explain(error)}'
    ) from error
  raise cli.RunError('Spark has stopped: its log says why')


def _count_executors(sc: pyspark.SparkContext) -> int:
  # The driver is among them.
  return max(0, sc._jsc.sc().getExecutorMemoryStatus().size() - 1)


def ship_package(sc: pyspark.SparkContext) -> None:
  """Has executors import this copy of distmnist, even if they have none."""
  # Executors that join later fetch it too: it lives as long as the context.
  path = os.path.join(sc._temp_dir, _SHIPPED)
  if any(os.path.basename(name) == _SHIPPED for name in sc.listFiles):
    return
  with zipfile.ZipFile(
    path, 'w', zipfile.ZIP_DEFLATED, strict_timestamps=False
  ) as archive:
    for file in PACKAGE_DIR.rglob('*.py'):
      archive.write(file, file.relative_to(PACKAGE_DIR.parent))
  sc.addPyFile(path)
