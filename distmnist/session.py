"""Start, keep, end: the life of a ps, the session of a worker, the barrier.

  ps       serves; leaves when every worker has said that it is done.
  worker   waits for the ps, then for the chief's initialisation; trains;
           says to the chief that its loop has ended; closes its session;
           says "done" to every ps.
  chief    initialises or restores; trains; waits for the other workers at the
           end barrier; fetches the center and saves it; closes; says "done" to
           every ps; evaluates on its own.

Without a ps each worker keeps all variables and initialises them; how they
become equal is the strategy's. Such workers wait for all the others at the
start, and end with an error when one of them is lost.

Nobody joins a server and nobody is killed. A task that waits says for whom.
"""

import contextlib
import queue
import time

import tensorflow.compat.v1 as tf

from distmnist import checkpoints, cli, mailbox, report
from distmnist import cluster as cluster_lib

# A ps gives the last workers so long after the chief is done.
_PS_GRACE_SECS = 5.0
# Pause before the next try to make a session: MonitoredSession itself has none.
_RETRY_SECS = 0.25
# How long a worker without a ps looks who it is that has left the ring.
_GONE_SECS = 2.0
_OTHER_IS_GONE = tf.errors.UnavailableError, tf.errors.AbortedError


def run_ps(cluster, server, stop, say):
  """Serves until the workers are done; returns the exit code.

  Args:
    cluster: cluster.Cluster of this ps.
    server: tf.train.Server.
    stop: preemption.StopRequest.
    say: callable that prints a line.

  Raises:
    cli.RunError: the chief has failed, or no worker answers for
      start_timeout_secs.
  """
  workers = cluster.addresses('worker')
  waiting, deadline = dict(workers), None
  last_sign = time.monotonic()
  with _done_box(cluster, server, cluster.task_index) as box:
    messages = box.listen()
    say(f'{cluster.name} serves on {cluster.address}')
    while waiting and not stop.is_requested:
      if deadline and time.monotonic() > deadline:
        say(f'leaving without {", ".join(waiting)}: not heard of at the end')
        break
      try:
        message = messages.get(timeout=0.5)
      except queue.Empty:
        if any(cluster_lib.is_answering(a) for a in waiting.values()):
          last_sign = time.monotonic()
        elif time.monotonic() - last_sign > cluster.start_timeout_secs:
          names = ', '.join(f'{n} at {a}' for n, a in waiting.items())
          raise cli.RunError(
            f'no worker answers: {names}; nobody to serve for '
            f'{cluster.start_timeout_secs:g} s'
          ) from None
        continue
      name = message['task']
      waiting.pop(name, None)
      say(f'{name} is done' if message['ok'] else f'{name} has failed')
      if name == 'worker 0':
        if not message['ok']:
          # It is the cause, so it shall be the first to have ended.
          wait_until_gone({name: workers[name]}, _PS_GRACE_SECS)
          raise cli.RunError('worker 0, the chief, has failed: see its log')
        deadline = time.monotonic() + _PS_GRACE_SECS
    # A worker that has said "done" still needs the answer to its last call.
    if not stop.is_requested:
      wait_until_gone(workers, timeout_secs=2.0)
  return stop.exit_code


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
  step was cut off by the stop is no error.

  Raises:
    cli.RunError: another task is gone for good.
  """
  is_ok = False
  try:
    yield
    is_ok = True
  except tf.errors.OpError as error:
    if not stop.is_requested:
      if not isinstance(error, _OTHER_IS_GONE):
        raise
      raise cli.RunError(
        f'another task is gone: {error.message.splitlines()[0]}'
      ) from error
  finally:
    if not stop.is_requested:
      _say_done(cluster, server, is_ok)


def _say_done(cluster, server, is_ok):
  """To be called after the training session is closed.

  A ps that left earlier would take the session with it. One that is gone has
  nothing to be told.
  """
  for i in range(cluster.num_ps):
    with (
      contextlib.suppress(tf.errors.OpError),
      _done_box(cluster, server, i) as box,
    ):
      box.send({'task': cluster.name, 'ok': is_ok}, timeout_secs=2.0)


def _done_box(cluster, server, ps_index):
  place = f'/job:ps/task:{ps_index}'
  return mailbox.Mailbox(cluster, server, place, f'done_ps{ps_index}')


class Others:
  """What the workers tell each other; nothing if there is one.

  It goes through ps 0 or, where there is none, through worker 0, which is
  the last to leave.
  """

  def __init__(self, cluster, server):
    self._addresses = cluster.addresses('worker')
    self._addresses.pop(cluster.name, None)
    self._stop_box = self._end_box = None
    if self._addresses:
      place = f'/job:{"ps" if cluster.num_ps else "worker"}/task:0'
      self._stop_box = mailbox.Mailbox(cluster, server, place, 'stop')
      self._end_box = mailbox.Mailbox(cluster, server, place, 'end')

  def stop_all(self):
    """Asks every worker to end its loop."""
    if self._stop_box:
      self._stop_box.send({})

  def is_stop_for_all(self):
    if not self._stop_box:
      return False
    try:
      return not self._stop_box.is_empty()
    except tf.errors.OpError:
      return False  # The training session meets the same error, and recovers.

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
    start = time.monotonic()
    next_line = start + 1
    while missing:
      try:
        found.append(report.WorkerStats.from_message(messages.get(timeout=0.5)))
        missing.pop(f'worker {found[-1].worker}', None)
        continue
      except queue.Empty:
        now = time.monotonic()
      for name, address in list(missing.items()):
        if not cluster_lib.is_answering(address):
          say(f'{name} is gone: ending without it')
          del missing[name]
      names = ', '.join(f'{name} at {a}' for name, a in missing.items())
      if missing and now - start > timeout_secs:
        say(f'ending without {names}: not done after {timeout_secs:g} s')
        break
      if missing and now >= next_line:
        say(f'waiting at the end for {names}')
        next_line = now + 5
    return found


class ClusterScaffold(tf.train.Scaffold):
  """Makes MonitoredSession wait for the other tasks, briefly and out loud.

  `finalize` is called before each session is made, the first one and those
  of a recovery.
  """

  def __init__(self, cluster, server, config, logdir, say):
    """
    Args:
      cluster: cluster.Cluster.
      server: tf.train.Server or None.
      config: tf.ConfigProto of this task's sessions.
      logdir: str, from whose latest checkpoint the chief restores, or None.
      say: callable that prints a line.
    """
    self._cluster = cluster
    self._server = server
    self._config = config
    self._logdir = logdir
    self._say = say
    self._next_try = 0.0
    self._is_first = True
    with_init = {}
    if _has_variables(cluster):
      self._initialize = tf.global_variables_initializer()
      with_init = {'init_op': tf.no_op(), 'init_fn': self._init_fn}
    super().__init__(saver=tf.train.Saver(max_to_keep=5), **with_init)

  def finalize(self):
    super().finalize()
    if self._cluster.is_distributed:
      if not (self._is_first or self._cluster.num_ps):
        self._fail_without_others()
      time.sleep(max(0.0, self._next_try - time.monotonic()))
      self._next_try = time.monotonic() + _RETRY_SECS
      self._wait_for_tasks()
      if not _has_variables(self._cluster):
        self._wait_for_variables()
    return self

  def _fail_without_others(self):
    """Without a ps nothing is left to go on with when a worker is lost.

    Its variables would be out of step with those of the others, and an
    aborted collective op stays aborted until TensorFlow is started anew.

    Raises:
      cli.RunError: always.
    """
    others = self._cluster.addresses('worker')
    del others[self._cluster.name]
    # One that fails leaves the ring a moment before its server goes.
    deadline, gone = time.monotonic() + _GONE_SECS, []
    while not gone and time.monotonic() < deadline:
      gone = [
        f'{name} at {address}'
        for name, address in others.items()
        if not cluster_lib.is_answering(address)
      ]
      time.sleep(0.02)
    resume = (
      f', they resume from the last checkpoint in {self._logdir}'
      if self._logdir
      else ''
    )
    raise cli.RunError(
      f'lost {", ".join(gone) or "another worker"}: without a ps the others '
      f'cannot go on; start all tasks again{resume}'
    )

  def _wait_for_tasks(self):
    addresses = self._cluster.addresses('ps')
    if self._is_first:
      # A task that never starts is found now and not at the end. Later the
      # others may come and go: only the ps must be there.
      workers = self._cluster.addresses('worker')
      if _has_variables(self._cluster):
        del workers[self._cluster.name]
        addresses |= workers
      else:
        addresses['worker 0'] = workers['worker 0']
    cluster_lib.wait_for_tasks(
      addresses, self._cluster.start_timeout_secs, self._say
    )
    self._is_first = False

  def _wait_for_variables(self):
    """Waits for the chief, for up to start_timeout_secs.

    Raises:
      cli.RunError: the variables are still not initialised.
    """
    chief = f'worker 0 at {self._cluster.worker_hosts[0]}'
    start = time.monotonic()
    next_line = start + 1
    while True:
      try:
        with tf.Session(self._server.target, config=self._config) as session:
          while session.run(self.ready_for_local_init_op).size:
            now = time.monotonic()
            if now - start > self._cluster.start_timeout_secs:
              raise cli.RunError(
                f'{chief} did not initialise the variables within '
                f'{self._cluster.start_timeout_secs:g} s: see its log, and '
                'check that all tasks have the same flags'
              )
            if now > next_line:
              self._say(f'waiting for {chief} to initialise the variables')
              next_line = now + 5
            time.sleep(0.05)
          return
      except (tf.errors.UnavailableError, tf.errors.AbortedError):
        time.sleep(_RETRY_SECS)
        self._wait_for_tasks()

  def _init_fn(self, scaffold, session):
    """Takes over live variables, else restores, else initialises.

    A chief that comes back must not roll back what the others have trained.
    Without a ps the other workers have values of their own, and get the
    chief's from the strategy.
    """
    if not self._cluster.is_chief:
      session.run(self._initialize)
      return
    is_live = not session.run(scaffold.ready_for_local_init_op).size
    path = checkpoints.find_latest(self._logdir) if self._logdir else None
    if is_live:
      self._say('taking over the live variables')
    elif path:
      checkpoints.check_fits(path, tf.global_variables())
      scaffold.saver.restore(session, path)
      self._say(f'restored {path}')
    else:
      session.run(self._initialize)
    if path:
      scaffold.saver.recover_last_checkpoints(
        tf.train.get_checkpoint_state(self._logdir).all_model_checkpoint_paths
      )


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
    hooks=hooks,
    config=config,
    checkpoint_dir=None,
    save_checkpoint_secs=None,
    save_summaries_steps=None,
    save_summaries_secs=None,
    log_step_count_steps=None,
    # Whatever thread is left waits in a call that nobody will answer.
    stop_grace_period_secs=1,
  )
