"""Training within a Spark program: ps and workers are tasks of Spark.

  from distmnist import spark

  report = spark.run(
    sc, ['--flagfile=configs/cnn_async.flags', '--logdir=/shared/run'],
    num_ps=1, num_workers=2)

One barrier stage with a partition a task of the cluster: Spark starts all of
them at once or none, and ends all when one is lost. They report to the driver,
here (spark/agent_server.py): their logs come as they grow, and they are told
when to start and to stop. The executors' side is spark/agent.py.

After a failure the job is submitted again (spark/supervisor.py); the chief
restores the latest checkpoint of --logdir, a folder that all executors share.
"""

import functools
import os
import secrets
import sys

from distmnist.common.names import CHIEF, TRAIN
from distmnist.launching import jobs, stop_grace, task_logs
from distmnist.launching import train_flags as train_flags_lib
from distmnist.spark import (
  barrier_job,
  executors,
  image_feed,
  partition,
  supervisor,
)
from distmnist.spark.desk import Desk
from distmnist.spark.image_feed import InputMode


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
    cli.RunError: the training failed; a supervisor.TaskError if a task did.
  """
  say = say or _say
  given = train_flags_lib.expand(train_flags)
  jobs.check_train_flags(given)
  if module == TRAIN:
    train_flags_lib.check(given)
  executors.check_paths(given)
  image_feed.check(input_mode, data, test_data, given)
  feed = None
  if input_mode is InputMode.RDD:
    feed = image_feed.ImageFeed(
      data, test_data, tuple(image_shape), num_classes, feed_limit_mb
    )
  executors.check_conf(sc.getConf())
  num_tasks = num_ps + num_workers
  if not feed:
    given += executors.find_data_dir(given, os.environ, say)
  say(executors.describe_python(sc))
  wait_for_slots = functools.partial(
    executors.wait_for_slots, sc, num_tasks, wait_secs, say
  )
  wait_for_slots()
  logs_dir = task_logs.make_logs_dir(logs_dir, jobs.flag_value(given, 'logdir'))
  executors.ship_package(sc)
  if feed:
    rdd = feed.make_rdd(sc, num_ps, num_workers)
    given += feed.make_flags(given)
    start = 'bring the images and start', feed_timeout_secs
  else:
    rdd = sc.parallelize(range(num_tasks), num_tasks)
    start = 'start', wait_secs
  say(
    f'{num_ps} ps and {num_workers} worker{"s" if num_workers > 1 else ""} on'
    f' {sc.master}, logs in {logs_dir}'
  )
  spec = {
    'num_ps': num_ps,
    'num_workers': num_workers,
    'train_flags': given,
    'module': module,
    'feed': feed and feed.make_spec(),
  }
  with _open_desk(sc, spec, logs_dir, show or _show_chief, say) as desk:
    submit = functools.partial(_make_job, sc, rdd, spec, desk)
    return supervisor.Supervisor(
      desk, submit, wait_for_slots, start, max_restarts, say
    ).run()


def _open_desk(sc, spec, logs_dir, show, say):
  """Returns the Desk for the tasks of `spec`, which learns how to reach it."""
  conf = sc.getConf()
  host = conf.get('spark.driver.host')
  executors.warn_of_network(conf, say)
  names = [f'ps {i}' for i in range(spec['num_ps'])]
  names += [f'worker {i}' for i in range(spec['num_workers'])]
  spec['secret'] = secrets.token_hex(32)
  desk = Desk(
    conf.get('spark.driver.bindAddress') or host,
    spec['secret'],
    names,
    logs_dir,
    show,
    stop_grace.parse(spec['train_flags']),
  )
  spec['driver'] = [host, desk.port]
  return desk


def _make_job(sc, rdd, spec, desk, number):
  """Returns the barrier_job.Job of one attempt."""
  task = functools.partial(
    partition.run_in_barrier, {**spec, 'attempt': number}
  )
  return barrier_job.Job(sc, rdd.barrier().mapPartitions(task), desk.wake)


def _say(text):
  print(f'distmnist: {text}', file=sys.stderr, flush=True)


def _show_chief(name, line):
  if name == CHIEF:
    print(line, flush=True)
