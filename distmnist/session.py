"""Start, keep, end: the life of a ps, the session of a worker, the barrier.

  ps       serves; leaves when every worker has said that it is done.
  worker   waits for the ps, then for the chief's initialisation; trains;
           says to the chief that its loop has ended; closes its session;
           says "done" to every ps.
  chief    initialises or restores; trains; waits for the other workers at the
           end barrier; fetches the center and saves it; closes; says "done" to
           every ps; evaluates on its own.

A ps that was killed and is back has lost its shards: all sessions break, the
chief restores the whole center, and the others wait until it is whole. A chief
that was killed and is back finds the center whole, and takes it over.

Without a ps each worker keeps all variables and initialises them; how they
become equal is the strategy's. Such workers wait for all the others at the
start, and end with an error when one of them is lost.

Nobody joins a server and nobody is killed. A task that waits says for whom.
"""

import contextlib
import os
import queue
import time

import tensorflow.compat.v1 as tf

from distmnist import (
  center_flags,
  checkpoints,
  cli,
  console,
  dispatcher,
  history,
  incarnations,
  mailbox,
  preemption,
  probing,
  report,
  saving,
  stop_grace,
  strategy,
  tasks,
)
from distmnist import cluster as cluster_lib

# A ps gives the last workers so long after the chief is done.
_PS_GRACE_SECS = 5.0
# A ps that answers slowly is given so long to hear that a worker is done.
_TELL_SECS = 10.0
# Pause before the next try to make a session: MonitoredSession itself has none.
_RETRY_SECS = 0.25
# How long a worker without a ps looks who it is that has left the ring.
_GONE_SECS = 2.0
_OTHER_IS_GONE = tf.errors.UnavailableError, tf.errors.AbortedError


def run_ps(cluster, server, stop, watchdog, say):
  """Serves until the workers are done; returns the exit code.

  Args:
    cluster: cluster.Cluster of this ps.
    server: tf.train.Server.
    stop: preemption.StopRequest.
    watchdog: watchdog.Watchdog.
    say: callable that prints a line.

  Raises:
    cli.RunError: the chief has failed, no worker answers for
      start_timeout_secs, or this ps does not fit the other tasks.
  """
  workers = cluster.addresses('worker')
  waiting, deadline = dict(workers), None
  with _done_box(cluster, server, cluster.task_index) as box:
    messages = box.listen()
    say(f'{cluster.name} serves on {cluster.address}')
    with contextlib.suppress(preemption.StoppedError):
      watchdog.check_in()
    care = _Care(cluster, watchdog, say)
    while waiting and not stop.is_requested:
      if deadline and time.monotonic() > deadline:
        say(f'leaving without {", ".join(waiting)}: not heard of at the end')
        break
      try:
        message = messages.get(timeout=0.5)
      except queue.Empty:
        care.look_after(waiting)
        continue
      name = message.get('done')
      if name is None:
        continue
      if message['comes_back']:
        say(f'{name} has failed, and may come back')
        continue
      waiting.pop(name, None)
      say(f'{name} is done' if message['ok'] else f'{name} has failed')
      if name == tasks.CHIEF:
        if not message['ok']:
          # It is the cause, so it shall be the first to have ended.
          probing.wait_until_gone({name: workers[name]}, _PS_GRACE_SECS)
          raise cli.RunError('worker 0, the chief, has failed: see its log')
        deadline = time.monotonic() + _PS_GRACE_SECS
    if stop.is_requested:
      _have_it_saved(cluster, server, messages, stop, say)
    else:
      # A worker that has said "done" still needs the answer to its last call.
      probing.wait_until_gone(workers, timeout_secs=2.0)
  return end(stop)


def end(stop):
  """Returns the exit code of a task; raises what `stop.end` does."""
  return stop.end()


