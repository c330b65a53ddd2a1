"""Nobody waits in silence, and nobody works beside the others.

Each task of a cluster has a row on the board (board.py), and beats there once
a second. So a task finds out

  at the start   that it was given other hosts or flags than the others, that
                 another process is the same task, that a stranger answers on
                 the address of a ps;
  later          who is silent when something does not end: a task that was
                 killed or cut off does not answer, one that is suspended
                 answers but does not beat any more;
  after a pause  that another process has taken its place meanwhile: it ends at
                 once, and saves nothing.
"""

import functools
import os
import pathlib
import queue
import socket
import threading
import time

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import board as board_lib
from distmnist import (
  cli,
  consistency,
  console,
  preemption,
  probing,
  stalls,
  tasks,
)
from distmnist import cluster as cluster_lib

_STALL_WARN_SECS = flags.DEFINE_float(
  'stall_warn_secs',
  10,
  'Say whom a task waits for when a step, a save, an evaluation or the end '
  'takes longer, in seconds.',
  lower_bound=0.1,
)
_STALL_FAIL_SECS = flags.DEFINE_float(
  'stall_fail_secs',
  600,
  'End with an error when a step, a save, an evaluation or the end takes '
  'longer, in seconds.',
  lower_bound=0.1,
)

_BEAT_SECS = 1.0
# No beat for so long: not a slow one any more, even on a busy machine.
_SILENT_SECS = 5.0
# A task reads the beats of others only once it has waited so long itself.
_READ_SECS = 2.0
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
    consistency.settings_from_flags(cluster),
    _STALL_WARN_SECS.value,
    _STALL_FAIL_SECS.value,
    stop,
    say,
  )


def find_place():
  """Returns a str that two processes share if they cannot share a port.

  Not the name of the host, which clones and containers have in common.
  """
  try:
    boot = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text().strip()
    return f'{boot} {os.stat("/proc/self/ns/net").st_ino}'
  except OSError:
    return socket.gethostname()


