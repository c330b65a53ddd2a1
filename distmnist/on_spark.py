"""Training within a Spark program: ps and workers are tasks of Spark.

  from distmnist import on_spark

  report = on_spark.run(
    sc, ['--flagfile=configs/cnn_async.flags', '--logdir=/shared/run'],
    num_ps=1, num_workers=2)

One barrier stage with a partition a task of the cluster: Spark starts all of
them at once or none, and ends all when one is lost. They report to the driver,
here (spark_desk.py): their logs come as they grow, and they are told when to
start and to stop. The executors' side is spark_task.py.

Spark itself gives up a job whose last stage is a barrier stage with a lost
task. So after a failure we submit it again, up to `max_restarts` times, once no
task of the last attempt is left; the chief restores the latest checkpoint of
--logdir, a folder that all executors share.
"""

import contextlib
import enum
import functools
import hashlib
import io
import os
import re
import secrets
import sys
import threading
import time
import zipfile

from distmnist import (
  cli,
  console,
  exposure,
  processes,
  spark_desk,
  spark_task,
  stop_grace,
  task_logs,
)
from distmnist import tasks as tasks_lib
from distmnist import train_flags as train_flags_lib

_PATH_FLAGS = ('logdir', 'data_dir', 'resume')
_NO_PATHS = ('auto', 'never')
# From the end of the tasks to that of Spark's job, and the other way round.
_END_SECS = 5.0
# These would come again, and the task has said what to do.
_FINAL_CODES = (cli.FAILED, cli.WRONG_COMMAND_LINE)


class InputMode(enum.Enum):
  """Where the images come from; see `run`."""

  FILES = 'files'
  RDD = 'rdd'


