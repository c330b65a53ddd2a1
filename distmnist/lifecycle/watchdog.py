"""The watch over the other tasks: that they fit this one, and are alive.

By their heartbeats (heartbeats.py) a task finds out

  at the start   that it was given other hosts or flags than the others, that
                 another process is the same task;
  later          who is silent when something does not end: a task that was
                 killed or cut off does not answer, one that is suspended
                 answers but does not beat any more.

So no task waits in silence, and none works beside the others.
"""

import functools
import threading
import time

from absl import flags

from distmnist.cluster import errors, probing
from distmnist.common import cli, console
from distmnist.common.names import CHIEF
from distmnist.lifecycle import consistency, heartbeats, stalls

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

# A task reads the beats of others only once it has waited so long itself.
_WAIT_SECS = 2.0


def from_flags(cluster, server, stop):
  """Returns the Watchdog of this task, which has not checked in yet."""
  return Watchdog(
    cluster,
    server,
    consistency.settings_from_flags(cluster),
    _STALL_WARN_SECS.value,
    _STALL_FAIL_SECS.value,
    stop,
  )


class Watchdog:
  """This task's heartbeats, and its eye on the others.

  Attributes:
    warn_secs: float, after so long a task says for whom it waits.
    fail_secs: float, after so long it gives up.
    stalls: stalls.Stalls, to be told what this task is doing.
  """

  def __init__(self, cluster, server, settings, warn_secs, fail_secs, stop):
    """
    Args:
      cluster: cluster.Cluster.
      server: tf.train.Server, or None for one process: nobody to watch.
      settings: {name: value}, what all tasks must agree on.
      warn_secs: float, after so long a wait is spoken of.
      fail_secs: float, after so long it is given up.
      stop: stop_request.StopRequest, asked to give up in the end.
    """
    self.warn_secs = warn_secs
    self.fail_secs = fail_secs
    self._cluster = cluster
    self._stop = stop
    self._others = cluster.addresses('ps') | cluster.addresses('worker')
    self._others.pop(cluster.name, None)
    self._settings = settings
    self._rows = {}  # Name: (row, settings), as far as they were asked for.
    self.stalls = stalls.Stalls(
      warn_secs, fail_secs, self._describe_others, stop
    )
    self._heartbeats = heartbeats.Heartbeats(
      cluster, server, settings, self.stalls, stop
    )

  @property
  def life(self):
    """str, another one in each process."""
    return self._heartbeats.life

  def find_life(self, name):
    """Returns the `life` of the task called `name`, or None."""
    row, _ = self._rows.get(name) or ({}, {})
    return row.get('life')

  def secs_silent(self, name):
    """Returns for how long task `name` is silent; see Heartbeats."""
    return self._heartbeats.secs_silent(name)

  def check_in(self):
    """Meets the others at the table, waits for the ps, begins to beat.

    Does nothing when called again.

    Raises:
      cli.RunError: no task of ours answers where the table should be, a ps
        does not check in, or this task does not fit the others.
    """
    beats = self._heartbeats
    if not beats.can_begin:
      return
    limit = self._cluster.start_timeout_secs
    deadline = time.monotonic() + limit
    wait = console.Wait(limit)
    own = self._cluster.name
    if beats.ask(lambda: beats.read_row(own), deadline):
      self._refuse_duplicate(deadline)

    def check_in():
      beats.claim()
      for name in self._find_compared():
        self._rows[name] = beats.read_row(name)

    while True:
      # Again and again: a ps that was started anew has an empty table.
      beats.ask(check_in, deadline)
      missing = {
        name: self._others[name]
        for name in self._find_expected()
        if not self._rows.get(name)
      }
      if not missing:
        break
      names = errors.list_tasks(missing)
      if wait.is_over(f'for a sign of {names}'):
        raise cli.RunError(
          f'no sign of {names} within {limit:g} s, though the port answers: '
          'another program may have it, or the tasks were given different '
          '--ps_hosts'
        )
      self._stop.wait(wait.choose_pause())
    self._compare(deadline)
    for work in (
      functools.partial(beats.keep_beating, self._look),
      functools.partial(self.stalls.watch, beats.is_closed),
    ):
      threading.Thread(target=work, daemon=True).start()

  def _find_expected(self):
    """The names of those without whom this task does not begin."""
    if self._cluster.job_name == 'ps':
      return []
    names = self._cluster.addresses('ps') or [CHIEF]
    return [name for name in names if name in self._others]

  def _find_compared(self):
    """The names of those that this task must fit, if they are there."""
    names = [*self._cluster.addresses('ps')]
    if self._cluster.job_name == 'worker':
      names.append(CHIEF)
    return [name for name in names if name in self._others]

  def compare_with_chief(self):
    """To be called by a worker once it has seen that the chief is there.

    Raises:
      cli.RunError: it was started differently.
    """
    deadline = time.monotonic() + self._cluster.start_timeout_secs
    self._heartbeats.ask(self._read_chief, deadline)
    self._compare(deadline)

  def _read_chief(self):
    self._rows[CHIEF] = self._heartbeats.read_row(CHIEF)

  def close(self):
    """Ends the beats; from here on nothing is watched."""
    self._heartbeats.is_closed.set()

  def _refuse_duplicate(self, deadline):
    """What has a row under our name has ended, or must be left alone.

    Raises:
      cli.RunError: it is alive.
    """
    name, beats = self._cluster.name, self._heartbeats
    row, _ = beats.ask(lambda: beats.read_row(name), deadline) or ({}, {})
    # In this place it would have the port, and we could not serve.
    if row.get('place') != beats.place and beats.wait_for_beat(name, deadline):
      raise cli.RunError(
        f'{name} runs already, as process {row["pid"]} of host '
        f'{row["host"]}: give this one another --task_index, or stop that one'
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
      if different and self._heartbeats.wait_for_beat(name, deadline):
        raise cli.RunError(
          f'{name} at {self._others.get(name, "another host")} was started '
          f'differently: {", ".join(different)}; give all tasks the same'
        )

  def _look(self):
    if self._cluster.job_name == 'ps' or self.stalls.secs() > _WAIT_SECS:
      self._heartbeats.read_beats()
    # The chief may have come after us.
    if not self.stalls.num_steps and CHIEF in self._find_compared():
      self._read_chief()
      # A table that is slow for a second is no reason to give up.
      self._compare(time.monotonic() + self._cluster.start_timeout_secs)

  def _describe_others(self):
    """Says who is silent: first of all a ps, which each step needs."""
    silent = probing.find_silent(self._others)
    found = {}
    for name, address in self._others.items():
      place = f'{name} at {address}'
      secs = self.secs_silent(name)
      if name == self._cluster.coordinator:
        secs = self._heartbeats.secs_without_answer()
      if name in silent:
        found[name] = f'{place}, which does not answer (killed, or cut off)'
      elif secs and secs > heartbeats.SILENT_SECS:
        found[name] = f'{place}, silent for {secs:.0f} s (suspended?)'
    for job in 'ps', 'worker':
      texts = [text for name, text in found.items() if name.startswith(job)]
      if texts:
        return f'waiting for {errors.list_some(texts)}'
    return 'all tasks answer, so one of them works slowly'
