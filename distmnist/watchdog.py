"""Nobody waits in silence, and nobody works beside the others.

Each task of a cluster writes its row on the board (board.py) once a second:
who it is, the flags it was started with, how many steps it has made. So a
task finds out

  at the start   that it was given other hosts or flags than the others, that
                 another process is the same task, that a stranger answers on
                 the address of a ps;
  later          who is silent when a step does not end: a task that was
                 killed or cut off does not answer, one that is suspended
                 answers but does not write any more.
"""

import os
import queue
import socket
import threading
import time

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import board as board_lib
from distmnist import checkpoints, cli, console, tasks
from distmnist import cluster as cluster_lib

_STALL_WARN_SECS = flags.DEFINE_float(
  'stall_warn_secs',
  10,
  'Say whom a task waits for when a step takes longer, in seconds.',
  lower_bound=0.1,
)
_STALL_FAIL_SECS = flags.DEFINE_float(
  'stall_fail_secs',
  600,
  'End with an error when a step takes longer, in seconds.',
  lower_bound=0.1,
)

# What each task may have of its own; in all else they must agree.
_OWN_FLAGS = {
  'allow_soft_placement',
  'continuous_timeout_secs',
  'data_dir',
  'download_only',
  'early_stopping_patience',
  'end_timeout_secs',
  'help',
  'helpfull',
  'inter_op_parallelism_threads',
  'intra_op_parallelism_threads',
  'job_name',
  'keep_checkpoints',
  'log_device_placement',
  'log_secs',
  'logdir',
  'num_gpus',
  'print_cluster',
  'resume',
  'save_secs',
  'save_steps',
  'stall_fail_secs',
  'stall_warn_secs',
  'start_timeout_secs',
  'summary_steps',
  'task_index',
  'trace_steps',
  'validation_steps',
}
_HOSTS = 'ps_hosts', 'worker_hosts'

_BEAT_SECS = 1.0
# No row for so long: not a slow beat any more, even on a busy machine.
_SILENT_SECS = 5.0
# Who is alive is seen to beat within so many looks, three seconds. Looks and
# not seconds, which pass also where we are not given the CPU to look.
_NUM_BEAT_LOOKS = 15
_BEAT_LOOK_SECS = 0.2
_LOOK_SECS = 0.05


def from_flags(cluster, server, stop, say):
  """Returns the Watchdog of this task, which has not checked in yet."""
  return Watchdog(
    cluster,
    server,
    settings_from_flags(cluster),
    _STALL_WARN_SECS.value,
    _STALL_FAIL_SECS.value,
    stop,
    say,
  )


def settings_from_flags(cluster):
  """Returns {flag: value} of this task, what all must agree on.

  Of a ps that is its hosts alone: it needs no other flags.
  """
  settings = {
    flag.name: flag.value
    for flag in checkpoints.our_flags()
    if flag.name not in _OWN_FLAGS and cluster.job_name == 'worker'
  }
  return settings | {name: ','.join(getattr(cluster, name)) for name in _HOSTS}