class Watchdog:
  """This task's row, and its eye on the others.

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
      settings: {name: value}, what all tasks must agree on.
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
    self._settings = settings
    self._life = int.from_bytes(os.urandom(8), 'big') >> 1
    self._num_beats = 0
    self._row = {
      'life': self.life,
      'host': socket.gethostname(),
      'place': find_place(),
      'pid': os.getpid(),
    }
    self._rows = {}  # Name: (row, settings), as far as they were asked for.
    self._beats = {}
    self._last_change = {}  # Name: when we saw its beat come or change.
    self._have_beaten = set()  # Names whose beat we saw change.
    self._last_answer = self._last_read = time.monotonic()
    self._stalls = stalls.Stalls(
      warn_secs, fail_secs, self._describe_others, stop, say
    )
    self._is_closed = threading.Event()
    self._board = board_lib.Board(cluster, server) if server else None

  @property
  def life(self):
    """str, another one in each process."""
    return f'{self._life:016x}'

  def find_life(self, name):
    """Returns the `life` of the task called `name`, or None."""
    row, _ = self._rows.get(name) or ({}, {})
    return row.get('life')

  def check_in(self):
    """Meets the others at the board, waits for the ps, begins to beat.

    Does nothing when called again.

    Raises:
      cli.RunError: no task of ours answers where the board should be, a ps
        does not check in, or this task does not fit the others.
    """
    if not self._board or self._num_beats:
      return
    limit = self._cluster.start_timeout_secs
    deadline = time.monotonic() + limit
    wait = console.Wait(limit, self._say)
    own = self._cluster.name
    if self._ask(lambda: self._board.read(own), deadline):
      self._refuse_to_be_a_twin(deadline)
    self._num_beats = 1

    def check_in():
      self._board.write(self._row, self._settings)
      self._board.claim(self._beat())
      for name in self._find_compared():
        self._rows[name] = self._board.read(name)

    while True:
      # Again and again: a ps that was started anew has an empty board.
      self._ask(check_in, deadline)
      missing = {
        name: self._others[name]
        for name in self._find_expected()
        if not self._rows.get(name)
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
      self._stop.wait(wait.choose_pause())
    self._compare(deadline)
    watch = functools.partial(self._stalls.watch, self._is_closed)
    for work in self._keep_beating, watch:
      threading.Thread(target=work, daemon=True).start()

  def _beat(self):
    return board_lib.Beat(self._life, self._num_beats, self._stalls.num_steps)

  def _find_expected(self):
    """The names of those without whom this task does not begin."""
    if self._cluster.job_name == 'ps':
      return []
    names = self._cluster.addresses('ps') or [tasks.CHIEF]
    return [name for name in names if name in self._others]

  def _find_compared(self):
    """The names of those that this task must fit, if they are there."""
    names = [*self._cluster.addresses('ps')]
    if self._cluster.job_name == 'worker':
      names.append(tasks.CHIEF)
    return [name for name in names if name in self._others]

  def compare_with_chief(self):
    """To be called by a worker once it has seen that the chief is there.

    Raises:
      cli.RunError: it was started differently.
    """
    deadline = time.monotonic() + self._cluster.start_timeout_secs
    self._ask(self._read_chief, deadline)
    self._compare(deadline)

  def _read_chief(self):
    self._rows[tasks.CHIEF] = self._board.read(tasks.CHIEF)

  def close(self):
    """Ends the beats; from here on nothing is watched."""
    self._is_closed.set()

  @property
  def stalls(self):
    """stalls.Stalls, to be told what this task is doing."""
    return self._stalls

  def secs_silent(self, name):
    """Returns for how many seconds no beat of task `name` came.

    None if it is not known: no beat yet, or the board was not read of late.
    """
    now = time.monotonic()
    if name not in self._last_change or now - self._last_read > _SILENT_SECS:
      return None
    return now - self._last_change[name]

  def _ask(self, ask, deadline):
    """Returns what `ask()` returns; it may be silent for ever.

    Raises:
      cli.RunError: says what is wrong at the board's address.
    """
    name, address = self._cluster.meeting_name, self._cluster.meeting_address
    answers = queue.Queue()
    # On its way up or down; a program that is none of ours does it, too.
    passing = (
      tf.errors.UnavailableError,
      tf.errors.AbortedError,
      tf.errors.DeadlineExceededError,
    )

    def call():
      while True:
        try:
          answers.put(ask())
        except passing as error:
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
    self._last_answer = time.monotonic()
    return answer

  def _read_beats(self):
    """Takes in the beats of all; those of ended tasks stay on the board."""
    beats = self._board.read_beats()
    self._last_answer = self._last_read = now = time.monotonic()
    for name, beat in beats.items():
      old = self._beats.get(name)
      if old is None:
        self._last_change[name] = now
      elif old != beat:
        self._last_change[name] = now
        self._have_beaten.add(name)
    self._beats = beats

  def _wait_for_beat(self, name, deadline):
    """Returns whether task `name` is seen to beat within some seconds."""
    for _ in range(_NUM_BEAT_LOOKS):
      if name in self._have_beaten:
        break
      self._stop.wait(_BEAT_LOOK_SECS)
      self._ask(self._read_beats, deadline)
    return name in self._have_beaten

  def _refuse_to_be_a_twin(self, deadline):
    """What has a row under our name has ended, or must be left alone.

    Raises:
      cli.RunError: it is alive.
    """
    name = self._cluster.name
    twin, _ = self._ask(lambda: self._board.read(name), deadline) or ({}, {})
    # In this place it would have the port, and we could not serve.
    if twin.get('place') != self._row['place'] and self._wait_for_beat(
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
      cli.RunError: names what differs and both values.
    """
    for name in self._find_compared():
      _, settings = self._rows.get(name) or ({}, self._settings)
      different = consistency.find_differences(
        self._settings, settings, is_ps=name.startswith('ps')
      )
      if different and self._wait_for_beat(name, deadline):
        raise cli.RunError(
          f'{name} at {self._others.get(name, "another host")} was started '
          f'differently: {", ".join(different)}; give all tasks the same'
        )

  def _keep_beating(self):
    while not self._is_closed.wait(_BEAT_SECS):
      try:
        self._beat_once()
      except tf.errors.OpError:
        pass  # The training meets the same error, and recovers or ends.
      except (cli.RunError, preemption.StoppedError) as error:
        if isinstance(error, cli.RunError):
          self._stop.give_up(error)
        return
      except Exception as error:  # Who does not beat is taken for dead.
        self._say(f'a beat failed, and the next is tried: {error!r}')

  def _beat_once(self):
    self._num_beats += 1
    before = self._board.beat(self._beat())
    self._last_answer = time.monotonic()
    if before.life == -1:  # The board is new: its task was started anew.
      self._board.write(self._row, self._settings)
    elif before.life != self._life and not self._is_closed.is_set():
      self._stop.end_at_once(
        cli.LostError(
          f'another process has become {self._cluster.name} while this one '
          'stood still or was cut off: nothing is saved here'
        )
      )
    if self._cluster.job_name == 'ps' or self._stalls.secs() > _READ_SECS:
      self._read_beats()
    # The chief may have come after us.
    if not self._stalls.num_steps and tasks.CHIEF in self._find_compared():
      self._read_chief()
      # A board that is slow for a second is no reason to give up.
      self._compare(time.monotonic() + self._cluster.start_timeout_secs)

  def _describe_others(self):
    """Says who is silent: first of all a ps, which each step needs."""
    silent = probing.find_silent(self._others)
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
        return f'waiting for {cluster_lib.list_some(texts)}'
    return 'all tasks answer, so one of them works slowly'
