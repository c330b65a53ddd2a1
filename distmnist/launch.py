"""Runs a cluster: python -m distmnist.launch [flags] -- <flags of train>.

  python -m distmnist.launch --num_ps=1 --num_workers=2 -- --model=cnn

Everything after -- goes to every task untouched. The exit code is 0 if all
tasks ended with 0, else that of the first task that failed for good.
"""

from __future__ import annotations

import dataclasses
import os
import secrets

from distmnist.cluster import task_environment
from distmnist.common import (
  child_program,
  cli,
  command_line,
  console,
  refusals,
  registry,
)
from distmnist.common.names import BY_COMMAND, LAUNCH_ID, LAUNCHERS, TRAIN
from distmnist.launching import cluster_flags, jobs, repeating, run_record
from distmnist.launching import train_flags as train_flags_lib
from distmnist.launching.screen import log_view, screens
from distmnist.launching.supervisor import sidecars

# What --help explains.
_FIRST_FLAGS = (
  *('num_ps', 'num_workers', 'launcher', 'like', 'logs_dir', 'show_logs'),
  *('max_restarts', 'restart_window_secs', 'min_workers', 'module', 'dry_run'),
)


def main(train_flags: list[str]) -> int:
  """Runs or prints the tasks; `train_flags` are the words after --."""
  child_program.end_with_starter()
  task_environment.forget(os.environ)
  os.environ[LAUNCH_ID] = secrets.token_hex(8)
  if cli.is_command():
    os.environ[BY_COMMAND] = '1'  # For what the tasks say.
  console.print_logs(log_view.print_line)
  # Flags of a --flagfile count as given.
  given = train_flags_lib.expand(train_flags)
  jobs.check_train_flags(given, repeating.explain_flagfile(train_flags))
  what = repeating.from_flags(given)
  if what.train_flags != given:
    train_flags = given = what.train_flags
  if cluster_flags.MODULE.value == TRAIN:
    train_flags_lib.check(given)
  launcher = cluster_flags.LAUNCHER.value
  num_ps = cluster_flags.NUM_PS.value
  num_workers = cluster_flags.NUM_WORKERS.value
  cluster_flags.check_launcher_flags(launcher)
  refusals.refuse(
    (*cluster_flags.REFUSALS, *screens.REFUSALS, *sidecars.REFUSALS),
    launcher=launcher,
    num_ps=num_ps,
    num_workers=num_workers,
    logdir=command_line.find_value(given, 'logdir'),
    no_wait=cluster_flags.find_no_wait(launcher),
  )
  if cluster_flags.MODULE.value == TRAIN and launcher != 'local':
    # The check takes seconds of TensorFlow here, but a mistake there costs a
    # place in the queue. On this machine the first task that is forked checks.
    train_flags_lib.check_combination(given, num_ps, num_workers)
  job = dataclasses.replace(
    cluster_flags.make_job(train_flags, given),
    launch_flags=tuple(what.launch_flags),
    num_cores=what.num_cores,
  )
  with run_record.opened(job, launcher, sidecars.from_flags()) as record:
    job = dataclasses.replace(job, record=record)
    record.code = registry.load(LAUNCHERS, launcher).launch(job)
    return record.code


def run() -> None:
  """The console entry point."""
  cli.run(
    main,
    passthrough=True,
    is_for_train=train_flags_lib.is_known,
    first_flags=_FIRST_FLAGS,
  )


if __name__ == '__main__':
  run()
