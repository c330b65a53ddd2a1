"""Runs all tasks on this machine.

The chief's lines go to the screen as they come, everybody's to a log file
each. The chief writes to its file alone and we read along: a slow screen or
a launcher that dies can neither stop the chief nor lose a line.
"""

import glob
import os
import re
import shutil
import signal
import sys

from absl import flags

from distmnist import cli, isolation, processes
from distmnist import tasks as tasks_lib

LEAVE_SECS = 10.0

_GPUS = flags.DEFINE_string(
  'gpus',
  'auto',
  'GPUs to share out among the workers; a ps gets none. auto: those that are'
  ' there, 0: hide them from all tasks.',
)
_FORK_TASKS = flags.DEFINE_bool(
  'fork_tasks', True, 'Import TensorFlow once, then fork the tasks.'
)
_ISOLATE = flags.DEFINE_enum(
  'isolate',
  'auto',
  ['auto', 'on', 'off'],
  'Give the tasks of a cluster a network of their own (a namespace of Linux):'
  ' whoever reaches a port of TensorFlow may run there what he likes. auto:'
  ' where it is allowed, and no folder of the run is remote (://).',
)


@flags.validator('gpus', 'expected auto or a number of GPUs >= 0')
def _is_gpus(value):
  return value == 'auto' or value.isdecimal()