class _Care:
  """What a ps knows of its workers: nobody shall be served in vain."""

  def __init__(self, cluster, watchdog, say):
    self._cluster = cluster
    self._watchdog = watchdog
    self._say = say
    self._first_time = self._last_sign = time.monotonic()
    self._said = {}

  def look_after(self, workers):
    """Looks which of `workers`, {name: address}, are alive.

    Raises:
      cli.LostError: none is any more; cli.RunError if none ever was.
    """
    now = time.monotonic()
    silent_secs = {n: self._watchdog.secs_silent(n) for n in workers}
    warn_secs = self._watchdog.warn_secs
    for name, secs in silent_secs.items():
      if secs is None or secs < warn_secs:
        self._said.pop(name, None)
      elif now - self._said.get(name, -warn_secs) >= warn_secs:
        self._said[name] = now
        self._say(
          f'{name} at {workers[name]}: no sign of life for {secs:.0f} s'
        )
    if any(s is not None and s < warn_secs for s in silent_secs.values()):
      self._last_sign = now
      return
    # Nobody beats, or the board cannot be read: the ports are asked.
    answering = workers.keys() - probing.find_silent(workers).keys()
    if any(silent_secs[name] is None for name in answering):
      self._last_sign = now
    limit_secs = self._cluster.start_timeout_secs
    if answering:  # Suspended, it seems.
      limit_secs = max(limit_secs, self._watchdog.fail_secs)
    if now - self._last_sign > limit_secs:
      was_there = self._last_sign > self._first_time
      raise _choose_absence_error(not was_there)(
        f'no worker answers: {cluster_lib.list_tasks(workers)}; nobody to '
        f'serve for {limit_secs:g} s'
      )


def _have_it_saved(cluster, server, messages, stop, say):
  """Asks the chief for a checkpoint, as the shards here are about to go.

  Where the chief is there but has not saved in time, `stop` knows.
  """
  chief = {tasks.CHIEF: cluster.addresses('worker')[tasks.CHIEF]}
  secs = stop_grace.for_save(stop.secs_left)
  deadline = time.monotonic() + secs
  with (
    contextlib.suppress(tf.errors.OpError),
    mailbox.Mailbox(cluster, server, cluster.meeting_place, 'save') as box,
  ):
    absences = probing.Absences()
    if not absences.find_gone(chief):
      stop.find_unsaved = lambda: (
        f'{tasks.CHIEF} has not saved within {secs:.0f} s what this ps holds: '
        'lost is what was trained since its newest checkpoint; a longer '
        '--stop_grace_secs gives it more time'
      )
      box.send({'ps': cluster.task_index}, timeout_secs=min(2.0, secs))
      # Where all tasks are stopped the chief saves, and leaves, on its own.
      while not absences.find_gone(chief) and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
          message = messages.get(timeout=0.1)
          if 'saved' in message:
            step = message['saved']
            say(
              f'{tasks.CHIEF} has no --logdir to save to'
              if step is None
              else f'{tasks.CHIEF} has saved step {step}'
            )
            stop.find_unsaved = lambda: None
            return
      if time.monotonic() < deadline:  # It has left, and says itself how.
        stop.find_unsaved = lambda: None


@contextlib.contextmanager
def telling_ps(cluster, server, stop):
  """Tells every ps how this worker's work in the `with` block has ended.

  A worker that was asked to stop says nothing, as it may come back; that its
  step or its wait was cut off by the stop is no error. What the work was given
  up for is told, but not raised here.

  Raises:
    cli.LostError: another task is gone.
  """
  error = None
  try:
    yield
  except preemption.StoppedError:
    pass
  except _OTHER_IS_GONE as gone:
    error = cli.LostError(f'another task is gone: {cluster_lib.explain(gone)}')
  except (tf.errors.OpError, RuntimeError) as failure:
    error = failure  # RuntimeError: the session was closed to end a wait.
  except BaseException as failure:
    if not stop.is_requested:
      _say_done(cluster, server, failure)
    elif isinstance(failure, saving.SaveError):
      unsaved = stop.find_unsaved() or 'the last steps are not saved'
      raise cli.NotSavedError(f'{failure}; {unsaved}') from failure
    raise
  if not stop.is_requested:
    _say_done(cluster, server, error)
    if error:
      raise error
  elif stop.error:
    _say_done(cluster, server, stop.error)


