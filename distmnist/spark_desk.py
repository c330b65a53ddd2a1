"""Where the tasks of a run on Spark report to, in the driver.

One thread, which hears all connections and keeps the order of events:

  start   once all tasks are there;
  end     after the first failure the workers are stopped, then the ps; then
          all may leave.
"""

import contextlib
import dataclasses
import os
import re
import selectors
import signal
import socket
import time

from distmnist import cli, files, handshake, json_lines, processes, stop_grace

# From the end of the last worker to that of the ps.
LEAVE_SECS = 10.0
# From the order to stop to the end of all: beyond what workers and ps have.
STOP_MARGIN_SECS = 5.5
# Of who has connected, to show that he knows the secret.
HELLO_SECS = 10.0
# Others wait in the queue of the listener meanwhile.
_MAX_STRANGERS = 256
_BACKLOG = 4096
# Of one address: beyond it he has less time.
_MANY_STRANGERS = _MAX_STRANGERS // 2
_HURRIED_HELLO_SECS = 2.0


@dataclasses.dataclass(frozen=True)
class Failure:
  """The first thing that went wrong in an attempt; exit_code is the task's."""

  name: str
  address: str
  cause: str
  exit_code: int
  num_restarts: int
  log: str

  def __str__(self):
    times = self.num_restarts
    when = (
      f'after {times} restart{"s" if times > 1 else ""}' if times else 'first'
    )
    return (
      f'{self.name} ({self.address}) failed {when}: {self.cause};'
      f' log: {self.log}'
    )


@dataclasses.dataclass
class _Peer:
  """A task as the driver knows it; `code` is what it has ended with."""

  name: str
  address: str
  executor: str
  connection: json_lines.Connection
  is_ended: bool = False
  code: int | None = None
  is_told_to_stop: bool = False

  @property
  def is_running(self):
    return self.connection.is_open and not self.is_ended


@dataclasses.dataclass
class _Attempt:
  """All tasks, started once.

  Attributes:
    number: int, counted from 1.
    peers: dict of name -> _Peer.
    is_started: whether its tasks were told to go.
    failure: Failure that ends it, or None.
    deadline: when it has to be over, once that is known.
    is_over: whether its tasks were told to leave.
  """

  number: int
  peers: dict = dataclasses.field(default_factory=dict)
  is_started: bool = False
  failure: Failure | None = None
  deadline: float | None = None
  is_over: bool = False

  @property
  def running(self):
    return [peer for peer in self.peers.values() if peer.is_running]

  @property
  def is_late(self):
    return self.deadline is not None and time.monotonic() > self.deadline


