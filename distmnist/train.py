"""One task of a training cluster, or the whole training in one process.

Every host runs the same command with its own --job_name and --task_index:

  python -m distmnist.train --job_name=ps --task_index=0 \\
      --ps_hosts=a:2222 --worker_hosts=b:2222,c:2222 --logdir=/shared/run

Without hosts the cluster is read from TF_CONFIG, or from Slurm's variables and
DISTMNIST_NUM_PS; --print_cluster shows it. Without these as well, one process
trains alone, on the same path; `python -m distmnist.launch` starts a cluster.
"""

from __future__ import annotations

import distmnist.runtime  # noqa: F401  TensorFlow, quiet and in graph mode.

# isort: split
import contextlib
import functools
import logging
import os
import socket
import time
from collections.abc import Mapping

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import cluster as cluster_lib
from distmnist.cluster import stop_request
from distmnist.common import cli, layout
from distmnist.common import console as console_lib
from distmnist.common.names import LAUNCH_ID, TRAIN
from distmnist.lifecycle import late_start, ps, shutdown
from distmnist.lifecycle import session as session_lib
from distmnist.lifecycle import task as task_lib
from distmnist.training import (
  chief,
  evaluator,
  final_report,
  flag_checks,
  run_folder,
  step,
  worker_graph,
  worker_loop,
)
from distmnist.training.problems import problem as problem_lib
from distmnist.training.problems import (
  problem_checks,
  problem_data,
  problem_errors,
  problem_module,
)
from distmnist.training.telemetry import summaries, task_metrics

_log = logging.getLogger(TRAIN)  # It runs as __main__.

# What --help explains.
_FIRST_FLAGS = (
  *('problem', 'optimizer', 'batch_size', 'epochs', 'learning_rate'),
  *('strategy', 'logdir'),
  *('job_name', 'task_index', 'ps_hosts', 'worker_hosts'),
)

_DOWNLOAD_ONLY = flags.DEFINE_bool(
  'download_only', False, 'Download the data set if it is missing, and exit.'
)
_PRINT_CLUSTER = flags.DEFINE_bool(
  'print_cluster',
  False,
  'Check the flags, also those of a worker against each other and the cluster;'
  ' print the cluster and the role of this task in it, and exit.',
)


def main() -> int:
  """Runs this task and returns its exit code."""
  start = time.monotonic()
  if _DOWNLOAD_ONLY.value:
    problem_lib.from_flags().prepare()
    return 0
  console = console_lib.Console(task_metrics.secs_from_flags())
  console_lib.print_logs(console.say)
  task = task_lib.from_flags()
  if _PRINT_CLUSTER.value:
    if task.cluster.job_name == 'worker':
      flag_checks.check_without_data(task.cluster)
    _log.info(cluster_lib.format_tasks(task.cluster))
    return 0
  task.log_role()
  if task.cluster.job_name == 'evaluator':
    with problem_errors.explained(), task_metrics.kept(task):
      return evaluator.run_task(task)
  if task.cluster.job_name == 'ps':
    task.serve()
    with task_metrics.kept(task):
      return ps.run_ps(task)
  with problem_errors.explained(), contextlib.ExitStack() as at_end:
    return run_worker(task, console, start, at_end)


