"""Runs a cluster: python -m distmnist.launch [flags] -- <flags of train>.

  python -m distmnist.launch --num_ps=1 --num_workers=2 -- --model=cnn

All after -- goes to every task untouched. The exit code is 0 if all tasks
ended with 0, else that of the first task that failed.
"""

import glob
import os
import re
import tempfile

from absl import flags

from distmnist import cli, processes, registry, tasks

_LAUNCHERS = 'distmnist.launchers'
# Fixed in --dry_run, so that its lines can be compared and kept; a real run
# takes ports that are free.
_DRY_RUN_PORT = 2222

_LAUNCHER = flags.DEFINE_enum(
  'launcher', 'local', registry.names(_LAUNCHERS), 'What runs the tasks.'
)
_NUM_PS = flags.DEFINE_integer('num_ps', 1, 'Parameter servers.', lower_bound=0)
_NUM_WORKERS = flags.DEFINE_integer(
  'num_workers', 2, 'Workers, the chief included.', lower_bound=1
)
_LOGS_DIR = flags.DEFINE_string(
  'logs_dir',
  None,
  "Folder for one log a task. Default: logs/ in train's --logdir, or a new"
  ' folder among the temporary ones.',
)
_GPUS = flags.DEFINE_string(
  'gpus',
  'auto',
  'GPUs to share out among the workers; a ps gets none. auto: those that are'
  ' there, 0: hide them from all tasks.',
)
_FORK_TASKS = flags.DEFINE_bool(
  'fork_tasks', True, 'Import TensorFlow once, then fork the tasks.'
)
_MODULE = flags.DEFINE_string(
  'module', 'distmnist.train', 'What a task runs: python -m MODULE.'
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run',
  False,
  f'Print a command a task, with ports from {_DRY_RUN_PORT} on, and exit.',
)


@flags.validator('gpus', 'expected auto or a number of GPUs >= 0')
def _is_gpus(value):
  return value == 'auto' or value.isdecimal()


def main(train_flags):
  """Runs or prints the tasks; `train_flags` is the list of words after --."""
  # Flags of a --flagfile count as given.
  given = flags.FLAGS.read_flags_from_files(train_flags, force_gnu=False)
  tasks.check_train_flags(given)
  gpus = find_gpus(_GPUS.value, os.environ, glob.glob('/dev/nvidia*'))
  num_tasks = _NUM_PS.value + _NUM_WORKERS.value
  held_ports = []
  if _DRY_RUN.value:
    ports = range(_DRY_RUN_PORT, _DRY_RUN_PORT + num_tasks)
  else:
    held_ports = processes.hold_ports(num_tasks if num_tasks > 1 else 0)
    ports = [held.getsockname()[1] for held in held_ports] or [0]
  hosts = [f'127.0.0.1:{port}' for port in ports]
  cluster = tasks.make_tasks(
    hosts[: _NUM_PS.value],
    hosts[_NUM_PS.value :],
    train_flags,
    num_cores=len(os.sched_getaffinity(0)),
    gpus=gpus,
    module=_MODULE.value,
  )
  if _DRY_RUN.value:
    print(*(task.command for task in cluster), sep='\n')
    return 0
  launcher = registry.load(_LAUNCHERS, _LAUNCHER.value)
  logs_dir = make_logs_dir(_LOGS_DIR.value, tasks.flag_value(given, 'logdir'))
  return launcher.launch(cluster, logs_dir, held_ports, _FORK_TASKS.value)


def find_gpus(wanted, environ, device_files):
  """Returns the devices to share out, [] to hide all, None to set nothing.

  Args:
    wanted: str, the value of --gpus.
    environ: dict; who limits the launcher by CUDA_VISIBLE_DEVICES limits the
      tasks.
    device_files: list of paths under /dev.

  Raises:
    cli.UsageError: more are wanted than CUDA_VISIBLE_DEVICES names.
  """
  names = environ.get('CUDA_VISIBLE_DEVICES')
  if names is not None:
    visible = [name.strip() for name in names.split(',') if name.strip()]
  else:
    found = [f for f in device_files if re.fullmatch('/dev/nvidia[0-9]+', f)]
    visible = [str(index) for index in range(len(found))]
  if wanted == 'auto':
    return visible or None
  if names is None:
    return [str(index) for index in range(int(wanted))]
  if int(wanted) > len(visible):
    raise cli.UsageError(
      f'--gpus={wanted}, but CUDA_VISIBLE_DEVICES={names} names'
      f' {len(visible)}: ask for no more, or name more'
    )
  return visible[: int(wanted)]


def make_logs_dir(logs_dir, logdir):
  """Makes the folder for the logs and returns it (str).

  Args:
    logs_dir: str or None, the one asked for.
    logdir: str or None, train's --logdir.

  Raises:
    cli.UsageError: it cannot be made or written to.
  """
  if not logs_dir and not logdir:
    return tempfile.mkdtemp(prefix='distmnist_logs_')
  path = logs_dir or os.path.join(logdir, 'logs')
  try:
    os.makedirs(path, exist_ok=True)
  except OSError as error:
    raise cli.UsageError(f'no folder for the logs: {error}') from error
  if not os.access(path, os.W_OK | os.X_OK):
    raise cli.UsageError(f'no folder for the logs: cannot write to {path}')
  return path


def run():
  """The console's entry point."""
  cli.run(main, passthrough=True)


if __name__ == '__main__':
  run()
