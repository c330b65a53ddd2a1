"""A cluster inside the test's own process: real servers, a thread a worker."""

import contextlib
import socket
import threading
import time

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.cluster import cluster, stop_request
from distmnist.cluster import server as server_lib
from distmnist.common import ports
from distmnist.lifecycle import liveness, session, stalls
from distmnist.lifecycle import task as task_lib
from distmnist.logdir import restart
from distmnist.transport import strategy

# A worker that waits for ever fails the test after this long.
DEADLINE_SECS = 120


def start_thread(work):
  """Returns the started thread of work(), with the list `errors` it raised."""
  errors = []

  def run():
    try:
      work()
    except Exception as error:
      errors.append(error)

  thread = threading.Thread(target=run)
  thread.errors = errors
  thread.start()
  return thread


class NoStop:
  """Stands for stop_request.StopRequest where no signal comes."""

  is_requested = False
  secs_left = 0.0
  error = None
  exit_code = 0
  _unsaved = None

  note_unsaved = stop_request.StopRequest.note_unsaved
  find_unsaved = stop_request.StopRequest.find_unsaved

  def end(self):
    return self.exit_code

  def on_request(self, callback):
    pass

  def listen_again(self):
    pass

  def give_up(self, error):
    raise error

  def wait(self, secs):
    time.sleep(secs)


class AskedStop(NoStop):
  """Stands for stop_request.StopRequest; the test asks for the stop."""

  secs_left = 60.0

  def __init__(self):
    self._callbacks = []

  def on_request(self, callback):
    self._callbacks.append(callback)

  def request(self):
    """Returns the started threads of the callbacks."""
    self.is_requested = True
    threads = [
      threading.Thread(target=callback, daemon=True)
      for callback in self._callbacks
    ]
    for thread in threads:
      thread.start()
    return threads


class KeepingStop(NoStop):
  """Keeps the error that `give_up` is given.

  Attributes:
    given_up: threading.Event.
    error: of type Exception, once `given_up` is set.
  """

  def __init__(self):
    self.given_up = threading.Event()

  def give_up(self, error):
    self.error = error
    self.given_up.set()


class AtEnd(tf.train.SessionRunHook):
  """Calls `callback(session)` when a loop has ended without an error."""

  def __init__(self, callback):
    self._callback = callback

  def end(self, session):
    self._callback(session)


class Countdown:
  """Batches for fused_steps.Steps that are counted and have no images.

  All workers may count global steps at once, and none may pass the last.
  """

  def __init__(self, last_step, num_workers=1, steps_per_update=1):
    self._last_step = last_step
    self._steps_of_all = steps_per_update / num_workers
    self.step = 0

  @property
  def left(self):
    return (self._last_step - self.step) * self._steps_of_all

  until_end = left

  def make_feed(self, num_batches):
    del num_batches
    return {}

  make_blank_feed = make_feed

  def note(self, global_steps):
    self.step = global_steps[-1]


def make_stalls():
  """Returns stalls.Stalls that do not watch."""
  return stalls.Stalls(60, 60, NoStop())


class NoWatchdog:
  """Stands for watchdog.Watchdog where the test watches."""

  warn_secs = 60.0

  def check_in(self):
    pass

  def compare_with_chief(self):
    pass

  def secs_silent(self, name):
    return 0.0

  def is_beating(self, name):
    return False

  def find_quiet(self, job_name):
    return {}

  def may_be_replaced(self):
    return False


@contextlib.contextmanager
def hold_ports(num_ports):
  """Yields ports, a list of int, that are given to no other by chance.

  A server that asks for one of them gets it; see ports.hold_ports.
  """
  with contextlib.ExitStack() as stack:
    held = [stack.enter_context(s) for s in ports.hold_ports(num_ports)]
    yield [s.getsockname()[1] for s in held]


def pick_ports(num_ports):
  """Returns ports that were free a moment ago, a list of int."""
  sockets = [socket.socket() for _ in range(num_ports)]
  for s in sockets:
    s.bind(('127.0.0.1', 0))
  found = [s.getsockname()[1] for s in sockets]
  for s in sockets:
    s.close()
  return found


def make_config():
  """Returns the program's own ConfigProto, with few threads."""
  if not flags.FLAGS.is_parsed():
    flags.FLAGS(['test'])
  config = server_lib.make_server_config()
  config.intra_op_parallelism_threads = 1
  config.inter_op_parallelism_threads = 2
  return config


def make_task(member, server=None):
  """Returns the task.Task of a cluster.Cluster; the test watches and stops.

  Args:
    server: tf.train.Server, or None for one process.
  """
  made = task_lib.Task(member, NoStop())
  made.server_config = make_config()
  made.server, made.watchdog = server, NoWatchdog()
  return made


def start_server(member):
  """Returns the tf.train.Server of a cluster.Cluster."""
  return tf.train.Server(
    member.spec(),
    member.job_name,
    member.task_index,
    config=make_config(),
  )


class InProcessCluster:
  """Servers of `num_ps` ps and `num_workers` workers on free ports."""

  def __init__(self, num_ps, num_workers):
    self.num_workers = num_workers
    with hold_ports(num_ps + num_workers) as found:
      hosts = [f'127.0.0.1:{port}' for port in found]
      self._hosts = tuple(hosts[:num_ps]), tuple(hosts[num_ps:])
      self.ps_servers = [start_server(self.ps(i)) for i in range(num_ps)]
      self.servers = [start_server(self.worker(i)) for i in range(num_workers)]
    self._servers = self.ps_servers + self.servers

  def ps(self, index):
    """Returns the cluster.Cluster of ps `index`."""
    return self._member('ps', index)

  def worker(self, index):
    """Returns the cluster.Cluster of worker `index`."""
    return self._member('worker', index)

  def _member(self, job_name, index):
    return cluster.make_cluster(
      *self._hosts, job_name, index, start_timeout_secs=60
    )

  def session_config(self, index):
    member = self.worker(index)
    return member.session_config(make_config(), not member.num_ps)

  def make_session(self, index, hooks, logdir=None):
    """Returns the MonitoredSession that the program would make."""
    task = make_task(self.worker(index), self.servers[index])
    scaffold = session.ClusterScaffold(
      task,
      restart.Restart(logdir, 'auto', 10**9),
      tf.train.Saver(),
      hooks,
    )
    member = strategy.find_member(hooks)
    find_loss = member and member.find_loss
    hooks = [liveness.LivenessHook(task, find_loss=find_loss), *hooks]
    return session.make_session(task, scaffold, hooks)

  def run_workers(self, work):
    """Runs work(index) in a thread a worker; returns the list of results.

    Raises:
      the first worker's exception, or TimeoutError.
    """
    results, errors = [None] * self.num_workers, []

    def run(index):
      try:
        with tf.Graph().as_default():
          results[index] = work(index)
      except BaseException as error:
        errors.append(error)

    threads = [
      threading.Thread(target=run, args=(i,), daemon=True)
      for i in range(self.num_workers)
    ]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join(DEADLINE_SECS)
      if errors:
        raise errors[0]
      if thread.is_alive():
        raise TimeoutError(f'a worker still ran after {DEADLINE_SECS} s')
    return results

  def reset(self):
    """Takes every variable and queue away, for the next test."""
    for server in self._servers:
      tf.Session.reset(server.target)