def run_worker(
  task: task_lib.Task,
  console: console_lib.Console,
  start: float,
  at_end: contextlib.ExitStack,
) -> int:
  """Trains as a worker, worker 0 as the chief; returns the exit code.

  Args:
    task: not yet serving.
    console: takes the lines of progress.
    start: time.monotonic() at the start of this program.
    at_end: takes what must be released at the end.
  """
  cluster, stop, stalls = task.cluster, task.stop, task.stalls
  # Nobody can tell how long a user's reader, a download or a large graph takes.
  stalls.busy('the loading of the model and the data', may_fail=False)
  # Check for user mistakes before the server starts: once it answers, the
  # other tasks count on this one.
  seed = step.seed_from_flags()
  problem = problem_lib.from_flags(seed)
  with task.loading():
    splits = problem_data.load_training_splits(problem)
    judges = {}
    if cluster.is_chief:
      judges = problem_data.load_judges(problem, *splits)
  train_split, _ = splits
  if cluster.is_chief:
    final_report.check_flags()
  choice = flag_checks.check(cluster, *(s.num_examples for s in splits))
  stalls.busy('the check of the model', may_fail=False)
  problem_checks.check_graph(
    problem, train_split, choice.plan.slice_size, choice.strategy
  )
  plan = choice.plan
  problem_checks.check_rate(
    problem,
    plan.dealing.known_last_step,
    plan.images_per_update / plan.images_per_epoch,
  )
  stalls.busy('the reading of the log directory')
  is_last = functools.partial(chief.is_last, choice)
  folder = run_folder.RunFolder(task, is_last, splits)
  try:
    folder.claim(problem, at_end, choice.plan)
    task.serve()
    stalls.busy('the reading of the log directory')
    folder.sign()
    at_end.enter_context(task_metrics.kept(task))
    task.begin_history(folder.path)
    task.history.write(
      'start',
      host=socket.gethostname(),
      pid=os.getpid(),
      launch=os.environ.get(LAUNCH_ID),
    )
    if late_start.has_ended(cluster, folder.restart, stop.wait):
      return end_late(task, choice, judges, folder, start)
  except stop_request.StoppedError:
    return stop.end()
  _log.info(worker_graph.describe_task(task, choice))

  stalls.busy('the building of the graph', may_fail=False)
  with (
    late_start.noticed(cluster, folder.restart, stop.wait) as end,
    shutdown.reporting_end_to_ps(cluster, task.server, stop),
    tf.Graph().as_default(),
  ):
    graph = worker_graph.build(task, choice, train_split, seed)
    if folder.path and cluster.is_chief:
      # The graph of one step, before it is copied.
      summaries.write_graph(layout.metrics_dir(folder.path, 'graph'))
    loop = worker_loop.WorkerLoop(task, choice, graph, folder, console)
    loop.build(seed, judges)
    first = session_lib.make_session(task, loop.scaffold, loop.hooks)
    with (  # The session takes OutOfRangeError for the end of its work.
      cli.amid_run(),
      first as session,
      problem_errors.explained(),
    ):
      while not session.should_stop():
        session.run([])  # In order: docs/life.md.
    task.history.write('end')
    loop.tell_chief()
  if end.is_late:
    return end_late(task, choice, judges, folder, start)
  task.watchdog.close()
  stalls.busy('the report')
  with cli.amid_run():
    loop.report(start)
  stalls.busy('the end')
  return stop.end()


def end_late(
  task: task_lib.Task,
  choice: flag_checks.Choice,
  judges: Mapping[str, problem_data.Examples],
  folder: run_folder.RunFolder,
  start: float,
) -> int:
  """Ends a worker that came after the end of its run; returns the exit code.

  Args:
    task: already serving.
    choice: of the rule and the plan.
    judges: see problem_data.load_judges.
    folder: claimed.
    start: time.monotonic() at the start of this program.
  """
  stop = task.stop
  stop.note_unsaved(None)
  if not (unreported := folder.find_unreported()):
    _log.info(f'{folder.restart.describe_end()}: nothing is left to do')
    return stop.end()
  with (
    cli.amid_run(),
    # Some ps may have come meanwhile.
    shutdown.reporting_end_to_ps(task.cluster, task.server, stop),
  ):
    task.stalls.busy('the report')
    chief.report_alone(task, choice, judges, folder, unreported, start)
  task.stalls.busy('the end')
  return stop.end()


def run() -> None:
  # A normal interpreter exit takes a second when TensorFlow has threads.
  cli.run(
    main,
    leave=os._exit,
    first_flags=_FIRST_FLAGS,
    prepare=problem_module.import_named,
  )


if __name__ == '__main__':
  run()