class Door:
  """Where agents come in, once they have shown that they know the secret.

  Attributes:
    port: int, where it listens.
    waker: socket that does not block; a byte into it interrupts `hear`.
  """

  def __init__(self, host, secret, welcome):
    """Listens.

    Args:
      host: str, the address to listen on.
      secret: str, what the agents know.
      welcome: callable(json_lines.Connection, hello), with a hello that is any
        dict; returns whom `hear` shall name for this connection, or None to
        send him away.

    Raises:
      cli.RunError: it cannot listen there.
    """
    try:
      self._listener = socket.create_server((host, 0), backlog=_BACKLOG)
    except OSError as error:
      raise cli.RunError(
        f'the driver cannot listen on {host}: {error.strerror}: set'
        ' spark.driver.bindAddress to an address of this machine'
      ) from error
    self.port = self._listener.getsockname()[1]
    self._secret = secret
    self._welcome = welcome
    self._strangers = {}
    self._wake, self.waker = socket.socketpair()
    self.waker.setblocking(False)
    self._selector = selectors.DefaultSelector()
    self._selector.register(self._listener, selectors.EVENT_READ)
    self._selector.register(self._wake, selectors.EVENT_READ)

  def close(self):
    """Ends all connections."""
    for key in list(self._selector.get_map().values()):
      key.fileobj.close()
    self._listener.close()
    self._selector.close()
    self.waker.close()

  def wake(self):
    """Interrupts `hear`; may be called by another thread."""
    with contextlib.suppress(OSError):  # The end has come meanwhile.
      self.waker.send(b'.')

  def _choose_listening(self):
    """Lets nobody else in while there are strangers enough."""
    is_listening = self._listener in self._selector.get_map()
    is_full = len(self._strangers) >= _MAX_STRANGERS
    if is_full and is_listening:
      self._selector.unregister(self._listener)
    elif not is_full and not is_listening:
      self._selector.register(self._listener, selectors.EVENT_READ)

  def hear(self, secs):
    """Waits up to `secs`; returns those (list) who have something to say."""
    speakers = []
    self._choose_listening()
    for key, _ in self._selector.select(secs):
      if key.fileobj is self._wake:
        self._wake.recv(4096)
      elif key.fileobj is self._listener:
        self._accept()
      elif key.data is None:
        self._meet(key.fileobj)
      else:
        speakers.append(key.data)
    return speakers

  def drop_closed(self):
    """Forgets the connections that are not open any more."""
    now = time.monotonic()
    for connection, (_, deadline, _) in self._strangers.items():
      connection.is_open &= now < deadline
    for key in list(self._selector.get_map().values()):
      connection = key.fileobj
      if (
        isinstance(connection, json_lines.Connection) and not connection.is_open
      ):
        self._selector.unregister(connection)
        self._strangers.pop(connection, None)
        connection.close()

  def _accept(self):
    with contextlib.suppress(OSError):  # It has gone again.
      accepted, (host, *_) = self._listener.accept()
      connection = json_lines.Connection(
        accepted, json_lines.MAX_STRANGER_BYTES
      )
      num_here = sum(host == other for *_, other in self._strangers.values())
      secs = HELLO_SECS if num_here < _MANY_STRANGERS else _HURRIED_HELLO_SECS
      driver = handshake.Driver(self._secret)
      self._strangers[connection] = [driver, time.monotonic() + secs, host]
      self._selector.register(connection, selectors.EVENT_READ)
      connection.send(challenge=driver.challenge)

  def _meet(self, connection):
    """Hears one who has not said yet who he is: the answer, then the hello."""
    for message in connection.receive():
      if not connection.is_open or connection not in self._strangers:
        return
      driver = self._strangers[connection][0]
      if driver:
        answer = driver.answer(message)
        if not answer:
          connection.is_open = False
          return
        connection.send(**answer)
        connection.secure(driver.key, 'driver', 'agent')
        self._strangers[connection][0] = None
      else:
        who = self._welcome(connection, message)
        if who is None:
          connection.is_open = False
          return
        del self._strangers[connection]
        connection.max_bytes = json_lines.MAX_MESSAGE_BYTES
        self._selector.modify(connection, selectors.EVENT_READ, data=who)


def is_executor(text):
  """Whether `text`, anything, may be what an agent calls its executor."""
  return isinstance(text, str) and bool(
    re.fullmatch(r'[\w.:\[\]() -]{1,300}', text)
  )


def _open_log(path):
  return open(path, 'a', encoding='utf-8', opener=files.no_follow)