def _say_done(cluster, server, error):
  """To be called after the training session is closed.

  A ps that left earlier would take the session with it. One that is gone has
  nothing to be told, and says so at once; one that is slow must hear of a good
  end, or it would wait for it.
  """
  # What is no mistake of a user may be over when the worker starts again.
  is_final = isinstance(error, (cli.RunError, cli.UsageError, type(None)))
  message = {
    'done': cluster.name,
    'ok': error is None,
    'comes_back': not is_final or isinstance(error, cli.LostError),
  }
  for i in range(cluster.num_ps):
    with (
      contextlib.suppress(tf.errors.OpError),
      _done_box(cluster, server, i) as box,
    ):
      box.send(message, timeout_secs=2.0 if error else _TELL_SECS)


def _done_box(cluster, server, ps_index):
  place = f'/job:ps/task:{ps_index}'
  return mailbox.Mailbox(cluster, server, place, f'done_ps{ps_index}')


def _is_empty(box):
  """Whether nothing waits in `box`, a Mailbox or None."""
  if not box:
    return True
  try:
    return box.is_empty()
  except tf.errors.OpError:
    return True  # The training session meets the same error, and recovers.


class Others:
  """What the workers tell each other; nothing if there is one.

  It goes through ps 0 or, where there is none, through worker 0, which is
  the last to leave.
  """

  def __init__(self, cluster, server, secs_silent=None):
    """
    Args:
      cluster: cluster.Cluster.
      server: tf.train.Server, or None for one process.
      secs_silent: callable(name) -> seconds without a beat, see Absences.
    """
    self._cluster = cluster
    self._server = server
    self._secs_silent = secs_silent
    self._addresses = cluster.addresses('worker')
    self._addresses.pop(cluster.name, None)
    self._stop_box = self._end_box = self._save_box = None
    if self._addresses:
      self._stop_box = self._open('stop')
      self._end_box = self._open('end')
    if cluster.num_ps and cluster.is_chief:
      self._save_box = self._open('save')

  def _open(self, name):
    place = self._cluster.meeting_place
    return mailbox.Mailbox(self._cluster, self._server, place, name)

  def stop_all(self):
    """Asks every worker to end its loop."""
    if self._stop_box:
      self._stop_box.send({})

  def is_stop_for_all(self):
    return not _is_empty(self._stop_box)

  def is_save_wanted(self):
    """Whether a ps that must stop waits for a checkpoint."""
    return not _is_empty(self._save_box)

  def _open_done_box(self):
    """The box of the next ps that waits for a checkpoint."""
    index = self._save_box.take()['ps']
    return _done_box(self._cluster, self._server, index)

  def confirm_save(self, step):
    """Tells the ps that wait for it that `step` is saved, or None."""
    while self.is_save_wanted():
      with (
        contextlib.suppress(tf.errors.OpError),
        self._open_done_box() as box,
      ):
        box.send({'saved': step}, timeout_secs=2.0)

  def send_stats(self, stats):
    """Tells the chief that this worker has left its loop."""
    self._end_box.send(stats.to_message())

  def wait_at_end(self, timeout_secs, say):
    """Chief: waits until every other worker has left its loop or is gone.

    Returns:
      The list of report.WorkerStats; shorter if some are gone.
    """
    if not self._end_box:
      return []
    missing = dict(self._addresses)
    messages, found = self._end_box.listen(), []
    wait = console.Wait(timeout_secs, say)
    absences = probing.Absences(self._secs_silent)

    def note(message):
      if message:
        found.append(report.WorkerStats.from_message(message))
        missing.pop(f'worker {found[-1].worker}', None)

    while missing:
      try:
        note(messages.get(timeout=0.5))
        continue
      except queue.Empty:
        gone = absences.find_gone(missing)
      if gone:
        # What they sent before they went may still be on its way.
        for message in self._read_what_was_sent(messages):
          note(message)
      for name in sorted(gone.keys() & missing.keys()):
        say(f'{name} is gone: ending without it')
        del missing[name]
      names = cluster_lib.list_tasks(missing)
      if missing and wait.is_over(f'at the end for {names}'):
        say(f'ending without {names}: not done after {timeout_secs:g} s')
        break
    return found

  def _read_what_was_sent(self, messages):
    """Yields the messages to the end box that were sent until now.

    They keep their order: all of them come before an empty one of our own.
    """
    with contextlib.suppress(tf.errors.OpError, queue.Empty):
      self._end_box.send({})
      while message := messages.get(timeout=5.0):
        yield message


