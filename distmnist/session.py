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
import queue
import time

import tensorflow.compat.v1 as tf

from distmnist import (
  checkpoints,
  cli,
  console,
  mailbox,
  preemption,
  report,
  strategy,
  tasks,
)
from distmnist import cluster as cluster_lib

# A ps gives the last workers so long after the chief is done.
_PS_GRACE_SECS = 5.0
# A ps that shall stop gives the chief so long to save what it holds.
_SAVE_SECS = 5.0
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
          wait_until_gone({name: workers[name]}, _PS_GRACE_SECS)
          raise cli.RunError('worker 0, the chief, has failed: see its log')
        deadline = time.monotonic() + _PS_GRACE_SECS
    if stop.is_requested:
      _have_it_saved(cluster, server, messages, say)
    else:
      # A worker that has said "done" still needs the answer to its last call.
      wait_until_gone(workers, timeout_secs=2.0)
  return end(stop)


def end(stop):
  """Returns the exit code of a task; raises what the work was given up for."""
  if stop.error:
    raise stop.error
  return stop.exit_code


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
    answering = workers.keys() - cluster_lib.find_silent(workers).keys()
    if any(silent_secs[name] is None for name in answering):
      self._last_sign = now
    limit_secs = self._cluster.start_timeout_secs
    if answering:  # Suspended, it seems.
      limit_secs = max(limit_secs, self._watchdog.fail_secs)
    if now - self._last_sign > limit_secs:
      was_there = self._last_sign > self._first_time
      raise (cli.LostError if was_there else cli.RunError)(
        f'no worker answers: {cluster_lib.list_tasks(workers)}; nobody to '
        f'serve for {limit_secs:g} s'
      )


def _have_it_saved(cluster, server, messages, say):
  """Asks the chief for a checkpoint, as the shards here are about to go."""
  chief = cluster.addresses('worker')[tasks.CHIEF]
  deadline = time.monotonic() + _SAVE_SECS
  with (
    contextlib.suppress(tf.errors.OpError),
    mailbox.Mailbox(cluster, server, cluster.meeting_place, 'save') as box,
  ):
    if cluster_lib.is_answering(chief):
      box.send({'ps': cluster.task_index}, timeout_secs=2.0)
      # Where all tasks are stopped the chief saves, and leaves, on its own.
      while cluster_lib.is_answering(chief) and time.monotonic() < deadline:
        with contextlib.suppress(queue.Empty):
          message = messages.get(timeout=0.1)
          if 'saved' in message:
            step = message['saved']
            say(
              f'{tasks.CHIEF} has no --logdir to save to'
              if step is None
              else f'{tasks.CHIEF} has saved step {step}'
            )
            return