class Watchdog:
  """This task's row, and its eye on the rows of the others.

  Attributes:
    warn_secs: float, after so long one says whom one waits for.
    fail_secs: float, after so long one gives it up.
  """

  def __init__(
    self, cluster, server, settings, warn_secs, fail_secs, stop, say
  ):
    """
    Args:
      cluster: cluster.Cluster.
      server: tf.train.Server, or None for one process: nobody to watch.
      settings: {flag: value}, what all tasks must agree on.
      warn_secs: float, after so long a wait is spoken of.
      fail_secs: float, after so long it is given up.
      stop: preemption.StopRequest, asked to give up in the end.
      say: callable that prints a line.
    """
    self.warn_secs = warn_secs
    self.fail_secs = fail_secs
    self._cluster = cluster
    self._stop = stop
    self._say = say
    self._others = cluster.addresses('ps') | cluster.addresses('worker')
    self._others.pop(cluster.name, None)
    self._row = {
      'settings': settings,
      'life': os.urandom(8).hex(),
      'host': socket.gethostname(),
      'pid': os.getpid(),
      'beat': 0,
      'steps': 0,
    }
    self._rows = {}
    self._last_change = {}  # Name: when we saw its row come or change.
    self._have_beaten = set()  # Names whose row we saw change.
    self._last_answer = time.monotonic()
    self._step_start = None
    self._is_closed = threading.Event()
    self._board = board_lib.Board(cluster, server) if server else None

  @property
  def life(self):
    """str, another one in each process."""
    return self._row['life']

  def find_life(self, name):
    """Returns the `life` of the task called `name`, or None."""
    return self._rows.get(name, {}).get('life')

  def check_in(self):
    """Meets the others at the board, waits for the ps, begins to beat.

    Does nothing when called again.

    Raises:
      cli.RunError: no task of ours answers where the board should be, a ps
        does not check in, or this task does not fit the others.
    """
    if not self._board or self._row['beat']:
      return
    limit = self._cluster.start_timeout_secs
    deadline = time.monotonic() + limit
    wait = console.Wait(limit, self._say)
    if self._ask(self._board.read, deadline).get(self._cluster.name):
      self._refuse_to_be_a_twin(deadline)
    while True:
      self._row['beat'] += 1
      self._ask(lambda: self._board.write(self._row), deadline)
      missing = {
        name: self._others[name]
        for name in self._find_expected()
        if name not in self._rows
      }
      if not missing:
        break
      names = cluster_lib.list_tasks(missing)
      if wait.is_over(f'for a sign of {names}'):
        raise cli.RunError(
          f'no sign of {names} within {limit:g} s, though the port answers: '
          'another program may have it, or the tasks were given different '
          '--ps_hosts'
        )
      self._stop.wait(_LOOK_SECS)
    self._compare(deadline)
    for work in self._keep_beating, self._watch:
      threading.Thread(target=work, daemon=True).start()

  def _find_expected(self):
    """The names of those without whom this task does not begin."""
    if self._cluster.job_name == 'ps':
      return []
    names = self._cluster.addresses('ps') or [tasks.CHIEF]
    return [name for name in names if name in self._others]

  def compare_with_chief(self):
    """To be called by a worker once it has seen that the chief is there.

    Raises:
      cli.RunError: it was started differently.
    """
    deadline = time.monotonic() + self._cluster.start_timeout_secs
    self._ask(self._board.read, deadline)
    self._compare(deadline)

  def close(self):
    """Ends the beats; from here on nothing is watched."""
    self._is_closed.set()

  def step_begins(self):
    self._step_start = time.monotonic()

  def step_ends(self, is_done=True):
    """To be told of a step that failed, too: then nothing is counted."""
    self._step_start = None
    self._row['steps'] += is_done

  def secs_silent(self, name):
    """Returns for how many seconds no beat of task `name` came.

    None if it is not known: no row yet, or the board cannot be read.
    """
    now = time.monotonic()
    if name not in self._last_change or now - self._last_answer > _SILENT_SECS:
      return None
    return now - self._last_change[name]

  def _ask(self, ask, deadline):
    """Returns the rows that `ask()` returns; it may be silent for ever.

    Raises:
      cli.RunError: says what is wrong at the board's address.
    """
    name, address = self._cluster.meeting_name, self._cluster.meeting_address
    answers = queue.Queue()

    def call():
      while True:
        try:
          answers.put(ask())
        except (tf.errors.UnavailableError, tf.errors.AbortedError) as error:
          # On its way up or down; a program that is none of ours does it, too.
          if time.monotonic() < deadline:
            self._is_closed.wait(_LOOK_SECS)
            continue
          answers.put(error)
        except tf.errors.OpError as error:
          answers.put(error)
        return

    threading.Thread(target=call, daemon=True).start()
    wait = console.Wait(deadline + 1 - time.monotonic(), self._say)
    while answers.empty():
      if wait.is_over(f'for an answer of {name} at {address}'):
        raise cli.RunError(
          f'{name} at {address} accepts connections but does not answer: it '
          'is suspended, or another program has that port'
        )
      self._stop.wait(0.01)
    answer = answers.get()
    if isinstance(answer, tf.errors.OpError):
      raise cli.RunError(
        f'what answers at {address} is not {name} of this cluster '
        f'({cluster_lib.explain(answer)}): give all tasks the same '
        '--ps_hosts and --worker_hosts, and see what has that port'
      ) from answer
    self._notice(answer)
    return answer

  def _notice(self, rows):
    """Takes in what was read; rows of ended tasks stay on the board."""
    self._last_answer = time.monotonic()
    for name, row in rows.items():
      old = self._rows.get(name)
      if old is None:
        self._last_change[name] = self._last_answer
      elif (old['life'], old['beat']) != (row['life'], row['beat']):
        self._last_change[name] = self._last_answer
        self._have_beaten.add(name)
    self._rows = rows

  def _wait_for_beat(self, name, deadline):
    """Returns whether task `name` is seen to beat within some seconds."""
    for _ in range(_NUM_BEAT_LOOKS):
      if name in self._have_beaten:
        break
      self._stop.wait(_BEAT_LOOK_SECS)
      self._ask(self._board.read, deadline)
    return name in self._have_beaten

  def _refuse_to_be_a_twin(self, deadline):
    """What has a row under our name has ended, or must be left alone.

    Raises:
      cli.RunError: it is alive.
    """
    name = self._cluster.name
    twin = self._rows[name]
    # On this host it would have the port, and we could not serve.
    if twin['host'] != self._row['host'] and self._wait_for_beat(
      name, deadline
    ):
      raise cli.RunError(
        f'{name} runs already, as process {twin["pid"]} of host '
        f'{twin["host"]}: give this one another --task_index, or stop that one'
      )

  def _compare(self, deadline):
    """Compares our settings with those of living tasks, before we work.

    The hosts with those of the ps, and a worker all with those of the chief.

    Raises:
      cli.RunError: names the flags and both values.
    """
    mine = self._row['settings']
    for name, row in list(self._rows.items()):
      theirs = row['settings']
      if name == self._cluster.name:
        continue
      if name.startswith('ps'):
        names = mine.keys() & theirs.keys()
      elif name == tasks.CHIEF and self._cluster.job_name == 'worker':
        names = mine.keys() | theirs.keys()
      else:
        continue  # It finds out by itself.
      different = [
        f'--{flag}={_show(theirs.get(flag))} there but '
        f'--{flag}={_show(mine.get(flag))} here'
        for flag in sorted(names)
        if theirs.get(flag) != mine.get(flag)
      ]
      if different and self._wait_for_beat(name, deadline):
        raise cli.RunError(
          f'{name} at {self._others.get(name, "another host")} was started '
          f'differently: {", ".join(different)}; give all tasks the same'
        )

  def _keep_beating(self):
    while not self._is_closed.wait(_BEAT_SECS):
      self._row['beat'] += 1
      try:
        self._notice(self._board.write(self._row))
        # The chief may have come after us.
        if not self._row['steps'] and self._cluster.job_name == 'worker':
          self._compare(time.monotonic())
      except tf.errors.OpError:
        pass  # The training meets the same error, and recovers or ends.
      except cli.RunError as error:
        self._stop.give_up(error)
        return

  def _watch(self):
    warn_secs, fail_secs = self.warn_secs, self.fail_secs
    next_secs, step_start = warn_secs, None
    while not self._is_closed.wait(min(0.25, warn_secs / 2)):
      if step_start != self._step_start:
        step_start, next_secs = self._step_start, warn_secs
      if step_start is None:
        continue
      secs = time.monotonic() - step_start
      if secs < min(next_secs, fail_secs):
        continue
      text = f'no step for {secs:.0f} s: {self._describe_others()}'
      if step_start != self._step_start:
        continue  # It has ended while we asked around.
      if secs >= fail_secs:
        self._stop.give_up(
          cli.LostError(f'{text}; given up (--stall_fail_secs={fail_secs:g})')
        )
        return
      self._say(text)
      next_secs = secs + warn_secs

  def _describe_others(self):
    """Says who is silent: first of all a ps, which each step needs."""
    silent = cluster_lib.find_silent(self._others)
    found = {}
    for name, address in self._others.items():
      place = f'{name} at {address}'
      secs = self.secs_silent(name)
      if name == self._cluster.meeting_name:
        secs = time.monotonic() - self._last_answer
      if name in silent:
        found[name] = f'{place}, which does not answer (killed, or cut off)'
      elif secs and secs > _SILENT_SECS:
        found[name] = f'{place}, silent for {secs:.0f} s (suspended?)'
    for job in 'ps', 'worker':
      texts = [text for name, text in found.items() if name.startswith(job)]
      if texts:
        return f'waiting for {", ".join(texts)}'
    return 'all tasks answer, so one of them works slowly'