class ClusterScaffold(tf.train.Scaffold):
  """Makes MonitoredSession wait for the other tasks, briefly and out loud.

  `finalize` is called before each session is made, the first one and those
  of a recovery.
  """

  def __init__(
    self, cluster, server, config, stop, watchdog, restart, saver, hooks, say
  ):
    """
    Args:
      cluster: cluster.Cluster.
      server: tf.train.Server or None.
      config: tf.ConfigProto of this task's sessions.
      stop: preemption.StopRequest.
      watchdog: watchdog.Watchdog.
      restart: restart.Restart, from what the chief restores.
      saver: tf.train.Saver.
      hooks: list of SessionRunHook; a strategy.CenterHook among them is told
        of each new center.
      say: callable that prints a line.
    """
    self._cluster = cluster
    self._server = server
    self._config = config
    self._stop = stop
    self._watchdog = watchdog
    self._restart = restart
    self._hooks = [h for h in hooks if isinstance(h, strategy.CenterHook)]
    self._say = say
    self._next_try = 0.0
    self._is_first = True
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
      self._initialize = tf.global_variables_initializer()
      # What a checkpoint of old may lack.
      self._optional = tf.get_collection(dispatcher.COLLECTION)
      self._needed = [
        v
        for v in tf.global_variables()
        if not any(v is x for x in self._optional)
      ]
      self._saver_of_needed = None
      if self._optional and cluster.is_chief:
        self._saver_of_needed = tf.train.Saver(self._needed)
      settings |= {'init_op': tf.no_op(), 'init_fn': self._init_fn}
    super().__init__(saver=saver, **settings)

  def finalize(self):
    super().finalize()
    if self._cluster.is_distributed:
      if not (self._is_first or self._cluster.num_ps):
        self._fail_without_others()
      self._stop.wait(max(0.0, self._next_try - time.monotonic()))
      self._next_try = time.monotonic() + _RETRY_SECS
      self._watchdog.stalls.idle()
      self._wait_for('ps')
      if self._is_first:
        if not self._cluster.num_ps:
          self._wait_for('worker')
        self._watchdog.check_in()
        # A task that never starts is found now and not at the end. Later the
        # others may come and go: only the ps must be there.
        if not self._cluster.is_chief:
          self._wait_for('worker', [tasks.CHIEF])
        elif not self._is_under_way():
          self._wait_for('worker')
      if not _has_variables(self._cluster):
        self._wait_for_variables()
        if self._is_first:
          self._watchdog.compare_with_chief()
      self._is_first = False
      self._watchdog.stalls.busy('the making of a session')
    return self

  def _is_under_way(self):
    """Whether the others have begun, or ended, before this chief came back."""
    if not self._cluster.num_ps:
      return False
    if self._restart.is_finished():
      return True
    with self._open_session() as session:
      return not session.run(self.ready_for_local_init_op).size

  def _open_session(self):
    return tf.Session(self._server.target, config=self._config)

  def _fail_without_others(self):
    """Without a ps nothing is left to go on with when a worker is lost.

    Its variables would be out of step with those of the others, and an
    aborted collective op stays aborted until TensorFlow is started anew.

    Raises:
      cli.LostError: always.
    """
    others = self._cluster.addresses('worker')
    del others[self._cluster.name]
    # One that fails leaves the ring a moment before its server goes.
    deadline, gone = time.monotonic() + _GONE_SECS, {}
    while not gone and time.monotonic() < deadline:
      gone = probing.find_silent(others)
      self._stop.wait(0.02)
    names = cluster_lib.list_tasks(gone) or 'another worker'
    raise cli.LostError(
      f'lost {names}: without a ps the others cannot go on; start all tasks '
      'again, and they resume from the last checkpoint if there is a --logdir'
    )

  def _wait_for(self, job_name, names=None):
    """Waits for the tasks of a job, or for those of them with these names."""
    addresses = self._cluster.addresses(job_name)
    names = set(names or addresses) - {self._cluster.name}
    probing.wait_for_tasks(
      {name: addresses[name] for name in sorted(names)},
      self._cluster.start_timeout_secs,
      self._say,
      self._stop.wait,
      _choose_absence_error(self._is_first),
    )

  def _wait_for_variables(self):
    """Waits for the chief, for up to start_timeout_secs.

    Raises:
      cli.RunError: the center is still not whole.
    """
    chief = f'{tasks.CHIEF} at {self._cluster.worker_hosts[0]}'
    limit_secs = self._cluster.start_timeout_secs
    wait = console.Wait(limit_secs, self._say)
    while True:
      try:
        with self._open_session() as session:
          while session.run(self.ready_for_local_init_op).size:
            if wait.is_over(f'for {chief} to initialise the variables'):
              raise _choose_absence_error(self._is_first)(
                f'{chief} did not initialise the variables within '
                f'{limit_secs:g} s: see its log, and check that all tasks have '
                'the same flags'
              )
            self._stop.wait(wait.choose_pause())
          return
      except _OTHER_IS_GONE:
        self._stop.wait(_RETRY_SECS)
        self._wait_for('ps')

  def _init_fn(self, scaffold, session):
    """Takes over a live center, else restores, else initialises.

    A chief that comes back must not roll back what the others have trained.
    Without a ps the other workers have values of their own, and get the
    chief's from the strategy.
    """
    with cluster_lib.naming_losses():
      self._initialize_in(scaffold, session)

  def _initialize_in(self, scaffold, session):
    if not self._cluster.is_chief:
      session.run(self._initialize)
      return
    if not session.run(scaffold.ready_for_local_init_op).size:
      if self._cluster.num_ps:
        self._center_flags.check_run(session, self._restart.run)
      self._say('taking over the live variables')
      self._restart.go_on()
      return
    path = self._restart.find()
    if path:
      step = checkpoints.parse_step(path)
      history.record('restoring', step=step)
      self._restore(scaffold, session, path)
      history.record('restored', step=step)
      self._say(f'restored {path}')
    else:
      session.run(self._initialize)
    self._restart.go_on()
    for hook in self._hooks:
      hook.on_new_center(session)
    if self._cluster.num_ps:
      self._center_flags.raise_all(session, self._restart.run)

  def _restore(self, scaffold, session, path):
    """Restores `path`; what it may lack keeps its first value."""
    saver, variables = scaffold.saver, tf.global_variables()
    if self._saver_of_needed and not checkpoints.has_all(path, self._optional):
      saver = self._saver_of_needed
      session.run(self._initialize)
      variables = self._needed
    checkpoints.check_fits(path, variables)
    saver.restore(session, path)