def wait_until_gone(addresses, timeout_secs):
  """Returns once no address answers, or after `timeout_secs`."""
  deadline = time.monotonic() + timeout_secs
  while time.monotonic() < deadline:
    if not any(cluster_lib.is_answering(a) for a in addresses.values()):
      return
    time.sleep(0.02)


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

  def __init__(self, cluster, server):
    self._cluster = cluster
    self._server = server
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

    def note(message):
      if message:
        found.append(report.WorkerStats.from_message(message))
        missing.pop(f'worker {found[-1].worker}', None)

    while missing:
      try:
        note(messages.get(timeout=0.5))
        continue
      except queue.Empty:
        silent = cluster_lib.find_silent(missing)
      if silent:
        # What they sent before they went may still be on its way.
        for message in self._read_what_was_sent(messages):
          note(message)
      for name in sorted(silent.keys() & missing.keys()):
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
      restart: checkpoints.Restart, from what the chief restores.
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
      self._center_flags = _CenterFlags(cluster)
      settings['ready_for_local_init_op'] = tf.concat(
        [
          tf.report_uninitialized_variables(tf.global_variables()),
          self._center_flags.build_missing(),
        ],
        0,
      )
    if _has_variables(cluster):
      self._initialize = tf.global_variables_initializer()
      settings |= {'init_op': tf.no_op(), 'init_fn': self._init_fn}
    super().__init__(saver=saver, **settings)

  def finalize(self):
    super().finalize()
    if self._cluster.is_distributed:
      if not (self._is_first or self._cluster.num_ps):
        self._fail_without_others()
      self._stop.wait(max(0.0, self._next_try - time.monotonic()))
      self._next_try = time.monotonic() + _RETRY_SECS
      self._watchdog.step_ends(is_done=False)
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
      gone = cluster_lib.find_silent(others)
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
    cluster_lib.wait_for_tasks(
      {name: addresses[name] for name in sorted(names)},
      self._cluster.start_timeout_secs,
      self._say,
      self._stop.wait,
      cli.RunError if self._is_first else cli.LostError,
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
              raise (cli.RunError if self._is_first else cli.LostError)(
                f'{chief} did not initialise the variables within '
                f'{limit_secs:g} s: see its log, and check that all tasks have '
                'the same flags'
              )
            self._stop.wait(0.05)
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
      self._say('taking over the live variables')
      self._restart.remember(scaffold.saver)
      return
    path = self._restart.find()
    if path:
      checkpoints.check_fits(path, tf.global_variables())
      scaffold.saver.restore(session, path)
      self._say(f'restored {path}')
    else:
      session.run(self._initialize)
    self._restart.remember(scaffold.saver)
    for hook in self._hooks:
      hook.on_new_center(session)
    if self._cluster.num_ps:
      self._center_flags.raise_all(session)


class _CenterFlags:
  """A flag on each ps, which goes up once the whole center has its values.

  A ps that is started anew has none: so what the other ps still hold of the
  lost center is neither trained on nor, by a new chief, taken for whole. It is
  a queue, and so needs no initialisation and is in no checkpoint.
  """

  def __init__(self, cluster):
    self._sizes, self._raises = [], []
    for i in range(cluster.num_ps):
      with tf.device(f'/job:ps/task:{i}/device:CPU:0'):
        flag = tf.FIFOQueue(-1, tf.bool, (), shared_name='center_is_whole')
        self._sizes.append(flag.size())
        self._raises.append(flag.enqueue(True))

  def build_missing(self):
    """Returns a string tensor [n], for each ps without a flag its name."""
    names = [f'center_is_whole on ps {i}' for i in range(len(self._sizes))]
    return tf.boolean_mask(names, tf.equal(tf.stack(self._sizes), 0))

  def raise_all(self, session):
    session.run(self._raises)


class _LossHook(tf.train.SessionRunHook):
  """Sees to it that a session finds out when a task was lost."""

  def after_create_session(self, session, coord):
    run = session.run

    def run_naming_losses(*args, **kwargs):
      with cluster_lib.naming_losses():
        return run(*args, **kwargs)

    session.run = run_naming_losses


def _has_variables(cluster):
  """Whether this worker initialises variables: all do without a ps."""
  return cluster.is_chief or not cluster.num_ps


def make_session(cluster, server, config, scaffold, hooks):
  """Returns the MonitoredTrainingSession of a worker.

  Saving, restoring and summaries are the scaffold's and the hooks' alone.

  Args:
    cluster: cluster.Cluster.
    server: tf.train.Server, or None for one process.
    config: tf.ConfigProto.
    scaffold: ClusterScaffold.
    hooks: list of SessionRunHook; their `end` is called in this order.
  """
  return tf.train.MonitoredTrainingSession(
    master=server.target if server else '',
    is_chief=_has_variables(cluster),
    scaffold=scaffold,
    hooks=[_LossHook(), *hooks],
    config=config,
    checkpoint_dir=None,
    save_checkpoint_secs=None,
    save_summaries_steps=None,
    save_summaries_secs=None,
    log_step_count_steps=None,
    # Whatever thread is left waits in a call that nobody will answer.
    stop_grace_period_secs=1,
  )
