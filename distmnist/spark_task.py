"""A task of the cluster, or a trial of a sweep, within a task of Spark.

On the executor are

  Spark's Python process     finds a port, learns those of the others by
    `run_in_barrier`         allGather, starts an agent and waits for its end;
    `run_trial`              serves nowhere, and does the rest
  the agent                  `python -m distmnist.spark_task`: runs the task
                             (processes.py), talks to the driver (on_spark.py,
                             spark_trials.py)
  the task                   distmnist.train, its output in a file

The agent is a process of its own because Spark ends its Python processes by
SIGKILL: on cancelling, and where another task of the stage has failed. The end
of its stdin tells the agent; it has the driver decide who stops when, so that
the chief still finds the ps for its last checkpoint. With driver and executor
both gone it stops the task by itself. Whatever happens, the task's processes
end with the agent.

Messages are those of json_lines.py, after the proofs of handshake.py. The agent
says

  {"hello": name, "attempt": n, "address": host:port, "executor": text}
  {"lines": [...]}   new lines of the task's log
  {"lost": reason}   Spark has let go of it; the task still runs
  {"end": code}      -n by signal n; with "report" of a chief; null when stopped
  {"refused": why}   in place of it, as the trial cannot run there

and the driver

  {"go": true}       start the task
  {"stop": signal}   end it: by this signal, with grace; a second time, at once
  {"leave": true}    done
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from distmnist import (
  cli,
  json_lines,
  ports,
  processes,
  stop_grace,
  task_environment,
  task_logs,
)
from distmnist import tasks as tasks_lib

# From the loss of the executor, if the driver says nothing, to the stop.
ORPHAN_SECS = 20.0
_MAX_READ_BYTES = 1 << 18
_SECRETS_OF_SPARK = 'PYTHON_WORKER_FACTORY'


def run_in_barrier(spec, records):
  """Runs the task of this partition; called by Spark.

  Args:
    spec: dict, JSON's kinds of values alone:
      num_ps, num_workers: int.
      train_flags: list of str.
      module: dotted name.
      driver: [host, port]; secret: str.
      attempt: int, how often the tasks were started, this time included.
      feed: None, or a dict: image_shape, limit_mb; see spark_feed.py.
    records: iterator, this partition; read only with `feed`.

  Returns:
    An empty list.

  Raises:
    RuntimeError: the agent has failed.
    ValueError: the images cannot be used.
  """
  from pyspark import BarrierTaskContext

  context = BarrierTaskContext.get()
  folder = tempfile.mkdtemp(prefix='distmnist_', dir=os.getcwd())
  try:
    _run_in_folder(context, spec, records, folder)
  finally:
    shutil.rmtree(folder, ignore_errors=True)
  return []


def _run_in_folder(context, spec, records, folder):
  num_ps, index = spec['num_ps'], context.partitionId()
  is_fed = spec['feed'] and index >= num_ps
  num_images = 0
  if is_fed:
    from distmnist import spark_feed

    num_images = spark_feed.spool(records, folder, **spec['feed'])
  # Held until the end of this process, so that the task finds its port free.
  held = ports.hold_ports(1)[0]
  me = {
    'host': context.getTaskInfos()[index].address.rpartition(':')[0],
    'port': held.getsockname()[1],
    'images': num_images,
  }
  everyone = parse_gathered(context.allGather(json.dumps(me)))
  addresses = [f'{each["host"]}:{each["port"]}' for each in everyone]
  train_flags = list(spec['train_flags'])
  if is_fed:
    num_images = min(each['images'] for each in everyone[num_ps:])
    if not num_images:
      raise ValueError(
        f'too few images for {spec["num_workers"]} workers: one has none'
      )
    spark_feed.cut(folder, num_images)
    train_flags.append(f'--data_dir={folder}')
  task = tasks_lib.make_tasks(
    addresses[:num_ps],
    addresses[num_ps:],
    train_flags,
    # A worker has the cores that Spark gives a task, spark.task.cpus.
    num_cores=context.cpus() * spec['num_workers'],
    module=spec['module'],
  )[index]
  if task.name == tasks_lib.CHIEF and not tasks_lib.flag_value(
    train_flags, 'logdir'
  ):
    # The report has to be somewhere.
    logdir = os.path.join(folder, 'logdir')
    task = dataclasses.replace(task, argv=(*task.argv, f'--logdir={logdir}'))
  with held:
    _run_agent(spec, task, task.name, folder, me['host'])


def run_trial(spec, _):
  """Runs a trial of a sweep; called by Spark.

  Args:
    spec: dict, JSON's kinds of values alone:
      name: str, what the driver calls this start of the trial.
      argv: list of str, the command; env: dict, its environment beyond ours.
      lock: [path, word], a file that driver and executors share, in which the
        driver has written this word; held (shared) while the trial runs.
      driver, secret, attempt: as for `run_in_barrier`.

  Returns:
    An empty list.

  Raises:
    RuntimeError: the agent has failed.
  """
  from pyspark import TaskContext

  folder = tempfile.mkdtemp(prefix='distmnist_', dir=os.getcwd())
  host = socket.gethostname()
  env = dict(spec['env'])
  if gpus := TaskContext.get().resources().get('gpu'):
    # Those of its slot: else TensorFlow would take all of the machine.
    env['CUDA_VISIBLE_DEVICES'] = ','.join(gpus.addresses)
  task = tasks_lib.Task(
    'worker', 0, host, None, tuple(spec['argv']), tuple(env.items())
  )
  try:
    _run_agent(spec, task, spec['name'], folder, host)
  finally:
    shutil.rmtree(folder, ignore_errors=True)
  return []


def parse_gathered(messages):
  """Returns the list of dict that the executors have sent each other.

  Args:
    messages: list of str, each {"host": str, "port": int, "images": int}.

  Raises:
    ValueError: one is anything else.
  """
  everyone = [json_lines.parse_object(message) or {} for message in messages]
  for each, message in zip(everyone, messages, strict=True):
    host, port, images = (each.get(k) for k in ('host', 'port', 'images'))
    is_good = (
      isinstance(host, str)
      and re.fullmatch(r'[\w.:\[\]-]+', host)
      and type(port) is int
      and 1 <= port <= 65535
      and type(images) is int
      and images >= 0
    )
    if not is_good:
      raise ValueError(f'{message[:200]!r} is no host and port')
  return everyone


def find_executor_pid():
  """Returns the pid of the JVM that this Python process works for, or None."""
  parent = os.getppid()
  with contextlib.suppress(OSError, ValueError, IndexError):
    with open(f'/proc/{parent}/cmdline', 'rb') as file:
      is_daemon = b'pyspark.daemon' in file.read()
    if not is_daemon:
      return parent
    with open(f'/proc/{parent}/stat', encoding='utf-8') as file:
      return int(file.read().rpartition(')')[2].split()[1])
  return None


def is_alive(pid):
  """Whether there is such a process, and not its zombie alone."""
  try:
    with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
      return file.read().rpartition(')')[2].split()[0] not in 'ZX'
  except OSError:
    return False


def _run_agent(spec, task, name, folder, host):
  """Runs the agent to its end; its stdin ends with us.

  Raises:
    RuntimeError: it has failed.
  """
  for_agent = {
    'task': dataclasses.asdict(task),
    'name': name,
    'folder': folder,
    'executor': host,
    'executor_pid': find_executor_pid(),
    'lock': spec.get('lock'),
    **{key: spec[key] for key in ('attempt', 'driver', 'secret')},
  }
  package = os.path.dirname(os.path.abspath(__file__))
  paths = [os.path.dirname(package), os.environ.get('PYTHONPATH')]
  env = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(_SECRETS_OF_SPARK)
    # Who is who is ours to say, and not what the executor's host was told.
    and name not in task_environment.NAMES
  }
  env['PYTHONPATH'] = os.pathsep.join(path for path in paths if path)
  agent = subprocess.Popen(
    [sys.executable, '-m', 'distmnist.spark_task'],
    env=env,
    stdin=subprocess.PIPE,
    stdout=subprocess.DEVNULL,
    start_new_session=True,
  )
  with contextlib.suppress(BrokenPipeError):
    # Not in its argv or environment, where others may read the secret.
    agent.stdin.write(json.dumps(for_agent).encode() + b'\n')
    agent.stdin.flush()
  if code := agent.wait():
    why = f'ended with exit code {code}'
    if code == cli.LOST:
      why = 'cannot reach the driver at {}:{}'.format(*spec['driver'])
    raise RuntimeError(f'{name} ({task.address}): its agent {why}')


class Agent:
  """Runs one task as the driver says, and tells it what the task does."""

  def __init__(self, spec, stdin):
    """
    Args:
      spec: dict, see `_run_agent`.
      stdin: file descriptor; its end is the end of Spark's Python process.
    """
    task = spec['task']
    self._spec = spec
    self._task = tasks_lib.Task(
      **{**task, 'argv': tuple(task['argv']), 'env': tuple(task['env'])}
    )
    self._stdin = stdin
    self._log = task_logs.log_path(spec['folder'], self._task)
    self._log_at = 0
    self._orders = []
    self._num_stops = 0
    self._orphan_deadline = None

  def run(self):
    """Returns the exit code of the agent."""
    try:
      self._link = json_lines.connect(
        *self._spec['driver'], self._spec['secret']
      )
    except OSError as error:
      name, (host, port) = self._spec['name'], self._spec['driver']
      print(
        f'{name} cannot reach the driver at {host}:{port}: {error}',
        file=sys.stderr,
      )
      return cli.LOST
    self._link.send(
      hello=self._spec['name'],
      attempt=self._spec['attempt'],
      address=self._task.address,
      executor=self._describe_executor(),
    )
    order = self._wait_for('go')
    if 'go' in order:
      why = self._find_obstacle()
      end = {'refused': why} if why else self._run_task()
      self._link.send(**end)
      self._wait_for('leave')
    self._link.close()
    return 0

  def _find_obstacle(self):
    """Takes the lock of a trial; returns what is in the way (str), or None."""
    if not self._spec['lock']:
      return None
    path, word = self._spec['lock']
    try:
      # Open until this process ends: the trial does not outlive it.
      self._lock = open(path, encoding='utf-8')  # noqa: SIM115
      fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
      if self._lock.read() == word:
        return None
      why = 'it has another one in its place'
    except BlockingIOError:
      why = 'another sweep has it'
    except OSError as error:
      why = error.strerror
    return f'{self._describe_executor()} does not share {path}: {why}'

  def _run_task(self):
    task, number = self._task, self._spec['attempt']
    if number > 1:
      again = tasks_lib.ATTEMPT, str(number)
      task = dataclasses.replace(task, env=(*task.env, again))
    with processes.Processes(
      task.module,
      self._spec['folder'],
      os.environ,
      fork_tasks=False,
      on_tick=self._tick,
      stop_grace_secs=stop_grace.parse(task.argv),
    ) as group:
      group.start(task)
      while group.wait([task], processes.TICK_SECS):
        if group.signals or self._num_stops:
          group.stop(self._signum if self._num_stops else signal.SIGTERM)
          break
    self._send_lines(is_end=True)
    if self._num_stops or group.signals:
      return {'end': None}
    if group.failure:
      return {'end': group.failure.code}
    report = None
    logdir = tasks_lib.flag_value(task.argv, 'logdir')
    if logdir and task.name == tasks_lib.CHIEF:
      report = _read_report(os.path.expanduser(logdir))
    return {'end': 0, 'report': report}

  def _tick(self):
    """Passes on what is new, to the driver and from it."""
    self._send_lines()
    self._look()
    for order in self._orders:
      if type(order.get('stop')) is int:
        self._stop(order['stop'])
    self._orders = []
    is_orphan = (
      self._orphan_deadline and time.monotonic() > self._orphan_deadline
    )
    if not self._num_stops and (is_orphan or not self._link.is_open):
      self._stop(signal.SIGTERM)

  def _stop(self, signum):
    self._num_stops += 1
    self._signum = signum
    if self._num_stops > 1:
      # Processes.stop kills at once when another signal comes.
      os.kill(os.getpid(), signal.SIGTERM)

  def _wait_for(self, key):
    """Returns the first message with `key` or 'leave'; {} if none will come."""
    while True:
      for order in self._orders:
        if key in order or 'leave' in order:
          self._orders = []
          return order
      self._orders = []
      if not self._link.is_open or (key == 'go' and self._orphan_deadline):
        return {}
      watched = (
        [self._link]
        if self._stdin is None
        else [
          self._link,
          self._stdin,
        ]
      )
      select.select(watched, [], [])
      self._look()

  def _look(self):
    self._orders += self._link.receive()
    if self._stdin is None or not select.select([self._stdin], [], [], 0)[0]:
      return
    if os.read(self._stdin, 4096):
      return
    self._stdin = None
    self._orphan_deadline = time.monotonic() + ORPHAN_SECS
    pid = self._spec['executor_pid']
    what = self._describe_executor()
    self._link.send(
      lost=f'Spark has ended its Python process on {what}'
      if pid and is_alive(pid)
      else f'its executor, {what}, has died'
    )

  def _send_lines(self, is_end=False):
    # At most so much each time: the log is a file, and can wait.
    while self._link.is_open:
      try:
        with open(self._log, 'rb') as log:
          log.seek(self._log_at)
          data = log.read(_MAX_READ_BYTES)
      except FileNotFoundError:
        return
      cut = data.rfind(b'\n') + 1
      if len(data) == _MAX_READ_BYTES or is_end:
        cut = cut or len(data)
      if not cut:
        return
      self._log_at += cut
      self._link.send(lines=data[:cut].decode(errors='replace').splitlines())
      if not is_end:
        return

  def _describe_executor(self):
    pid = self._spec['executor_pid']
    return self._spec['executor'] + (f' (pid {pid})' if pid else '')


def _read_report(logdir):
  try:
    # As written by distmnist.report; a logdir on another file system has none.
    with open(os.path.join(logdir, 'report.json'), encoding='utf-8') as file:
      return json_lines.parse_object(file.read(json_lines.MAX_MESSAGE_BYTES))
  except OSError:
    return None


def main():
  """Runs the agent of the spec on stdin; returns its exit code."""
  line = b''
  while not line.endswith(b'\n'):
    data = os.read(0, 1 << 16)
    if not data:
      return 0
    line += data
  spec = json.loads(line)
  try:
    return Agent(spec, 0).run()
  finally:
    shutil.rmtree(spec['folder'], ignore_errors=True)


if __name__ == '__main__':
  sys.exit(main())
