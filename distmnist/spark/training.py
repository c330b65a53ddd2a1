"""Training within a Spark program: ps and workers are Spark tasks.

  from distmnist import spark

  report = spark.run(
    sc, 'mine.py', ['--strategy=easgd', '--logdir=/shared/run'], num_ps=1)

Training is one barrier stage with a partition for each task of the cluster:
Spark starts all of them at once or none, and ends all when one is lost. They
report to the driver, here: it gets their logs as they grow, and tells them when
to start and to stop. The driver's side is spark/executor_host.py, the
executors' side spark/agent.py.

After a failure the job is submitted again; the chief restores the latest
checkpoint of --logdir, a folder that all executors share.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from distmnist.common import cli, command_line, console, signals, stop_grace
from distmnist.common.names import (
  CHIEF,
  FIRST_PORT,
  LAUNCH_ID,
  SPARK_MAIN,
  TRAIN,
)
from distmnist.launching import jobs, run_record, run_tasks
from distmnist.launching.screen import task_logs
from distmnist.launching.supervisor import endings, restart_policy, task_group
from distmnist.spark import executor_host, executors, partition, spark_job
from distmnist.spark import program as program_lib

if TYPE_CHECKING:
  import pyspark

  from distmnist.spark import feed as feed_lib

_log = logging.getLogger(__name__)


def _say(text: str) -> None:
  print(f'distmnist: {text}', file=sys.stderr, flush=True)


def _show_chief(name: str, line: str) -> None:
  if name == CHIEF:
    print(line, flush=True)


class TaskError(cli.RunError):
  """A task failed for good; `exit_code` is its own, 128 + n for signal n."""

  def __init__(self, message: str, exit_code: int) -> None:
    super().__init__(message)
    self.exit_code = exit_code


@dataclasses.dataclass(frozen=True)
class Options:
  """Options of a training on Spark, whatever it computes.

  Attributes:
    max_restarts: how often all tasks are restarted after a failure.
    logs_dir: a folder on the driver for one log per task. Default: logs/ in
      --logdir, or a new temporary folder.
    wait_secs: how long to wait for executors and for tasks to start.
    module: dotted name, what a task runs.
    show: called with a task's name and a line of its log; by default the lines
      of worker 0, the chief, are printed.
    say: called with a line from us; by default it goes to stderr.
    record: that of a launcher of ours, which is told of the tasks; by default
      this run has its own.
  """

  max_restarts: int = 3
  logs_dir: str | None = None
  wait_secs: float = 120.0
  module: str = TRAIN
  show: Callable[[str, str], None] = _show_chief
  say: Callable[[str], None] = _say
  record: run_record.RunRecord | None = None


def run(
  sc: pyspark.SparkContext,
  program: Any = None,
  args: Any = (),
  num_ps: int = 1,
  num_workers: int = 2,
  feed: feed_lib.Feed | None = None,
  options: Options | None = None,
) -> Any:
  """Trains on the executors of a Spark program, and returns when it is done.

  Args:
    program: what the workers learn: None for images, by --model and --dataset;
      a problem in the form of --problem, or an imported module; or a function
      main_fun(args, ctx), which each worker calls; ctx is a
      spark_function.Context.
    args: the flags of distmnist.train for every task. A --flagfile is read
      here; other paths are the executors'. For a function, whatever it takes.
    num_ps, num_workers: the shape of the cluster; each task takes a slot.
    feed: the examples from Spark to train on; by default the workers read what
      --dataset or the problem says.

  Returns:
    What the chief writes to report.json; None if it wrote none. For a
    function, what it returns in the chief: JSON types only.

  Raises:
    cli.UsageError: the flags or the cluster cannot work.
    cli.RunError: the training failed; a TaskError if a task did.
  """
  options = options or Options()
  console.print_logs(options.say)
  made = _make_program(program, args, feed, options.module)
  executors.check_conf(sc.getConf())
  _log.info(executors.describe_python(sc))
  executors.wait_for_slots(sc, num_ps + num_workers, options.wait_secs)
  with _open_record(made, num_ps, num_workers, options.record) as record:
    options = dataclasses.replace(options, record=record)
    report = _run_on(sc, made, num_ps, num_workers, feed, options)
  return (report or {}).get('result') if made.main else report


@contextlib.contextmanager
def _open_record(
  program: program_lib.Program,
  num_ps: int,
  num_workers: int,
  given: run_record.RunRecord | None,
) -> Iterator[run_record.RunRecord | None]:
  """Yields the run_record.RunRecord that is given, or one for this run.

  A request to stop, or the loss of --logdir, interrupts the program of Spark as
  Ctrl-C does, which no thread but the main one would see: for others there is
  no record, and the tasks heed the request themselves.
  """
  flags = tuple(program.flags)
  job = jobs.Job(num_ps, num_workers, flags, flags, program.module)
  is_main = threading.current_thread() is threading.main_thread()
  if given or not is_main:
    yield given
  else:
    with run_record.opened(job, 'spark') as record:
      yield record
      record.code = 0


def _run_on(
  sc: pyspark.SparkContext,
  program: program_lib.Program,
  num_ps: int,
  num_workers: int,
  feed: feed_lib.Feed | None,
  options: Options,
) -> dict[str, Any] | None:
  """Runs the tasks on executors that are there; returns the chief's report."""
  num_tasks = num_ps + num_workers
  wait_for_slots = functools.partial(
    executors.wait_for_slots, sc, num_tasks, options.wait_secs
  )
  logdir = command_line.find_value(program.flags, 'logdir')
  logs_dir = task_logs.make_logs_dir(options.logs_dir, logdir, options.record)
  executors.ship_package(sc)
  if feed:
    rdd, fed = feed.bring(sc, program, num_ps, num_workers)
    start = 'bring the examples and start', feed.timeout_secs
  else:
    rdd, fed = sc.parallelize(range(num_tasks), num_tasks), None
    start = 'start', options.wait_secs
  tasks = make_tasks(num_ps, num_workers, program.flags, program.module)
  _log.info(f'{run_tasks.describe(tasks)} on {sc.master}, logs in {logs_dir}')
  executors.warn_of_network(sc.getConf())
  spec = program.make_spec(num_ps, num_workers, fed)

  def make_job(
    attempt: int,
    contact: dict[str, Any],
    on_end: Callable[[], None],
  ) -> spark_job.Job:
    told = {**spec, **contact, 'attempt': attempt}
    task = functools.partial(partition.run_in_barrier, told)
    return spark_job.Job(sc, rdd.barrier().mapPartitions(task), on_end)

  host = executor_host.ExecutorHost(
    tasks,
    *(make_job, wait_for_slots, start),
    sc.getConf(),
    options.show,
  )
  launch = dict(spec['env'])[LAUNCH_ID]
  report = _run(host, tasks, logs_dir, options, launch)
  if not options.logs_dir:  # A launcher's own has more than these logs.
    task_logs.remove_if_temporary(logs_dir)
  return report


