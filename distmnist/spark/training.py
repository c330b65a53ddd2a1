"""Training within a Spark program: ps and workers are tasks of Spark.

  from distmnist import spark

  report = spark.run(
    sc, ['--flagfile=configs/cnn_async.flags', '--logdir=/shared/run'],
    num_ps=1, num_workers=2)

One barrier stage with a partition a task of the cluster: Spark starts all of
them at once or none, and ends all when one is lost. They report to the driver,
here: their logs come as they grow, and they are told when to start and to stop.
The driver's side is spark/executor_host.py, that of the executors
spark/agent.py.

After a failure the job is submitted again; the chief restores the latest
checkpoint of --logdir, a folder that all executors share.
"""

import functools
import logging
import os
import secrets
import sys

from distmnist.common import cli, command_line, console
from distmnist.common.names import CHIEF, FIRST_PORT, TRAIN
from distmnist.launching import (
  endings,
  jobs,
  restart_limits,
  run_record,
  run_tasks,
  stop_grace,
  task_group,
  task_logs,
)
from distmnist.launching import train_flags as train_flags_lib
from distmnist.spark import (
  barrier_job,
  barrier_stage,
  executor_host,
  executors,
  image_feed,
  partition,
)
from distmnist.spark.image_feed import InputMode

_log = logging.getLogger(__name__)


class TaskError(cli.RunError):
  """A task has failed for good; `exit_code` is its own, 128 + n by signal n."""

  def __init__(self, message, exit_code):
    super().__init__(message)
    self.exit_code = exit_code


def run(
  sc,
  train_flags=(),
  num_ps=1,
  num_workers=2,
  input_mode=InputMode.FILES,
  data=None,
  test_data=None,
  image_shape=(28, 28, 1),
  num_classes=10,
  feed_timeout_secs=600.0,
  feed_limit_mb=4096.0,
  max_restarts=3,
  logs_dir=None,
  wait_secs=120.0,
  module=TRAIN,
  show=None,
  say=None,
):
  """Trains on the executors of a Spark program, and returns when it is done.

  Args:
    sc: pyspark.SparkContext.
    train_flags: list of str, the flags of distmnist.train for every task. A
      --flagfile is read here; other paths are the executors'.
    num_ps, num_workers: int, the shape of the cluster; each takes a slot.
    input_mode: InputMode. FILES: the workers read what --dataset and --data_dir
      say. RDD: Spark brings them `data`; see spark/rdd_input.py.
    data, test_data: with InputMode.RDD the images to train on, and those of the
      chief's last line: RDD of (image, label), or DataFrame with the columns
      `image` and `label`. An image is bytes, a uint8 array, or numbers from 0
      to 255.
    image_shape: (height, width, channels) of the images of `data`.
    num_classes: int, the labels of `data` are below it.
    feed_timeout_secs: float, until all images have to be with the workers.
    feed_limit_mb: float, the most that one worker takes.
    max_restarts: int, how often all tasks are started again after a failure.
    logs_dir: str, a folder of the driver for one log a task. Default: logs/ in
      --logdir, or a new folder among the temporary ones.
    wait_secs: float, how long to wait for executors and for tasks to start.
    module: dotted name, what a task runs.
    show: callable(name of a task, a line of its log); by default the lines of
      worker 0, the chief, are printed.
    say: callable, takes a line of ours; by default it goes to stderr.

  Returns:
    dict, what the chief writes to report.json; None if it has written none.

  Raises:
    cli.UsageError: the flags or the cluster cannot work.
    cli.RunError: the training failed; a TaskError if a task did.
  """
  say = say or _say
  console.print_logs(say)
  given = train_flags_lib.expand(train_flags)
  feed = image_feed.make(
    *(input_mode, data, test_data, given),
    *(image_shape, num_classes, feed_limit_mb),
  )
  _check(given, module)
  executors.check_conf(sc.getConf())
  num_tasks = num_ps + num_workers
  if not feed:
    found = executors.find_data_dir(given, os.environ)
    for flag in found:
      _log.info(f'{flag} for all tasks, by DISTMNIST_DATA_DIR')
    given += found
  _log.info(executors.describe_python(sc))
  wait_for_slots = functools.partial(
    executors.wait_for_slots, sc, num_tasks, wait_secs
  )
  wait_for_slots()
  logs_dir = task_logs.make_logs_dir(logs_dir, jobs.flag_value(given, 'logdir'))
  executors.ship_package(sc)
  rdd = sc.parallelize(range(num_tasks), num_tasks)
  start = 'start', wait_secs
  if feed:
    rdd = feed.make_rdd(sc, num_ps, num_workers)
    given += feed.make_flags(given)
    start = 'bring the images and start', feed_timeout_secs
  tasks = make_tasks(num_ps, num_workers, given, module)
  _log.info(f'{run_tasks.describe(tasks)} on {sc.master}, logs in {logs_dir}')
  executors.warn_of_network(sc.getConf())
  spec = {
    **{'num_ps': num_ps, 'num_workers': num_workers, 'module': module},
    **{'train_flags': given, 'feed': feed and feed.make_spec()},
    'secret': secrets.token_hex(32),
  }
  stage = barrier_stage.BarrierStage(
    functools.partial(_make_job, sc, rdd, spec), wait_for_slots, start
  )
  host = executor_host.ExecutorHost(
    tasks,
    stage,
    executors.find_bind_host(sc.getConf()),
    spec['secret'],
    show or _show_chief,
  )
  return _run(host, tasks, logs_dir, max_restarts, say)


