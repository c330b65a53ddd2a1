"""Has the launcher of the trials refuse once what it would refuse for each."""

import contextlib
import dataclasses
import io
import logging

from distmnist.common import cli, command_line, registry
from distmnist.common.names import LAUNCHERS
from distmnist.launching import cluster_flags
from distmnist.sweeps import trial_command


def check(command, sweep_dir):
  """Checks that trials could be launched, if they are; starts nothing.

  Args:
    command: trial_command.TrialCommand.
    sweep_dir: str, the value of --sweep_dir, or None.

  Raises:
    cli.UsageError: none could, or what they write would be lost, or this
      machine lacks what a launch needs.
  """
  if not command.is_launched:
    return
  study, launcher = command.study, cluster_flags.LAUNCHER.value
  if launcher != 'local' and sweep_dir is None:
    raise cli.UsageError(
      '--sweep_dir is missing: give a folder that this machine and the hosts of'
      f' --launcher={launcher} share'
    )
  for word in command.secrets:
    if not command_line.fits_in_file(word):
      raise cli.UsageError(
        f'{trial_command.hide_secret(word)}: a trial gets a secret in a flag '
        'file, where a # after a space begins a comment, and lines and spaces '
        "at the end are lost: set this one in Spark's own configuration"
      )
  job = dataclasses.replace(
    cluster_flags.make_job(study.flags, study.flags),
    logs_dir=sweep_dir,
    dry_run=True,
  )
  module = registry.load(LAUNCHERS, launcher)
  # A dry run refuses the same, but what it prints is not asked for.
  logging.disable(logging.INFO)
  try:
    with contextlib.redirect_stdout(io.StringIO()):
      module.launch(job)
    if not cluster_flags.DRY_RUN.value and hasattr(module, 'check_ready'):
      module.check_ready()
  except cli.RunError as error:  # No trial has failed: none could begin.
    raise cli.UsageError(str(error)) from error
  finally:
    logging.disable(logging.NOTSET)
