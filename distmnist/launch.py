"""Runs a cluster: python -m distmnist.launch [flags] -- <flags of train>.

  python -m distmnist.launch --num_ps=1 --num_workers=2 -- --model=cnn

All after -- goes to every task untouched. The exit code is 0 if all tasks
ended with 0, else that of the first task that failed for good.
"""

import os

from absl import flags

from distmnist import cli, registry, task_environment, tasks

_LAUNCHERS = 'distmnist.launchers'
# Each has flags of its own.
registry.load_all(_LAUNCHERS)

_LAUNCHER = flags.DEFINE_enum(
  'launcher', 'local', registry.names(_LAUNCHERS), 'What runs the tasks.'
)
NUM_PS = flags.DEFINE_integer('num_ps', 1, 'Parameter servers.', lower_bound=0)
NUM_WORKERS = flags.DEFINE_integer(
  'num_workers', 2, 'Workers, the chief included.', lower_bound=1
)
_LOGS_DIR = flags.DEFINE_string(
  'logs_dir',
  None,
  "Folder for one log a task. Default: logs/ in train's --logdir, or a new"
  ' folder among the temporary ones.',
)
_SHOW_LOGS = flags.DEFINE_enum(
  'show_logs',
  'chief',
  ['chief', 'all'],
  'Whose lines go to the screen; with all each line has the name of its task'
  ' before it.',
)
_MAX_RESTARTS = flags.DEFINE_integer(
  'max_restarts',
  0,
  'How often each task that fails is started again, on the same address, before'
  ' the run is given up. Exit codes 1 and 2 are never tried again.',
  lower_bound=0,
)
_MODULE = flags.DEFINE_string(
  'module', tasks.TRAIN, 'What a task runs: python -m MODULE.'
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run',
  False,
  'Print what would be run, and exit.',
)


def main(train_flags):
  """Runs or prints the tasks; `train_flags` is the list of words after --."""
  # Flags of a --flagfile count as given.
  given = flags.FLAGS.read_flags_from_files(train_flags, force_gnu=False)
  tasks.check_train_flags(given)
  # A launcher says who is who: what told this process so is not for its tasks.
  for name in task_environment.NAMES:
    os.environ.pop(name, None)
  job = tasks.Job(
    NUM_PS.value,
    NUM_WORKERS.value,
    tuple(train_flags),
    tuple(given),
    _MODULE.value,
    _LOGS_DIR.value,
    _MAX_RESTARTS.value,
    _DRY_RUN.value,
    _SHOW_LOGS.value,
  )
  return registry.load(_LAUNCHERS, _LAUNCHER.value).launch(job)


def run():
  """The console's entry point."""
  cli.run(main, passthrough=True)


if __name__ == '__main__':
  run()