def launch(job):
  """Runs the tasks.Job; returns its exit code (int)."""
  gpus = find_gpus(_GPUS.value, os.environ, glob.glob('/dev/nvidia*'))
  num_tasks = job.num_ps + job.num_workers
  # As good as any where the tasks have a network of their own. Else a real run
  # takes ports that are free.
  ports = range(tasks_lib.FIRST_PORT, tasks_lib.FIRST_PORT + num_tasks)
  namespace = None
  if not job.dry_run:
    logs_dir = processes.make_logs_dir(job.logs_dir, job.flag('logdir'))
    # A task on its own serves nowhere.
    if num_tasks > 1:
      namespace = make_namespace(_ISOLATE.value, job.given)
    if not namespace:
      # Kept until the end of the run, so that a restart finds its port free.
      held_ports = processes.hold_ports(num_tasks)
      ports = [held.getsockname()[1] for held in held_ports]
  hosts = [f'127.0.0.1:{port}' for port in ports]
  cluster = tasks_lib.make_tasks(
    hosts[: job.num_ps],
    hosts[job.num_ps :],
    job.train_flags,
    num_cores=len(os.sched_getaffinity(0)),
    gpus=gpus,
    module=job.module,
  )
  if job.dry_run:
    print(*(task.command for task in cluster), sep='\n')
    return 0
  data_task = None
  if namespace and job.module == tasks_lib.TRAIN:
    # There is no network for a download where the others run.
    data_task = tasks_lib.make_data_task(job.train_flags)
  return run(
    cluster,
    logs_dir,
    _FORK_TASKS.value,
    job.max_restarts,
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
    name: tasks_lib.flag_value(train_flags, name) or ''
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


def run(
  tasks,
  logs_dir,
  fork_tasks=True,
  max_restarts=0,
  namespace=None,
  data_task=None,
):
  """Runs `tasks` to their end.

  The first task that fails for good stops the others, and is named last on the
  screen.

  Args:
    tasks: list of tasks.Task, all of this machine; worker 0 is the chief.
    logs_dir: str, an existing folder for one log a task.
    fork_tasks: bool, see processes.Processes.
    max_restarts: int, how often each task may be started again.
    namespace: isolation.Namespace for `tasks`, or None.
    data_task: tasks.Task that runs to its end before the others start, outside
      of the namespace, or None. Its log stays only if it fails.

  Returns:
    int, 0 if all tasks ended with 0, or ended in another way once worker 0 had
    and after restarts; else the exit code of the first task that failed for
    good, 128 + n if it or this launcher got signal n; 1 for a task that did not
    leave within LEAVE_SECS, though nothing held it up.
  """
  workers = [task for task in tasks if task.job_name == 'worker']
  servers = [task for task in tasks if task.job_name == 'ps']
  processes.say(
    f'{len(servers)} ps and {len(workers)}'
    f' worker{"s" if len(workers) > 1 else ""} on this machine,'
    f' logs in {logs_dir}'
  )
  screen = Screen(processes.log_path(logs_dir, workers[0]))

  def say_on_screen(text):
    screen.close_line()
    processes.say(text)

  with processes.Processes(
    tasks[0].module,
    logs_dir,
    os.environ,
    fork_tasks,
    max_restarts,
    namespace,
    on_tick=screen.update,
    say=say_on_screen,
  ) as group:
    left = _get_data(group, data_task) if data_task else []
    if not left and not group.failure:
      for task in tasks:
        group.start(task)
      # With restarts the others may have lost what they need to end.
      last = workers[:1] if max_restarts else workers
      left = group.wait(last) or group.wait(tasks, LEAVE_SECS)
    signum = group.signals[0] if group.signals else None
    excused = [task for task in left if _is_excused(group, task, workers)]
    # A task knows SIGINT and SIGTERM; SIGHUP would end it with no checkpoint.
    passed_on = signum if signum == signal.SIGINT else signal.SIGTERM
    killed = group.stop(passed_on) if left else []
  screen.finish()
  is_late = not group.failure and not signum
  for task in killed:
    if not (is_late and task in excused):
      processes.say(
        f'{task.name} ({task.address}) did not leave when told to: killed'
      )
  if group.failure:
    return _report(group.failure, logs_dir, group.last_lines)
  if signum:
    processes.say(
      f'stopped by {signal.Signals(signum).name}, logs in {logs_dir}'
    )
    return 128 + signum
  waited_for = last[0].name if max_restarts else 'the last worker'
  late = [task for task in left if task not in excused]
  for task in excused + late:
    processes.say(
      f'{"error: " if task in late else ""}{task.name} ({task.address}) still'
      f' ran {LEAVE_SECS:.0f} s after {waited_for} had ended: stopped;'
      f' log: {processes.log_path(logs_dir, task)}'
    )
  return 1 if late else 0


def _get_data(group, data_task):
  """Runs the task that gets the data; returns it in a list if it still runs."""
  group.start(data_task)
  left = group.wait([data_task])
  if not left and not group.failure:
    group.discard(data_task)
  return left


def _is_excused(group, task, workers):
  """Whether a task may be late: a restart can cost it what tells it to leave.

  A ps leaves once every worker has told it to.
  """
  if group.is_restarted(task):
    return True
  return task.job_name == 'ps' and not all(map(group.is_done, workers))


def _report(failure, logs_dir, last_lines):
  """Names the root cause, and nothing after it; returns the exit code."""
  task, times = failure.task, failure.num_restarts
  processes.say(f'the last lines of {task.name}:')
  for line in last_lines(task) or ['(it has written nothing)']:
    print(f'  | {line}', file=sys.stderr)
  when = (
    f'after {times} restart{"s" if times > 1 else ""}' if times else 'first'
  )
  processes.say(
    f'error: {task.name} ({task.address}) failed {when}: {failure.cause};'
    f' log: {processes.log_path(logs_dir, task)}'
  )
  return failure.exit_code


class Screen:
  """Shows a log as it grows; on a terminal its `step` lines share one line."""

  def __init__(self, path, out=None):
    """Opens the log, which may not exist yet; lines that it has are old.

    Args:
      path: str, the log.
      out: text file, stdout by default.
    """
    self._log = open(path, 'a+b')  # noqa: SIM115 (follows it all our life)
    self._out = out or sys.stdout
    self._rest = b''
    self._is_line_open = False

  def update(self):
    """Shows the lines that were completed since the last call."""
    *lines, self._rest = (self._rest + self._log.read()).split(b'\n')
    for line in lines:
      self._show(line.decode(errors='replace'))
    if lines:
      self._out.flush()

  def finish(self):
    """Shows what is left, a last line without its end too."""
    self.update()
    if self._rest:
      self._show(self._rest.decode(errors='replace'))
    self.close_line()
    self._out.flush()
    self._log.close()

  def _show(self, line):
    if self._out.isatty() and line.startswith('step '):
      # A line that wraps could not be redrawn.
      width = shutil.get_terminal_size().columns - 1
      self._out.write(f'\r{line[:width]}\x1b[K')
      self._is_line_open = True
    else:
      self.close_line()
      self._out.write(line + '\n')

  def close_line(self):
    """Lets what comes next, from whomever, begin on a line of its own."""
    if self._is_line_open:
      self._out.write('\n')
      self._is_line_open = False