class TaskError(cli.RunError):
  """A task has failed for good; `exit_code` is its own, 128 + n by signal n."""

  def __init__(self, message, exit_code):
    super().__init__(message)
    self.exit_code = exit_code


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
  module=tasks_lib.TRAIN,
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
      say. RDD: Spark brings them `data`; see spark_feed.py.
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
    cli.RunError: the training failed; a TaskError if a task did.
  """
  say = say or _say
  given = train_flags_lib.expand(train_flags)
  tasks_lib.check_train_flags(given)
  if module == tasks_lib.TRAIN:
    train_flags_lib.check(given)
  check_paths(given)
  is_fed = _check_input(input_mode, data, test_data, given)
  _check_conf(sc.getConf())
  num_tasks = num_ps + num_workers
  given += find_data_dir(given, os.environ, say) if not is_fed else []
  say(describe_python(sc))
  wait_for_slots(sc, num_tasks, wait_secs, say)
  logs_dir = task_logs.make_logs_dir(
    logs_dir, tasks_lib.flag_value(given, 'logdir')
  )
  names = [f'ps {i}' for i in range(num_ps)]
  names += [f'worker {i}' for i in range(num_workers)]
  ship_package(sc)
  rdd, feed = sc.parallelize(range(num_tasks), num_tasks), None
  if is_fed:
    # NumPy, which a launch does without.
    from distmnist import spark_feed

    for name, images in (('data', data), ('test_data', test_data)):
      try:
        spark_feed.check_first(images, image_shape, num_classes)
      except Exception as error:
        raise cli.RunError(f'{name}: {explain(error)}') from error
    rdd = spark_feed.make_rdd(
      sc, data, test_data, num_ps, num_workers, image_shape, num_classes
    )
    feed = {'image_shape': list(image_shape), 'limit_mb': feed_limit_mb}
    if tasks_lib.flag_value(given, 'validation_images') is None:
      given.append('--validation_images=0')
    given += spark_feed.make_flags(image_shape, num_classes)
  conf = sc.getConf()
  host = conf.get('spark.driver.host')
  secret = secrets.token_hex(32)
  say(
    f'{num_ps} ps and {num_workers} worker{"s" if num_workers > 1 else ""} on'
    f' {sc.master}, logs in {logs_dir}'
  )
  warn_of_network(conf, say)
  bind_host = conf.get('spark.driver.bindAddress') or host
  with spark_desk.Desk(
    bind_host,
    secret,
    names,
    logs_dir,
    show or _show_chief,
    stop_grace.parse(given),
  ) as desk:
    while True:
      number = desk.begin()
      spec = {
        'num_ps': num_ps,
        'num_workers': num_workers,
        'train_flags': given,
        'module': module,
        'driver': [host, desk.port],
        'secret': secret,
        'attempt': number,
        'feed': feed,
      }
      task = functools.partial(spark_task.run_in_barrier, spec)
      lost = _run_once(
        desk,
        Job(sc, rdd.barrier().mapPartitions(task), desk.wake),
        'bring the images and start' if is_fed else 'start',
        feed_timeout_secs if is_fed else wait_secs,
        say,
      )
      failure = desk.failure
      if not (failure or lost):
        return desk.report
      if number > max_restarts:
        break
      if failure and failure.exit_code in _FINAL_CODES:
        break
      what = lost
      if failure:
        what = f'{failure.name} ({failure.address}): {failure.cause}'
      say(f'{what}: restart {number} of {max_restarts}, with all other tasks')
      wait_for_slots(sc, num_tasks, wait_secs, say)
    if not failure:
      raise cli.LostError(lost)
    say(f'the last lines of {failure.name}:')
    lines = desk.last_lines(failure.name) or ['(it has written nothing)']
    for line in lines:
      print(f'  | {line}', file=sys.stderr, flush=True)
    raise TaskError(str(failure), failure.exit_code)


def _say(text):
  print(f'distmnist: {text}', file=sys.stderr, flush=True)


def _show_chief(name, line):
  if name == tasks_lib.CHIEF:
    print(line, flush=True)


def _run_once(desk, job, verb, wait_secs, say):
  """Runs the job to its end; what its tasks have failed of, `desk` knows.

  Returns:
    str, an executor that was lost before its task could report; or None.

  Raises:
    cli.RunError: Spark does not start the tasks, or has given up the job
      though no task has failed.
  """
  job.start()
  wait = console.Wait(wait_secs, say)
  deadline = float('inf')
  try:
    while not desk.is_over:
      desk.turn(processes.TICK_SECS)
      if job.has_ended:
        # Where Spark has ended the tasks, they say so within some seconds.
        deadline = min(deadline, time.monotonic() + _END_SECS)
        if not desk.has_tasks or time.monotonic() > deadline:
          break
      if desk.missing:
        what = f'for Spark to {verb} {", ".join(desk.missing)}'
        if wait.is_over(what):
          raise cli.LostError(
            f'waited {wait_secs:g} s {what}: are the executors still there,'
            ' and their slots free?'
          )
  finally:
    # Nothing stays behind, after Ctrl-C either.
    try:
      desk.end_all()
    finally:
      job.end()
  if job.error and (job.is_cancelled or not desk.failure):
    if lost := find_lost_executor(job.error):
      return lost
    why = job.explain()
    raise cli.RunError(f'Spark has given up the job: {why}')
  return None


def _check_input(input_mode, data, test_data, train_flags):
  """Returns whether Spark brings the images; raises cli.UsageError."""
  if input_mode is InputMode.FILES:
    if data is not None or test_data is not None:
      raise cli.UsageError(
        'data is given, but input_mode is InputMode.FILES: give InputMode.RDD'
      )
    return False
  if data is None or test_data is None:
    raise cli.UsageError(
      'InputMode.RDD needs data and test_data, such as'
      ' data, test_data = rdd.randomSplit([0.9, 0.1], seed=0)'
    )
  for name in ('dataset', 'data_dir', 'epochs_over'):
    if tasks_lib.flag_value(train_flags, name) is not None:
      raise cli.UsageError(
        f'--{name} is for InputMode.FILES: leave it out, as the images come'
        ' from data'
      )
  return True


def check_paths(train_flags):
  """Checks --logdir, --data_dir and --resume; see `check_path`."""
  for name in _PATH_FLAGS:
    path = tasks_lib.flag_value(train_flags, name)
    if path and not (name == 'resume' and path in _NO_PATHS):
      check_path(name, path)


def check_path(name, path):
  """Refuses a path that would be another place on each executor.

  Raises:
    cli.UsageError: it is relative.
  """
  if not path.startswith(('/', '~')):
    raise cli.UsageError(
      f'--{name}={path} is relative, and would be another place on each'
      ' executor: give an absolute path that all of them share'
    )


def _check_conf(conf):
  if conf.get('spark.dynamicAllocation.enabled', 'false') == 'true':
    raise cli.UsageError(
      'spark.dynamicAllocation.enabled=true, but Spark has no barrier stages'
      ' with it: set it to false, and spark.executor.instances to a number'
    )


def describe_python(sc):
  """Returns a line (str) on which Python the executors of a context run."""
  return (
    f'the executors run {sc.pythonExec}, which has to have TensorFlow there'
    ' (PYSPARK_PYTHON names another)'
  )


def find_data_dir(train_flags, environ, say=lambda _: None):
  """Returns --data_dir (list of str) for the executors, where it is not given.

  An executor of a real cluster does not have our environment.

  Args:
    train_flags: list of str.
    environ: dict, ours.
    say: callable, takes a line that says so.

  Raises:
    cli.UsageError: DISTMNIST_DATA_DIR is a relative path.
  """
  path = environ.get('DISTMNIST_DATA_DIR')
  if not path or tasks_lib.flag_value(train_flags, 'data_dir') is not None:
    return []
  check_path('data_dir', path)
  say(f'--data_dir={path} for all tasks, by DISTMNIST_DATA_DIR')
  return [f'--data_dir={path}']


def warn_of_network(conf, say):
  """Says who can reach a cluster of Spark, unless it is this machine alone.

  Args:
    conf: pyspark.SparkConf.
    say: callable, takes a line.
  """
  if conf.get('spark.master').startswith('local'):
    return
  say(exposure.describe('the tasks on the executors'))
  if conf.get('spark.authenticate', 'false') != 'true':
    say(
      'spark.authenticate is off: Spark sends the secret of this run in the'
      ' clear, and runs jobs for whoever reaches it'
    )


def count_fixed_slots(master):
  """Returns the slots (int) of a `master` that can have no more, else None."""
  if master == 'local':
    return 1
  if match := re.fullmatch(r'local\[(\d+|\*)(?:, *\d+)?\]', master):
    return os.cpu_count() if match[1] == '*' else int(match[1])
  if match := re.fullmatch(
    r'local-cluster\[ *(\d+) *, *(\d+) *, *\d+ *\]', master
  ):
    return int(match[1]) * int(match[2])
  return None


def check_fixed_slots(
  master,
  num_tasks,
  who='the cluster has {} tasks',
  advice='ask for fewer ps and workers',
):
  """Refuses more tasks than `master`, a str, can ever have slots.

  Args:
    master: str.
    num_tasks: int, how many shall run at the same time.
    who: str, says so of {}.
    advice: str, what else would help.

  Raises:
    cli.UsageError: there are too few.
  """
  num_slots = count_fixed_slots(master)
  if num_slots is not None and num_slots < num_tasks:
    raise cli.UsageError(
      f'{master} has {num_slots} slot{"s" if num_slots != 1 else ""}, but'
      f' {who.format(num_tasks)}, and each takes one: give it more executors'
      f' or cores, or {advice}'
    )


def wait_for_slots(sc, num_tasks, wait_secs, say):
  """Returns once Spark has a slot for each task of the cluster.

  Spark itself would wait for 10 minutes, and look each 15 s.

  Raises:
    cli.UsageError: it never will.
    cli.RunError: it has not within wait_secs.
  """
  check_fixed_slots(sc.master, num_tasks)
  wait = console.Wait(wait_secs, say)
  while (num_slots := count_slots(sc)) < num_tasks:
    need = f'{num_tasks} slots, of which Spark has {num_slots} so far'
    if wait.is_over(f'for {need}'):
      raise cli.RunError(
        f'after {wait_secs:g} s Spark has {num_slots} slots on'
        f' {_count_executors(sc)} executors, but the cluster has {num_tasks}'
        ' tasks, and each takes one: give it more executors or cores'
        ' (spark.executor.instances, spark.executor.cores,'
        ' spark.task.cpus), or ask for fewer ps and workers'
      )
    time.sleep(0.1)


def count_slots(sc):
  """Returns how many tasks Spark can run at once (int).

  Raises:
    cli.RunError: the SparkContext is stopped.
  """
  try:
    scala = sc._jsc.sc()
    if scala.isStopped():
      raise cli.RunError('Spark has stopped: its log says why')
    profile = scala.resourceProfileManager().defaultResourceProfile()
    return scala.maxNumConcurrentTasks(profile)
  except cli.RunError:
    raise
  except Exception as error:
    raise cli.RunError(f'Spark does not answer: {explain(error)}') from error


def _count_executors(sc):
  # The driver is among them.
  return max(0, sc._jsc.sc().getExecutorMemoryStatus().size() - 1)


def ship_package(sc):
  """Has the executors import this very distmnist, also where none is."""
  package = os.path.dirname(os.path.abspath(__file__))
  content = io.BytesIO()
  with zipfile.ZipFile(content, 'w', zipfile.ZIP_DEFLATED) as archive:
    for folder, subfolders, names in os.walk(package):
      subfolders.sort()
      for name in sorted(names):
        path = os.path.join(folder, name)
        if name.endswith('.py'):
          # With no time in it: the same files are the same archive.
          info = zipfile.ZipInfo(
            os.path.relpath(path, os.path.dirname(package))
          )
          with open(path, 'rb') as file:
            archive.writestr(info, file.read(), zipfile.ZIP_DEFLATED)
  digest = hashlib.sha256(content.getvalue()).hexdigest()[:16]
  # Executors that come later ask for it too: it lives as long as the context.
  path = os.path.join(sc._temp_dir, f'distmnist_{digest}.zip')
  if not os.path.exists(path):
    with open(path, 'wb') as file:
      file.write(content.getvalue())
    sc.addPyFile(path)


def explain(error):
  """Returns what is wrong (str) in a line, out of an exception of Spark."""
  text = str(error).strip()
  lines = [line.strip() for line in text.splitlines() if line.strip()]
  if 'Traceback (most recent call last)' in text:
    # The Python exception of an executor: the line after its stack.
    raw = text[text.rindex('Traceback (most recent call last)') :].splitlines()
    for line in raw[1:]:
      if line and not line.startswith((' ', '\t')):
        return line[:500]
  for line in lines:
    if match := re.match(r'(?:: )?[\w.$]*(?:Exception|Error): (.+)', line):
      return match[1][:500]
  return lines[0][:500] if lines else type(error).__name__


def find_lost_executor(error):
  """Returns what Spark says of a lost executor (str), or None if of none."""
  match = re.search(
    r'ExecutorLostFailure \(executor (\S+) .*?\) Reason: (.*)', str(error)
  )
  if not match:
    return None
  return f'executor {match[1]} was lost before its task began: {match[2][:200]}'


class Job:
  """A job of Spark, run by a thread: this one is for the tasks' words.

  Attributes:
    error: Exception that it has ended with, or None.
  """

  def __init__(self, sc, rdd, on_end):
    """
    Args:
      sc: pyspark.SparkContext.
      rdd: RDD to compute; what comes of it is of no interest.
      on_end: callable, called by that thread.
    """
    self.error = None
    self._is_our_end = False
    self._ended = threading.Event()
    self._sc = sc
    self._rdd = rdd
    self._on_end = on_end
    self._group = f'distmnist-{secrets.token_hex(8)}'

  def start(self):
    from pyspark import InheritableThread

    InheritableThread(target=self._run, daemon=True).start()

  @property
  def is_cancelled(self):
    """Whether somebody else has cancelled it."""
    return 'cancelled' in str(self.error) and not self._is_our_end

  @property
  def has_ended(self):
    return self._ended.is_set()

  def end(self):
    """Returns when Spark is done with it; cancels it if it does not end."""
    if not self._ended.wait(_END_SECS):
      self.cancel()
      self._ended.wait(_END_SECS)

  def cancel(self):
    """Has Spark end it, and its Python processes."""
    self._is_our_end = True
    with contextlib.suppress(Exception):  # The context may be stopped.
      self._sc.cancelJobGroup(self._group)

  def explain(self):
    """Returns why it has failed, one line (str)."""
    why = explain(self.error)
    if 'ModuleNotFoundError' in why:
      why += (
        f": the executors' Python, {self._sc.pythonExec}, lacks it: install it"
        ' there, or set PYSPARK_PYTHON to one that has it before Spark starts'
      )
    return why

  def _run(self):
    try:
      self._sc.setJobGroup(self._group, 'distmnist', True)
      self._rdd.collect()
    except Exception as error:
      self.error = error
    finally:
      self._ended.set()
      self._on_end()
