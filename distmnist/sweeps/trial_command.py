"""The command line of a trial, with no secret in it.

The launcher of the trials checks it once, before the first of them starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging
from typing import TYPE_CHECKING

from absl import flags

from distmnist.common import cli, command_line, refusals, registry
from distmnist.common.names import LAUNCH, LAUNCHERS, TRAIN
from distmnist.common.refusals import Refusal
from distmnist.launching import cluster_flags, jobs, problem_file
from distmnist.launching.ssh import ssh_hosts
from distmnist.sweeps import runners, search_space
from distmnist.sweeps import spec as spec_lib

if TYPE_CHECKING:
  from distmnist.sweeps import trials as trials_lib

# Flags of launch that the sweep itself sets or handles.
_OURS = ('num_ps', 'num_workers', 'module', 'logs_dir', 'dry_run', 'gpus')
# Launchers that may have to wait until the tasks of a trial begin.
_QUEUES = 'slurm', 'command'


@dataclasses.dataclass(frozen=True)
class TrialCommand:
  """Makes the command of each trial.

  Attributes:
    spec: of the sweep.
    backend: where the trials run.
    launch_flags: those of `distmnist.launch`, which starts each trial; None if
      a trial is a process that needs no launcher.
  """

  spec: spec_lib.Spec
  backend: runners.Backend
  launch_flags: list[str] | None

  @property
  def is_launched(self) -> bool:
    return self.launch_flags is not None

  def find_logs_dir(self, trial: trials_lib.Trial) -> str:
    """Returns the folder whose logs tell when a trial leaves its queue.

    '' if it waits in none.
    """
    has_queue = self.is_launched and cluster_flags.LAUNCHER.value in _QUEUES
    return _logs_dir(trial) if has_queue else ''

  @functools.cached_property
  def env(self) -> dict[str, str]:
    """What each trial needs beyond its machine's environment."""
    return dict(problem_file.make_env(self.spec.problem))

  @property
  def secrets(self) -> list[str]:
    """The flags of launch that hold a secret."""
    return [*filter(cluster_flags.is_secret, self.launch_flags or [])]

  def make(
    self,
    trial: trials_lib.Trial,
    rung: int,
    secrets_file: str | None = None,
    slot: int = 0,
  ) -> list[str]:
    """Returns the command of a trial.

    Args:
      trial: the one to run.
      rung: at the end of which the trial is to stop.
      secrets_file: the flagfile that holds the secrets, or None to hide them,
        as in a dry run.
      slot: 0 <= slot < backend.num_parallel: trials in different slots may run
        at the same time.
    """
    spec, num_cores = self.spec, self.backend.num_cores
    command = ['python', '-m', spec.module]
    if self.is_launched:
      command = [
        *('python', '-m', LAUNCH),
        *self._share_launch_flags(secrets_file, slot),
        *(f'--num_ps={spec.num_ps}', f'--num_workers={spec.num_workers}'),
        *(f'--module={spec.module}', f'--logs_dir={_logs_dir(trial)}', '--'),
      ]
    if num_cores is not None:
      threads = max(1, num_cores // spec.num_workers)
      command += jobs.make_thread_flags(threads)
    return [*command, *self.make_train_flags(trial, rung), '--resume=auto']

  def make_train_flags(self, trial: trials_lib.Trial, rung: int) -> list[str]:
    """Returns the flags that decide whether train can work."""
    spec = self.spec
    given = [*spec.flags, *search_space.to_flags(trial.flags)]
    return [
      *(self.backend.find_data_dir(given) if spec.module == TRAIN else []),
      *given,
      *filter(None, [spec.rungs[rung][1]]),
      f'--logdir={trial.logdir}',
    ]

  def _share_launch_flags(
    self, secrets_file: str | None, slot: int
  ) -> list[str]:
    # An evaluator takes a place on a host, too.
    num_ports = slot * (self.spec.num_ps + self.spec.num_workers + 1)
    given = self.launch_flags or []
    words = [_move_ports(word, num_ports) for word in given]
    # A command line can be read by all users.
    if not (secrets_file and self.secrets):
      return [cluster_flags.hide_secret(word) for word in words]
    public = [word for word in words if not cluster_flags.is_secret(word)]
    return [f'--flagfile={secrets_file}', *public]


def _logs_dir(trial: trials_lib.Trial) -> str:
  return f'{trial.folder}/logs'


def launch_from_flags(spec: spec_lib.Spec) -> list[str] | None:
  """Returns those flags of launch and its launchers that were given.

  Returns:
    None if a trial is one process, which needs no launcher.

  Raises:
    cli.UsageError: with these flags no trial could be launched, or watched.
  """
  launcher = cluster_flags.LAUNCHER.value
  _check_launch_flags(spec, launcher)
  if not (
    spec.is_cluster
    or cluster_flags.MAX_RESTARTS.value
    or cluster_flags.EVALUATOR.value
    or launcher != 'local'
  ):
    return None
  names = {module: name for name, module in registry.find(LAUNCHERS).items()}
  words: list[str] = []
  for module in (cluster_flags.__name__, *names):
    # Without --launcher=spark its flags belong to --runner=spark.
    if names.get(module) == 'spark' and launcher != 'spark':
      continue
    for flag in flags.FLAGS.get_key_flags_for_module(module):
      if not flag.present or flag.name in _OURS:
        continue
      words += cluster_flags.make_words(flag)
  return words


FLAGS = flags.FLAGS

# What is not for trials, though launch would take it. Facts: launcher, str;
# no_wait, str or None, the flag for which it only submits.
_REFUSALS = (
  Refusal(
    lambda f: f.no_wait or '--launcher=kubernetes',
    lambda f: f.no_wait or f.launcher == 'kubernetes',
    ' is not for a sweep, which waits for each trial and reads its report '
    'here: leave it out',
  ),
  Refusal(
    'live_table',
    lambda f: FLAGS.live_table == 'on',
    ' is not for a sweep, which shows how its trials end: leave it out, and '
    'see python -m distmnist.status for one trial',
  ),
)


def _check_launch_flags(spec: spec_lib.Spec, launcher: str) -> None:
  """Checks, once for all trials, what launch would refuse for each."""
  facts = {
    'launcher': launcher,
    'no_wait': cluster_flags.find_no_wait(launcher),
    'num_ps': spec.num_ps,
    'num_workers': spec.num_workers,
    'logdir': 'of the trial',
  }
  refusals.refuse(_REFUSALS, **facts)
  # The backend has refused those of Spark where nothing is run there.
  cluster_flags.check_launcher_flags(launcher, also='spark')
  refusals.refuse(cluster_flags.REFUSALS, **facts)


def _move_ports(word: str, num_ports: int) -> str:
  """Returns a flag of launch with the ports of --hosts further up."""
  name, _, value = word.partition('=')
  if name != '--hosts' or not num_ports:
    return word
  return f'{name}={ssh_hosts.move_ports(value, num_ports)}'


def check_launcher(command: TrialCommand, sweep_dir: str | None) -> None:
  """Checks that trials could be launched, if they are; starts nothing.

  Args:
    command: of the trials.
    sweep_dir: the value of --sweep_dir, or None.

  Raises:
    cli.UsageError: none could, or what they write would be lost, or this
      machine lacks what a launch needs.
  """
  if not command.is_launched:
    return
  spec, launcher = command.spec, cluster_flags.LAUNCHER.value
  if launcher != 'local' and sweep_dir is None:
    raise cli.UsageError(
      '--sweep_dir is missing: give a folder that this machine and the hosts of'
      f' --launcher={launcher} share'
    )
  for word in command.secrets:
    if not command_line.fits_in_file(word):
      raise cli.UsageError(
        f'{cluster_flags.hide_secret(word)}: a trial gets a secret in a flag '
        'file, where a # after a space begins a comment, and lines and spaces '
        "at the end are lost: set this one in Spark's own configuration"
      )
  job = dataclasses.replace(
    cluster_flags.make_job(spec.flags, spec.flags),
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
