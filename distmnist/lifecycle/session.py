"""The session of a worker: how it starts, recovers and ends.

  ps       serves; leaves when every worker has said that it is done (ps.py).
  worker   waits for the ps, then for the chief's initialisation; trains;
           tells the chief that its loop has ended; closes its session;
           says "done" to every ps.
  chief    initialises or restores; trains; waits for the other workers at the
           end barrier; fetches the center and saves it; closes; says "done" to
           every ps; evaluates on its own.

A ps that was killed and comes back has lost its shards: all sessions break, the
chief restores the whole center, and the others wait until it is whole. A chief
that was killed and comes back finds the center whole, and takes it over.

Without a ps each worker keeps all variables. Such workers meet before each
session (strategy.MemberHook): at the start the chief's values become those of
all; when one is lost the others keep theirs, wait for its successor, and give
them to it.

No task waits in Server.join and none is killed. A task that waits says for
whom, and for how long at most: creating a session waits for a suspended ps
without a limit, so what is asked before the training's own session is there is
asked in a thread (`_ask_ps`). first_values.py sets the initial values of the
variables; shutdown.py has the messages between tasks at the end.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.cluster import deadlines, errors, probing
from distmnist.common import cli, console
from distmnist.common.names import ATTEMPT, CHIEF
from distmnist.lifecycle import center_flags, shutdown
from distmnist.lifecycle import first_values as first_values_lib
from distmnist.transport import strategy

if TYPE_CHECKING:
  from distmnist.cluster import cluster as cluster_lib
  from distmnist.lifecycle import task as task_lib
  from distmnist.logdir import restart as restart_lib
  from distmnist.logdir import saving

# Pause before the next try to make a session: MonitoredSession itself has none.
_RETRY_SECS = 0.25
# A ps that answers does so within this time, even on a busy machine.
_ANSWER_SECS = 1.0
# The most that the closing of a session may take.
_CLOSE_SECS = 2.0


class ClusterScaffold(tf.train.Scaffold):
  """Makes MonitoredSession wait for other tasks, with a limit and a log line.

  `finalize` is called before each session is made: the first one, and those
  made to recover.
  """

  def __init__(
    self,
    task: task_lib.Task,
    restart: restart_lib.Restart,
    saver: tf.train.Saver | saving.Saver,
    hooks: Sequence[tf.train.SessionRunHook],
    kept: Sequence[tf.Variable] = (),
    before_restore: Callable[[], None] = lambda: None,
  ) -> None:
    """
    Args:
      restart: finds what the chief restores.
      hooks: any strategy.CenterHook among them is called for each new center,
        and a strategy.MemberHook before each session.
      kept: local variables that keep their values in later sessions of this
        process. The others begin anew in each.
      before_restore: called before each session is made.
    """
    self._task = task
    self._cluster = cluster = task.cluster
    self._restart = restart
    self._center_flags = None
    self._next_try = 0.0
    self._is_first = True
    self._before_restore = before_restore
    self._member = strategy.find_member(hooks)
    settings = {}
    if cluster.num_ps:
      self._center_flags = center_flags.CenterFlags(cluster)
      settings['ready_for_local_init_op'] = tf.concat(
        [
          tf.report_uninitialized_variables(tf.global_variables()),
          self._center_flags.build_missing(),
        ],
        0,
      )
    if _has_variables(cluster):
      first_values = first_values_lib.FirstValues(
        task, restart, self._center_flags, hooks
      )
      settings |= {'init_op': tf.no_op(), 'init_fn': first_values.set_in}
    if kept:
      settings['local_init_op'] = _build_local_init(kept)
    super().__init__(saver=saver, **settings)

  def finalize(self) -> ClusterScaffold:
    super().finalize()
    stalls = self._task.stalls
    stalls.busy('the end of the last save')
    self._before_restore()
    if self._cluster.is_distributed:
      self._task.stop.wait(max(0.0, self._next_try - time.monotonic()))
      self._next_try = time.monotonic() + _RETRY_SECS
      self._wait_for('ps')
      if self._is_first:
        if not self._cluster.num_ps:
          self._wait_for('worker')
        self._begin_wait('the check-in')
        self._task.watchdog.check_in()
        # This finds a task that never starts now, not at the end. Later the
        # others may come and go: only the ps must be up.
        if not self._cluster.is_chief:
          self._wait_for('worker', [CHIEF])
        elif not self._is_under_way():
          self._wait_for('worker')
      if not _has_variables(self._cluster):
        self._wait_for_variables()
        if self._is_first:
          self._begin_wait('the comparison with the chief')
          self._task.watchdog.compare_with_chief()
      if self._member:
        self._begin_wait('the meeting of the workers')
        self._member.meet(self._task)
      self._is_first = False
    stalls.busy('the making of a session', waits_for_others=True)
    return self

  def _begin_wait(self, what: str) -> None:
    """Notes a wait that gives its own lines for start_timeout_secs."""
    self._task.stalls.busy(
      what, self._cluster.start_timeout_secs, waits_for_others=True
    )

  def _is_under_way(self) -> bool:
    """Whether the others have begun, or ended, before this chief came back.

    Raises:
      cli.LostError: a ps does not answer.
    """
    if not self._cluster.num_ps:
      return False
    restart = self._restart
    has_begun = restart.find() and not restart.is_of_other_run
    # Its first checkpoint was written when all workers were there. One that was
    # done with what is lost now may have ended for good.
    if restart.is_finished() or (ATTEMPT in os.environ and has_begun):
      return True
    wait = console.Wait(self._cluster.start_timeout_secs)
    with self._opened() as session:
      return not self._ask_ps(session, self.ready_for_local_init_op, wait).size

  @contextlib.contextmanager
  def _opened(self) -> Iterator[tf.Session]:
    """Yields a session on all ps; closes it, for up to some seconds."""
    session = tf.Session(self._task.target, config=self._task.session_config)
    try:
      yield session
    finally:
      with contextlib.suppress(tf.errors.OpError):
        deadlines.call(session.close, _CLOSE_SECS)

  def _ask_ps(
    self, session: tf.Session, fetch: tf.Tensor, wait: console.Wait
  ) -> np.ndarray:
    """Returns the value of `fetch`, which is on all ps.

    Args:
      session: of `_opened`.
      wait: says which ps does not answer.

    Raises:
      cli.LostError: the wait is over.
    """
    first_look = time.monotonic() + _ANSWER_SECS

    def look() -> None:
      self._task.stop.wait(0)
      if time.monotonic() < first_look:
        return
      ps = self._cluster.addresses('ps')
      quiet = self._task.watchdog.find_quiet('ps')
      names = errors.list_some(
        f'{name} at {ps[name]}, {quiet[name]}' for name in quiet
      )
      names = names or errors.list_tasks(ps)
      if wait.is_over(f'for an answer of {names}'):
        raise cli.LostError(
          'a ps accepts connections but does not answer within '
          f'{self._cluster.start_timeout_secs:g} s: {names}'
        )

    self._begin_wait('the wait for the ps')
    return deadlines.call_and_look(lambda: session.run(fetch), look)

  def _wait_for(
    self, job_name: str, names: Collection[str] | None = None
  ) -> None:
    """Waits for the tasks of a job, or only for those in `names`."""
    self._begin_wait(f'the wait for each {job_name}')
    addresses = self._cluster.addresses(job_name)
    others = set(names or addresses) - {self._cluster.name}
    probing.wait_for_tasks(
      {name: addresses[name] for name in sorted(others)},
      self._cluster.start_timeout_secs,
      self._task.stop.wait,
      shutdown.choose_absence_error(self._is_first),
      were_there=not self._is_first,
      hint=self._restart.describe_end() if self._is_first else '',
    )

  def _wait_for_variables(self) -> None:
    """Waits for the chief, as long as it beats, and then start_timeout_secs.

    It may restore for minutes, from a store that is slow.

    Raises:
      cli.RunError: the center is still not whole.
      cli.LostError: a ps does not answer.
    """
    chief = f'{CHIEF} at {self._cluster.worker_hosts[0]}'
    limit_secs = self._cluster.start_timeout_secs
    wait = console.Wait(limit_secs)

    def pause(secs: float) -> None:
      if self._task.watchdog.is_beating(CHIEF):
        wait.renew()
        self._task.stalls.goes_on()
      if wait.is_over(f'for {chief} to initialise the variables'):
        raise shutdown.choose_absence_error(self._is_first)(
          f'{chief} did not initialise the variables within {limit_secs:g} s: '
          'see its log, and check that all tasks have the same flags'
        )
      self._task.stop.wait(secs)

    while True:
      try:
        with self._opened() as session:
          ready = self.ready_for_local_init_op
          while self._ask_ps(session, ready, wait).size:
            pause(wait.choose_pause())
          return
      except errors.GONE:
        pause(_RETRY_SECS)
        self._wait_for('ps')


def _build_local_init(kept: Sequence[tf.Variable]) -> tf.Operation:
  """Returns the op that begins a session on this worker.

  Local variables are on the worker's own server, which outlives its sessions:
  those in `kept` are initialised only if they have no value yet.
  """

  def initialize_once(variable: tf.Variable) -> tf.Operation:
    return tf.cond(
      tf.is_variable_initialized(variable),
      tf.no_op,
      lambda: tf.group(variable.assign(variable.initial_value)),
    )

  anew = [
    v for v in tf.local_variables() if not any(v is other for other in kept)
  ]
  return tf.group(
    tf.variables_initializer(anew),
    *map(initialize_once, kept),
    tf.tables_initializer(),
  )


def _has_variables(cluster: cluster_lib.Cluster) -> bool:
  """Whether this worker initialises variables: all do without a ps."""
  return cluster.is_chief or not cluster.num_ps


def make_session(
  task: task_lib.Task,
  scaffold: ClusterScaffold,
  hooks: Sequence[tf.train.SessionRunHook],
  config: tf.ConfigProto | None = None,
) -> tf.train.MonitoredSession:
  """Returns the MonitoredTrainingSession of a worker.

  Saving, restoring and summaries are left to the scaffold and the hooks.

  Args:
    hooks: a liveness.LivenessHook first; their `end` is called in this order.
    config: settings besides those of the task.
  """
  merged = tf.ConfigProto()
  if config:
    merged.CopyFrom(config)
    merged.ClearField('device_filters')
  merged.MergeFrom(task.session_config)
  return tf.train.MonitoredTrainingSession(
    master=task.target,
    is_chief=_has_variables(task.cluster),
    scaffold=scaffold,
    hooks=hooks,
    config=merged,
    checkpoint_dir=None,
    save_checkpoint_secs=None,
    save_summaries_steps=None,
    save_summaries_secs=None,
    log_step_count_steps=None,
    # Any thread that is left waits in a call that no task will answer.
    stop_grace_period_secs=1,
  )
