"""Runs a cluster: python -m distmnist.launch [flags] -- <flags of train>.

  python -m distmnist.launch --num_ps=1 --num_workers=2 -- --model=cnn

All after -- goes to every task untouched. The exit code is 0 if all tasks
ended with 0, else that of the first task that failed for good.
"""

import glob
import os
import re
import tempfile

from absl import flags

from distmnist import cli, isolation, processes, registry, tasks

_LAUNCHERS = 'distmnist.launchers'
# From here on in --dry_run, so that its lines can be compared and kept, and
# where the tasks have a network of their own: below the ports that the kernel
# gives to outgoing connections. Else a real run takes ports that are free.
_FIRST_PORT = 2222
_TRAIN = 'distmnist.train'

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
_GPUS = flags.DEFINE_string(
  'gpus',
  'auto',
  'GPUs to share out among the workers; a ps gets none. auto: those that are'
  ' there, 0: hide them from all tasks.',
)
_FORK_TASKS = flags.DEFINE_bool(
  'fork_tasks', True, 'Import TensorFlow once, then fork the tasks.'
)
_MAX_RESTARTS = flags.DEFINE_integer(
  'max_restarts',
  0,
  'How often each task that fails is started again, on the same address, before'
  ' the run is given up. Exit codes 1 and 2 are never tried again.',
  lower_bound=0,
)
_ISOLATE = flags.DEFINE_enum(
  'isolate',
  'auto',
  ['auto', 'on', 'off'],
  'Give the tasks of a cluster a network of their own (a namespace of Linux):'
  ' whoever reaches a port of TensorFlow may run there what he likes. auto:'
  ' where it is allowed, and no folder of the run is remote (://).',
)
_MODULE = flags.DEFINE_string(
  'module', _TRAIN, 'What a task runs: python -m MODULE.'
)
_DRY_RUN = flags.DEFINE_bool(
  'dry_run',
  False,
  f'Print a command a task, with ports from {_FIRST_PORT} on, and exit.',
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
  num_tasks = NUM_PS.value + NUM_WORKERS.value
  ports = range(_FIRST_PORT, _FIRST_PORT + num_tasks)
  namespace = None
  if not _DRY_RUN.value:
    logs_dir = make_logs_dir(_LOGS_DIR.value, tasks.flag_value(given, 'logdir'))
    # A task on its own serves nowhere.
    if num_tasks > 1:
      namespace = make_namespace(_ISOLATE.value, given)
    if not namespace:
      # Kept until the end of the run, so that a restart finds its port free.
      held_ports = processes.hold_ports(num_tasks)
      ports = [held.getsockname()[1] for held in held_ports]
  hosts = [f'127.0.0.1:{port}' for port in ports]
  cluster = tasks.make_tasks(
    hosts[: NUM_PS.value],
    hosts[NUM_PS.value :],
    train_flags,
    num_cores=len(os.sched_getaffinity(0)),
    gpus=gpus,
    module=_MODULE.value,
  )
  if _DRY_RUN.value:
    print(*(task.command for task in cluster), sep='\n')
    return 0
  data_task = None
  if namespace and _MODULE.value == _TRAIN:
    # There is no network for a download where the others run.
    data_task = tasks.make_data_task(train_flags)
  return registry.load(_LAUNCHERS, _LAUNCHER.value).launch(
    cluster,
    logs_dir,
    _FORK_TASKS.value,
    _MAX_RESTARTS.value,
    namespace,
    data_task,
  )


def make_namespace(wanted, train_flags):
  """Returns the isolation.Namespace of the tasks, or None; auto says which.

  Args:
    wanted: str, the value of --isolate.
    train_flags: list of str; a remote folder among them needs the network.

  Raises:
    cli.RunError: it must be, and this machine does not allow it.
  """
  if wanted == 'off':
    return None
  folders = {
    name: tasks.flag_value(train_flags, name) or ''
    for name in ('logdir', 'data_dir')
  }
  remote = [name for name, path in folders.items() if '://' in path]
  try:
    if wanted == 'auto' and remote:
      raise OSError(f'--{remote[0]}={folders[remote[0]]} needs the network')
    namespace = isolation.make_namespace()
  except OSError as error:
    if wanted == 'on':
      raise cli.RunError(
        f'--isolate=on, but {error}: ask the administrator for the right, or'
        ' run with --isolate=auto where nobody else reaches this machine'
      ) from error
    processes.say(
      f'the tasks are not isolated ({error}): whoever reaches this machine can'
      ' reach their ports'
    )
    return None
  if wanted == 'auto':
    processes.say('the tasks are isolated: they alone can reach their ports')
  return namespace


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