def _choose_absence_error(is_first):
  """Returns the class of the error for a task that is not there.

  At the very start the cause is a slip of the user's, which would come again.
  Where a launcher has started us again others may be on their way back as well.
  """
  is_again = tasks.ATTEMPT in os.environ
  return cli.RunError if is_first and not is_again else cli.LostError


def has_ended(cluster, restart):
  """Whether a worker was started again after the end of its run.

  Args:
    cluster: cluster.Cluster.
    restart: restart.Restart.
  """
  ps = cluster.addresses('ps')
  return (
    tasks.ATTEMPT in os.environ
    and not cluster.is_chief
    and bool(ps)
    and restart.is_finished()
    and len(probing.find_silent(ps)) == len(ps)
  )


def _has_variables(cluster):
  """Whether this worker initialises variables: all do without a ps."""
  return cluster.is_chief or not cluster.num_ps


def make_session(cluster, server, config, scaffold, hooks, say=print):
  """Returns the MonitoredTrainingSession of a worker.

  Saving, restoring and summaries are the scaffold's and the hooks' alone.

  Args:
    cluster: cluster.Cluster.
    server: tf.train.Server, or None for one process.
    config: tf.ConfigProto.
    scaffold: ClusterScaffold.
    hooks: list of SessionRunHook; their `end` is called in this order.
    say: callable that prints a line.
  """
  return tf.train.MonitoredTrainingSession(
    master=server.target if server else '',
    is_chief=_has_variables(cluster),
    scaffold=scaffold,
    hooks=[incarnations.LossHook(cluster, server, say), *hooks],
    config=config,
    checkpoint_dir=None,
    save_checkpoint_secs=None,
    save_summaries_steps=None,
    save_summaries_secs=None,
    log_step_count_steps=None,
    # Whatever thread is left waits in a call that nobody will answer.
    stop_grace_period_secs=1,
  )