class Desk:
  """Hears the tasks, and tells them what to do.

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
    self._stop_secs = worker_secs + stop_grace.PS_SECS + STOP_MARGIN_SECS
    self._door = Door(host, secret, self._welcome)
    self.port = self._door.port
    self.report = None
    self._names = names
    self._show = show
    self._logs = {
      name: os.path.join(logs_dir, name.replace(' ', '_') + '.log')
      for name in names
    }
    self._log_starts = {}
    self._attempts = []
    self._is_given_up = False

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._door.close()

  def wake(self):
    """Interrupts `turn`; may be called by another thread."""
    self._door.wake()

  def begin(self):
    """Makes ready for all tasks to be started; returns for which time (int)."""
    self._is_given_up = False
    self._attempts.append(_Attempt(len(self._attempts) + 1))
    return len(self._attempts)

  @property
  def failure(self):
    """Failure of the last attempt, or None."""
    return self._attempts[-1].failure

  @property
  def is_over(self):
    """Whether the tasks of the last attempt have ended, or failed to start."""
    return self._attempts[-1].is_over

  @property
  def has_tasks(self):
    """Whether a task of the last attempt still has its connection."""
    return any(p.connection.is_open for p in self._attempts[-1].peers.values())

  @property
  def missing(self):
    """The tasks (list of names) that Spark has still to start."""
    last = self._attempts[-1]
    if last.is_started or last.is_over:
      return []
    return [name for name in self._names if name not in last.peers]

  def last_lines(self, name, num_lines=10):
    """Returns the last lines (list of str) of a task's last attempt."""
    if name not in self._log_starts:
      return []
    with open(self._logs[name], 'rb') as log:
      size = log.seek(0, os.SEEK_END)
      log.seek(max(self._log_starts[name], size - (1 << 14)))
      lines = log.read().decode(errors='replace').splitlines()
    return [line for line in lines if line.strip()][-num_lines:]

  def turn(self, secs):
    """Waits up to `secs` for what there is to hear, and acts on it."""
    for attempt, peer in self._door.hear(secs):
      self._hear(attempt, peer)
    for attempt in self._attempts:
      self._advance(attempt)
    self._door.drop_closed()

  def end_all(self):
    """Stops all tasks, the workers first; at once if interrupted."""
    self._is_given_up = True
    try:
      self.turn(0)
      while any(attempt.running for attempt in self._attempts):
        self.turn(processes.TICK_SECS)
    except BaseException:
      for attempt in self._attempts:
        for peer in attempt.running:
          for _ in range(1 if peer.is_told_to_stop else 2):
            peer.connection.send(stop=signal.SIGTERM)
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
      and is_executor(executor)
    )
    if not is_good:
      return None
    attempt = self._attempts[number - 1]
    peer = _Peer(name, address, executor, connection)
    old = attempt.peers.setdefault(name, peer)
    if old is not peer:
      self._fail(attempt, old, 'Spark has started it once more', cli.LOST)
    if attempt.is_over or old is not peer:
      self._let_go(peer)
    return attempt, peer

  def _hear(self, attempt, peer):
    for message in peer.connection.receive():
      if isinstance(message.get('lines'), list):
        self._take_lines(peer, message['lines'])
      if isinstance(message.get('lost'), str):
        self._fail(attempt, peer, message['lost'][:300], cli.LOST)
      if 'end' in message:
        self._take_end(attempt, peer, message)
    if not peer.connection.is_open and not peer.is_ended:
      peer.is_ended = True
      self._fail(
        attempt,
        peer,
        f'no word from it any more; its executor was {peer.executor}',
        cli.LOST,
      )

  def _take_lines(self, peer, lines):
    lines = [str(line) for line in lines]
    with _open_log(self._logs[peer.name]) as log:
      log.writelines(f'{line}\n' for line in lines)
    for line in lines:
      self._show(peer.name, line)

  def _take_end(self, attempt, peer, message):
    peer.is_ended = True
    code = message['end']
    peer.code = code if type(code) is int and -65 < code < 256 else None
    if peer.code == 0:
      if isinstance(message.get('report'), dict):
        self.report = message['report']
    elif peer.code is None:
      self._fail(attempt, peer, 'told to stop, but not by us', cli.LOST)
    elif peer.code < 0:
      name = signal.Signals(-peer.code).name
      self._fail(attempt, peer, f'killed by {name}', 128 - peer.code)
    else:
      self._fail(attempt, peer, f'exit code {peer.code}', peer.code)

  def _fail(self, attempt, peer, cause, exit_code):
    if attempt.failure or attempt.is_over or self._is_given_up:
      return  # A consequence of the first.
    attempt.failure = Failure(
      peer.name,
      peer.address,
      cause,
      exit_code,
      attempt.number - 1,
      self._logs[peer.name],
    )

  def _advance(self, attempt):
    """Brings an attempt forward, as far as what was heard allows."""
    if attempt.is_over:
      return
    if attempt.failure or self._is_given_up:
      self._stop_in_order(attempt)
      if not attempt.running or not attempt.is_started:
        self._let_all_go(attempt)
    elif not attempt.is_started:
      if len(attempt.peers) == len(self._names):
        self._start(attempt)
    elif all(peer.code == 0 for peer in attempt.peers.values()):
      self._let_all_go(attempt)
    elif all(peer.name.startswith('ps') for peer in attempt.running):
      # The workers are done: they have told the ps to leave.
      attempt.deadline = attempt.deadline or time.monotonic() + LEAVE_SECS
      if attempt.is_late:
        self._fail(
          attempt,
          attempt.running[0],
          f'still ran {LEAVE_SECS:g} s after the last worker had ended',
          cli.FAILED,
        )
        attempt.deadline = None

  def _start(self, attempt):
    attempt.is_started = True
    for name, peer in attempt.peers.items():
      with _open_log(self._logs[name]) as log:
        if attempt.number > 1:
          log.write(f'--- restart {attempt.number - 1} ---\n')
        self._log_starts[name] = log.tell()
      peer.connection.send(go=True)

  def _stop_in_order(self, attempt):
    running = attempt.running
    if not (attempt.is_started and running):
      return
    attempt.deadline = attempt.deadline or time.monotonic() + self._stop_secs
    workers = [peer for peer in running if peer.name.startswith('worker')]
    for peer in workers or running:
      if not peer.is_told_to_stop:
        peer.is_told_to_stop = True
        peer.connection.send(stop=signal.SIGTERM)
    if attempt.is_late:
      for peer in running:  # With its connection ends the agent, and the task.
        peer.connection.is_open = False

  def _let_all_go(self, attempt):
    attempt.is_over = True
    for peer in attempt.peers.values():
      self._let_go(peer)

  def _let_go(self, peer):
    peer.is_ended = True
    peer.connection.send(leave=True)
