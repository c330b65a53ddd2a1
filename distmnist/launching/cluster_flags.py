"""The flags of launch: the shape of the cluster, and how it is run."""

from __future__ import annotations

from collections.abc import Iterable

from absl import flags

from distmnist.common import cli, command_line, registry
from distmnist.common.names import LAUNCHERS, MAX_TASKS, TRAIN
from distmnist.common.refusals import Refusal
from distmnist.launching import jobs

FLAGS = flags.FLAGS
_SPARK_CONF = 'spark_conf'

# Each launcher has flags of its own.
registry.load_all(LAUNCHERS)

LAUNCHER = flags.DEFINE_enum(
  'launcher', 'local', registry.names(LAUNCHERS), 'What runs the tasks.'
)
NUM_PS = flags.DEFINE_integer(
  'num_ps', 1, 'Parameter servers.', lower_bound=0, upper_bound=MAX_TASKS
)
NUM_WORKERS = flags.DEFINE_integer(
  'num_workers',
  2,
  'Workers, the chief included.',
  lower_bound=1,
  upper_bound=MAX_TASKS,
)
LOGS_DIR = flags.DEFINE_string(
  'logs_dir',
  None,
  "Folder for the logs, one per task. Default: logs/ in train's --logdir, or a "
  'new temporary folder.',
)
SHOW_LOGS = flags.DEFINE_enum(
  'show_logs',
  'chief',
  ['chief', 'all'],
  'Whose lines go to the screen; with all, each line begins with the name of '
  'its task.',
)
MAX_RESTARTS = flags.DEFINE_integer(
  'max_restarts',
  0,
  'How often each failed task is restarted, on the same address, within '
  '--restart_window_secs before the run is given up. A task that exits with 1 '
  'or 2 is never restarted.',
  lower_bound=0,
)
RESTART_WINDOW_SECS = flags.DEFINE_float(
  'restart_window_secs',
  3600.0,
  'Seconds within which restarts of one task are counted, for --launcher=local'
  ' and ssh. 0 counts over the whole run.',
  lower_bound=0,
)
MIN_WORKERS = flags.DEFINE_integer(
  'min_workers',
  None,
  'Fewest workers, the chief included, with which the run goes on when others '
  'are lost for good, for --launcher=local and ssh and asynchronous rules. By '
  'default a task that is lost for good ends the run.',
  lower_bound=1,
)
EVALUATOR = flags.DEFINE_bool(
  'evaluator',
  False,
  'Run an evaluator beside the tasks: the test metrics of each checkpoint go to'
  ' LOGDIR/metrics/evaluator_0, for TensorBoard too. Not for --launcher=spark.',
)
MODULE = flags.DEFINE_string(
  'module', TRAIN, 'What a task runs: python -m MODULE.'
)
flags.register_validator(
  'module',
  lambda name: not ('/' in name or name.endswith('.py')),
  'expected the name of a module, as after python -m: train for a file '
  'train.py here',
)
DRY_RUN = flags.DEFINE_bool(
  'dry_run',
  False,
  'Print what would be run, and exit.',
)


def make_job(train_flags: Iterable[str], given: Iterable[str]) -> jobs.Job:
  """Returns what the flags ask for.

  Args:
    train_flags: for every task.
    given: the same with each --flagfile expanded.
  """
  return jobs.Job(
    NUM_PS.value,
    NUM_WORKERS.value,
    tuple(train_flags),
    tuple(given),
    MODULE.value,
    LOGS_DIR.value,
    MAX_RESTARTS.value,
    DRY_RUN.value,
    SHOW_LOGS.value,
    RESTART_WINDOW_SECS.value,
    MIN_WORKERS.value,
    EVALUATOR.value,
  )


def make_words(flag: flags.Flag) -> list[str]:
  """Returns what a command line gives a flag: a word per value."""
  if isinstance(flag, flags.MultiFlag):
    return [f'--{flag.name}={value}' for value in flag.value or ()]
  return [flag.serialize()]


def is_secret(word: str) -> bool:
  """Whether others must not see the value of a flag of launch."""
  name, _, setting = word.partition('=')
  is_setting = name == f'--{_SPARK_CONF}'
  return is_setting and command_line.is_secret(setting.partition('=')[0])


def hide_secret(word: str) -> str:
  """Returns a flag of launch for others to read."""
  if not is_secret(word):
    return word
  name, _, setting = word.partition('=')
  return f'{name}={command_line.hide_secret(setting)}'


def check_launcher_flags(chosen: str, also: str | None = None) -> None:
  """Refuses flags of other launchers.

  Args:
    chosen: the name of the launcher.
    also: the name of one whose flags are for something else as well.

  Raises:
    cli.UsageError: one is given.
  """
  for name, module in registry.find(LAUNCHERS).items():
    # Its own flags, and those that it adopts from other files.
    for flag in flags.FLAGS.get_key_flags_for_module(module):
      if flag.present and name not in (chosen, also):
        raise cli.UsageError(
          f'--{flag.name} is for --launcher={name}, and this is '
          f'--launcher={chosen}: leave it out'
        )


def find_no_wait(launcher: str) -> str | None:
  """Returns the flag for which a launcher only submits, or None."""
  is_left = launcher == 'slurm' and not flags.FLAGS.slurm_wait
  return '--noslurm_wait' if is_left else None


# Facts: launcher, str; num_ps and num_workers, int; logdir, str or None, the
# flag of train.
REFUSALS = (
  *(
    Refusal(
      flag,
      lambda f, flag=flag: (
        FLAGS[flag].present and f.launcher not in ('local', 'ssh')
      ),
      lambda f: (
        ' is for --launcher=local and ssh, and this is '
        f'--launcher={f.launcher}: leave it out'
      ),
    )
    for flag in ('restart_window_secs', 'min_workers')
  ),
  Refusal(
    'min_workers',
    lambda f: (
      FLAGS.min_workers is not None
      and (not f.num_ps or FLAGS.min_workers > f.num_workers)
    ),
    lambda f: (
      f' does not fit --num_ps={f.num_ps} --num_workers={f.num_workers}: '
      'expected a ps, and at most --num_workers'
    ),
  ),
  Refusal(
    'evaluator',
    lambda f: FLAGS.evaluator and f.launcher == 'spark',
    ' is for all launchers but --launcher=spark: leave it out, and start it by '
    'hand: python -m distmnist.train --job_name=evaluator --logdir=...',
  ),
  Refusal(
    'evaluator',
    # Kubernetes chooses one.
    lambda f: FLAGS.evaluator and not f.logdir and f.launcher != 'kubernetes',
    ' reads the checkpoints of the run: give a --logdir to train, after the --',
  ),
)
