"""The watch over the other tasks: that they fit this one, and are alive.

Before it works a task checks in with the others (check_in.py). Later it finds
out by their heartbeats (heartbeats.py) which task is silent when something does
not end: a task that was killed or cut off does not answer, one that is
suspended answers but does not beat any more. So no task waits in silence, and
none works beside the others.
"""

import functools
import threading

from absl import flags

from distmnist.cluster import errors, probing
from distmnist.lifecycle import check_in, consistency, heartbeats, stalls

_STALL_WARN_SECS = flags.DEFINE_float(
  'stall_warn_secs',
  10,
  'Seconds after which a task says whom it waits for in a step, a save, '
  'an evaluation or the end.',
  lower_bound=0.1,
)
_STALL_FAIL_SECS = flags.DEFINE_float(
  'stall_fail_secs',
  600,
  'Seconds after which a step, a save, an evaluation or the end that is '
  'not over ends the task with an error.',
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
      server: tf.train.Server, or None for one process: no others.
      settings: {name: value}, what all tasks must agree on.
      warn_secs: float, after so long a wait is spoken of.
      fail_secs: float, after so long it is given up.
      stop: stop_request.StopRequest, asked to give up in the end.
    """
    self.warn_secs = warn_secs
    self.fail_secs = fail_secs
    self._cluster = cluster
    self._others = cluster.addresses('ps') | cluster.addresses('worker')
    self._others.pop(cluster.name, None)
    self.stalls = stalls.Stalls(
      warn_secs, fail_secs, self._describe_others, stop
    )
    self._heartbeats = heartbeats.Heartbeats(
      cluster, server, settings, self.stalls, stop
    )
    self._check_in = check_in.CheckIn(cluster, self._heartbeats, settings, stop)

  @property
  def life(self):
    """str, another one in each process."""
    return self._heartbeats.life

  def find_life(self, name):
    """Returns the `life` of the task called `name`, or None."""
    return self._check_in.find_life(name)

  def secs_silent(self, name):
    """Returns for how long task `name` is silent; see Heartbeats."""
    return self._heartbeats.secs_silent(name)

  def may_be_replaced(self):
    """Whether another process may have this task's place; see Heartbeats."""
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
    """To be called by a worker once it has seen that the chief is there.

    Raises:
      cli.RunError: it was started differently.
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
    """Names the silent tasks: first of all a ps, which each step needs."""
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
