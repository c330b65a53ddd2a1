"""Where the tasks of a run on Spark report to, in the driver."""

import re

from distmnist.common import cli
from distmnist.launching import stop_grace, task_group
from distmnist.spark import agent_server
from distmnist.spark.attempt import Attempt
from distmnist.spark.received_logs import ReceivedLogs


class Desk:
  """Hears the tasks, and passes on what each Attempt has for them.

  A context: its end is the end of all connections, and by that of all tasks.

  Attributes:
    port: int, where it listens.
    report: dict, the chief's, or None.
  """

  def __init__(
    self,
    host,
    secret,
    names,
    logs_dir,
    show,
    stop_grace_secs=stop_grace.DEFAULT_SECS,
  ):
    """Listens.

    Args:
      host: str, the address to listen on.
      secret: str, what the tasks know.
      names: list of str, the tasks.
      logs_dir: str, an existing folder.
      show: callable(name of a task, a line of its log).
      stop_grace_secs: float, train's.

    Raises:
      cli.RunError: it cannot listen there.
    """
    worker_secs = stop_grace.for_worker(stop_grace_secs)
    self._stop_secs = (
      worker_secs + stop_grace.PS_SECS + agent_server.STOP_MARGIN_SECS
    )
    self._door = agent_server.Door(host, secret, self._welcome)
    self.port = self._door.port
    self.report = None
    self._names = names
    self._show = show
    self._logs = ReceivedLogs(logs_dir, names)
    self._attempts = []

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._door.close()

  def wake(self):
    """Interrupts `turn`; may be called by another thread."""
    self._door.wake()

  def begin(self):
    """Makes ready for all tasks to be started; returns for which time (int)."""
    number = len(self._attempts) + 1
    self._attempts.append(
      Attempt(number, self._names, self._logs, self._stop_secs)
    )
    return number

  @property
  def failure(self):
    """attempt.Failure of the last attempt, or None."""
    return self._attempts[-1].failure

  @property
  def is_over(self):
    """Whether the tasks of the last attempt have ended, or failed to start."""
    return self._attempts[-1].is_over

  @property
  def has_tasks(self):
    """Whether a task of the last attempt still has its connection."""
    return self._attempts[-1].has_tasks

  @property
  def missing(self):
    """The tasks (list of names) that Spark has still to start."""
    return self._attempts[-1].missing

  def last_lines(self, name, num_lines=10):
    """Returns the last lines (list of str) of a task's last attempt."""
    return self._logs.last_lines(name, num_lines)

  def turn(self, secs):
    """Waits up to `secs` for what there is to hear, and acts on it."""
    for attempt, peer in self._door.hear(secs):
      self._hear(attempt, peer)
    for attempt in self._attempts:
      attempt.advance()
    self._door.drop_closed()

  def end_all(self):
    """Stops all tasks, the workers first; at once if interrupted."""
    for attempt in self._attempts:
      attempt.is_given_up = True
    try:
      self.turn(0)
      while any(attempt.running for attempt in self._attempts):
        self.turn(task_group.TICK_SECS)
    except BaseException:
      for attempt in self._attempts:
        attempt.stop_at_once()
      raise

  def _welcome(self, connection, hello):
    name, number = hello.get('hello'), hello.get('attempt')
    address, executor = hello.get('address'), hello.get('executor')
    is_good = (
      name in self._names
      and type(number) is int
      and 1 <= number <= len(self._attempts)
      and isinstance(address, str)
      and bool(re.fullmatch(r'[\w.:\[\]-]{1,300}', address))
      and agent_server.is_executor(executor)
    )
    if not is_good:
      return None
    attempt = self._attempts[number - 1]
    peer = agent_server.Peer(name, address, executor, connection)
    attempt.join(peer)
    return attempt, peer

  def _hear(self, attempt, peer):
    for message in peer.connection.receive():
      if isinstance(message.get('lines'), list):
        self._take_lines(peer, message['lines'])
      if isinstance(message.get('lost'), str):
        attempt.fail(peer, message['lost'][:300], cli.LOST)
      if 'end' in message:
        attempt.note_end(peer, message['end'])
        if peer.code == 0 and isinstance(message.get('report'), dict):
          self.report = message['report']
    if not peer.connection.is_open:
      attempt.note_silence(peer)

  def _take_lines(self, peer, lines):
    lines = [str(line) for line in lines]
    self._logs.add(peer.name, lines)
    for line in lines:
      self._show(peer.name, line)