def make_tasks(num_ps, num_workers, train_flags, module):
  """Returns the list of jobs.Task; Spark chooses other addresses for them."""
  places = [f'executor-{i}:{FIRST_PORT}' for i in range(num_ps + num_workers)]
  return jobs.make_tasks(
    places[:num_ps], places[num_ps:], train_flags, module=module
  )


def _check(given, module):
  """Refuses flags of train that cannot work on executors."""
  if named := command_line.find_value(given, 'problem'):
    raise cli.UsageError(
      f'--problem={named} is not for Spark so far: executors have no such '
      'file; leave it out'
    )
  jobs.check_train_flags(given)
  if module == TRAIN:
    train_flags_lib.check(given)
  executors.check_paths(given)


def _run(host, tasks, logs_dir, max_restarts, say):
  """Runs the tasks to their end; returns the chief's report.

  Raises:
    TaskError: a task has failed for good.
    cli.RunError: the training failed otherwise.
  """
  console.print_logs(lambda text: say(host.locate(text)))
  limits = restart_limits.Limits(max_restarts, restart_together=True)
  group = task_group.TaskGroup(
    host,
    logs_dir,
    limits,
    stop_grace_secs=stop_grace.parse(tasks[0].argv),
  )
  workers = [task for task in tasks if task.job_name == 'worker']
  run_record.begin(tasks, logs_dir)
  with group:
    try:
      for task in tasks:
        group.start(task)
      left = group.wait(workers) or group.wait(tasks, run_tasks.LEAVE_SECS)
    finally:
      # Nothing stays behind, after Ctrl-C either.
      group.stop()
  host.check_end(has_failed=bool(group.failure or left))
  if group.failure:
    text, code = endings.show_failure(
      group, lambda failure, _: failure.cause, logs_dir
    )
    raise TaskError(host.locate(text), code)
  for task in left:
    text = endings.describe_late(
      task, run_tasks.LEAVE_SECS, 'the last worker', logs_dir
    )
    # A ps leaves once every worker has told it to, and a lost one has not.
    if group.records.are_done(workers):
      raise TaskError(host.locate(text), cli.FAILED)
    _log.info(text)
  return host.report


def _make_job(sc, rdd, spec, attempt, port, on_end):
  """Returns the barrier_job.Job of one attempt, not started."""
  driver = [sc.getConf().get('spark.driver.host'), port]
  task = functools.partial(
    partition.run_in_barrier, {**spec, 'attempt': attempt, 'driver': driver}
  )
  return barrier_job.Job(sc, rdd.barrier().mapPartitions(task), on_end)


def _say(text):
  print(f'distmnist: {text}', file=sys.stderr, flush=True)


def _show_chief(name, line):
  if name == CHIEF:
    print(line, flush=True)