def _show(value):
  return '(not given)' if value is None else value


class WatchdogHook(tf.train.SessionRunHook):
  """Tells the watchdog when a step begins and ends."""

  def __init__(self, watchdog):
    self._watchdog = watchdog

  def after_create_session(self, session, coord):
    self._watchdog.step_ends(is_done=False)

  def before_run(self, run_context):
    self._watchdog.step_begins()

  def after_run(self, run_context, run_values):
    self._watchdog.step_ends()

  def end(self, session):
    self._watchdog.step_ends(is_done=False)


class LogdirHook(tf.train.SessionRunHook):
  """Sees whether this worker shares the folder of the chief.

  The chief alone writes and reads checkpoints, so nothing is lost where it
  does not; but graphs, reports and `evaluate` are looked for there.
  """

  def __init__(self, watchdog, logdir, say):
    self._watchdog = watchdog
    self._logdir = logdir
    self._say = say
    self._is_known = False

  def after_create_session(self, session, coord):
    if not self._is_known:
      self._is_known = True
      life = self._watchdog.find_life(tasks.CHIEF)
      if life and not checkpoints.is_signed(self._logdir, life):
        self._say(
          f'--logdir={self._logdir} is not the folder that worker 0 has under '
          'this name: the checkpoints are there, the summaries of this worker '
          'here; give all workers a folder that they share'
        )