def _make_program(
  program: Any, args: Any, feed: feed_lib.Feed | None, module: str
) -> program_lib.Program:
  """Returns the program_lib.Program, with its flags checked; see `run`."""
  made = program_lib.make(program, args, module)
  if feed:
    feed.check(made.flags, needs_test_data=not made.main)
  elif not made.main:
    found = executors.find_data_dir(made.flags, os.environ)
    for flag in found:
      _log.info(f'{flag} for all tasks, by DISTMNIST_DATA_DIR')
    made.flags.extend(found)
  return made


def make_tasks(
  num_ps: int,
  num_workers: int,
  train_flags: Sequence[str],
  module: str,
) -> list[jobs.Task]:
  """Returns the tasks; Spark will choose other addresses for them."""
  places = [f'executor-{i}:{FIRST_PORT}' for i in range(num_ps + num_workers)]
  return jobs.make_tasks(
    places[:num_ps], places[num_ps:], train_flags, module=module
  )


def _run(
  host: executor_host.ExecutorHost,
  tasks: list[jobs.Task],
  logs_dir: str,
  options: Options,
  launch: str | None = None,
) -> dict[str, Any] | None:
  """Runs the tasks to their end; returns the chief's report.

  Raises:
    TaskError: a task has failed for good.
    cli.RunError: the training failed in another way.
  """
  console.print_logs(lambda text: options.say(host.locate(text)))
  limits = restart_policy.Limits(options.max_restarts, restart_together=True)
  group = task_group.TaskGroup(
    host,
    logs_dir,
    limits,
    stop_grace_secs=stop_grace.parse(tasks[0].argv),
    record=options.record,
  )
  if options.record:
    options.record.begin(tasks, logs_dir, launch)
  with group:
    try:
      left = _run_to_end(group, tasks)
    except signals.SignalError as error:
      error.exit_code = endings.report_saved(group, error.signum)
      raise
  host.check_end(has_failed=bool(group.failure or left))
  if group.failure:
    text, code = endings.show_failure(group.failure, group, logs_dir)
    raise TaskError(host.locate(text), code)
  for task in left:
    _log.info(
      endings.describe_late(
        task, run_tasks.LEAVE_SECS, 'the last worker', logs_dir
      )
    )
  return host.report


def _run_to_end(
  group: task_group.TaskGroup, tasks: list[jobs.Task]
) -> list[jobs.Task]:
  """Runs the tasks; returns those that had to be stopped at the end."""
  try:
    for task in tasks:
      group.start(task)
    left = group.wait([task for task in tasks if task.job_name == 'worker'])
    # With SPARK_MAIN, a ps serves until it is stopped.
    if not left and tasks[0].module != SPARK_MAIN:
      left = group.wait(tasks, run_tasks.LEAVE_SECS)
    return left
  finally:
    # Nothing stays behind, even after Ctrl-C.
    group.stop()
