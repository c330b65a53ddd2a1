"""Watches the other tasks: that they match this one, and are alive.

Before it works, a task checks in with the others (check_in.py). Later, when
something does not end, their heartbeats (heartbeats.py) tell it which task is
silent: a task that was killed or cut off does not answer, one that is suspended
answers but no longer beats. So no task waits in silence, and none works apart
from the others.
"""

import functools
import threading

from absl import flags

from distmnist.cluster import errors, probing
from distmnist.lifecycle import check_in, consistency, heartbeats, stalls

_STALL_WARN_SECS = flags.DEFINE_float(
  'stall_warn_secs',
  10,
  'Seconds after which a task logs what it is waiting for in a step, a save, '
  'an evaluation or at the end.',
  lower_bound=0.1,
)
_STALL_FAIL_SECS = flags.DEFINE_float(
  'stall_fail_secs',
  600,
  'Seconds after which a task fails if a step, a save, an evaluation or the '
  'end is still not over.',
  lower_bound=0.1,
)

# A task reads the others' beats only once it has itself waited this long.
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
  """Sends this task's heartbeats, and watches the others.

  Attributes:
    warn_secs: float, a task that waits this long says for whom.
    fail_secs: float, a task that waits this long gives up.
    stalls: stalls.Stalls, to be told what this task is doing.
  """

  def __init__(self, cluster, server, settings, warn_secs, fail_secs, stop):
    """
    Args:
      cluster: cluster.Cluster.
      server: tf.train.Server, or None for one process without others.
      settings: {name: value}, what all tasks must agree on.
      warn_secs: float, a wait this long is logged.
      fail_secs: float, a wait this long is given up.
      stop: stop_request.StopRequest, asked to give up after fail_secs.
    """
    self.warn_secs = warn_secs
    self.fail_secs = fail_secs
    self._cluster = cluster
    self._others = cluster.other_addresses('ps', 'worker')
    self.stalls = stalls.Stalls(
      warn_secs, fail_secs, self._describe_others, stop
    )
    self._heartbeats = heartbeats.Heartbeats(
      cluster, server, settings, self.stalls, stop
    )
    self._check_in = check_in.CheckIn(cluster, self._heartbeats, settings, stop)

  @property
  def life(self):
    """str, different in each process."""
    return self._heartbeats.life

  def find_life(self, name):
    """Returns the `life` of the task called `name`, or None."""
    return self._check_in.find_life(name)

  def secs_silent(self, name):
    """Returns how long task `name` has been silent; see Heartbeats."""
    return self._heartbeats.secs_silent(name)

  def may_be_replaced(self):
    """Whether another process may have taken our place; see Heartbeats."""
    return self._heartbeats.may_be_replaced()

  def check_in(self):
    """Meets the others at the table, waits for the ps, begins to beat.

    Does nothing when called again.

    Raises:
      cli.RunError: see CheckIn.run.
    """
    beats = self._heartbeats
    if not beats.can_begin:
      return
    self._check_in.run()
    for work in (
      functools.partial(beats.keep_beating, self._look),
      functools.partial(self.stalls.watch, beats.is_closed),
    ):
      threading.Thread(target=work, daemon=True).start()

  def compare_with_chief(self):
    """To be called by a worker once it has seen that the chief is up.

    Raises:
      cli.RunError: the chief was started differently.
    """
    self._check_in.compare_with_chief()

  def close(self):
    """Ends the beats; from here on nothing is watched."""
    self._heartbeats.is_closed.set()

  def _look(self):
    if self._cluster.job_name == 'ps' or self.stalls.secs() > _WAIT_SECS:
      self._heartbeats.read_beats()
    if not self.stalls.num_steps:
      self._check_in.look_for_chief()

  def _describe_others(self):
    """Names the silent ps, as each step needs them, or else the workers."""
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
