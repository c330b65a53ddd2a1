"""Where the tasks of a run on Spark report to, in the driver.

One thread, which hears all connections and keeps the order of events:

  start   once all tasks of an attempt are there, and no task of an earlier one
          still writes its last checkpoint;
  end     after the first failure the workers are stopped, then the ps; then
          each may leave, and Spark learns whether it is to start them again.
"""

import contextlib
import dataclasses
import os
import re
import selectors
import signal
import socket
import time

from distmnist import cli, json_lines, processes
from distmnist import tasks as tasks_lib

# From the end of the last worker to that of the ps.
LEAVE_SECS = 10.0
# From the order to stop to the end of all: see processes.py, and some more.
STOP_SECS = processes.WORKER_GRACE_SECS + processes.PS_GRACE_SECS + 5.5
# Of who has connected, to show that he knows the secret.
HELLO_SECS = 10.0
_MAX_STRANGERS = 256
# These would come again, and the task has said what to do.
_FINAL_CODES = (cli.FAILED, cli.WRONG_COMMAND_LINE)


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
  """One try of the stage.

  Attributes:
    key: int, what its tasks call it.
    number: int, counted from 1.
    peers: dict of name -> _Peer.
    is_started: whether its tasks were told to go.
    failure: Failure that ends it, or None.
    deadline: when it has to be over, once that is known.
    verdict: whether Spark is to start all again; None until its tasks leave.
  """

  key: int
  number: int
  peers: dict = dataclasses.field(default_factory=dict)
  is_started: bool = False
  failure: Failure | None = None
  deadline: float | None = None
  verdict: bool | None = None

  @property
  def running(self):
    return [peer for peer in self.peers.values() if peer.is_running]

  @property
  def is_late(self):
    return self.deadline is not None and time.monotonic() > self.deadline


class Desk:
  """Hears the tasks, and tells them what to do.

  A context: its end is the end of all connections, and by that of all tasks.

  Attributes:
    port: int, where it listens.
    failure: Failure of the last attempt, or None if that has not failed.
    report: dict, the chief's, or None.
    is_over: whether the run has failed for good, and all tasks have ended.
  """

  def __init__(self, host, secret, names, logs_dir, max_restarts, show, say):
    """Listens.

    Args:
      host: str, the address to listen on.
      secret: str, what the tasks know.
      names: list of str, the tasks.
      logs_dir: str, an existing folder.
      max_restarts: int, attempts after the first.
      show: callable, takes a line of the chief.
      say: callable, takes a line of ours.

    Raises:
      cli.RunError: it cannot listen there.
    """
    try:
      self._listener = socket.create_server((host, 0))
    except OSError as error:
      raise cli.RunError(
        f'the driver cannot listen on {host}: {error.strerror}: set'
        ' spark.driver.bindAddress to an address of this machine'
      ) from error
    self.port = self._listener.getsockname()[1]
    self.failure = None
    self.report = None
    self.is_over = False
    self._secret = secret
    self._names = names
    self._max_restarts = max_restarts
    self._show = show
    self._say = say
    self._logs = {
      name: os.path.join(logs_dir, name.replace(' ', '_') + '.log')
      for name in names
    }
    self._log_starts = {}
    self._strangers = {}
    self._attempts = []
    self._is_given_up = False
    self._wake, self._wake_writer = socket.socketpair()
    self._selector = selectors.DefaultSelector()
    self._selector.register(self._listener, selectors.EVENT_READ)
    self._selector.register(self._wake, selectors.EVENT_READ)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    for key in list(self._selector.get_map().values()):
      key.fileobj.close()
    self._selector.close()
    self._wake_writer.close()

  def wake(self):
    """Interrupts `turn`; may be called by another thread."""
    with contextlib.suppress(OSError):  # The end has come meanwhile.
      self._wake_writer.send(b'.')

  @property
  def missing(self):
    """The tasks (list of names) that Spark has still to start."""
    if self.is_over or not self._attempts:
      return [] if self.is_over else self._names
    current = self._attempts[-1]
    if current.verdict:
      return self._names
    if current.is_started or current.failure:
      return []
    return [name for name in self._names if name not in current.peers]

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
    for key, _ in self._selector.select(secs):
      if key.fileobj is self._wake:
        self._wake.recv(4096)
      elif key.fileobj is self._listener:
        self._accept()
      elif key.data is None:
        self._meet(key.fileobj)
      else:
        self._hear(*key.data)
    for attempt in self._attempts:
      self._advance(attempt)
    self._drop_closed()

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

  def _accept(self):
    with contextlib.suppress(OSError):  # It has gone again.
      connection = json_lines.Connection(
        self._listener.accept()[0], json_lines.MAX_STRANGER_BYTES
      )
      if len(self._strangers) == _MAX_STRANGERS:
        connection.close()
        return
      challenge = json_lines.make_challenge()
      self._strangers[connection] = [challenge, time.monotonic() + HELLO_SECS]
      self._selector.register(connection, selectors.EVENT_READ)
      connection.send(challenge=challenge)

  def _meet(self, connection):
    """Hears one who has not said yet who he is: the answer, then the hello."""
    for message in connection.receive():
      if not connection.is_open or connection not in self._strangers:
        return
      challenge = self._strangers[connection][0]
      if challenge:
        connection.is_open = json_lines.is_right(
          self._secret, challenge, message.get('answer')
        )
        self._strangers[connection][0] = None
      else:
        self._welcome(connection, message)

  def _welcome(self, connection, hello):
    name, key = hello.get('hello'), hello.get('attempt')
    address, executor = hello.get('address'), hello.get('executor')
    connection.is_open = (
      name in self._names
      and type(key) is int
      and isinstance(address, str)
      and bool(re.fullmatch(r'[\w.:\[\]-]{1,300}', address))
      and isinstance(executor, str)
      and bool(re.fullmatch(r'[\w.:\[\]() -]{1,300}', executor))
    )
    if not connection.is_open:
      return
    attempt = next((a for a in self._attempts if a.key == key), None)
    if attempt is None:
      attempt = _Attempt(key, len(self._attempts) + 1)
      self._attempts.append(attempt)
    del self._strangers[connection]
    connection.max_bytes = json_lines.MAX_MESSAGE_BYTES
    peer = _Peer(name, address, executor, connection)
    attempt.peers[name] = peer
    self._selector.modify(
      connection, selectors.EVENT_READ, data=(attempt, peer)
    )
    if attempt.verdict is not None:
      self._let_go(peer, attempt.verdict)

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
        f'no word from it any more: its executor, {peer.executor}, is gone',
        cli.LOST,
      )

  def _take_lines(self, peer, lines):
    lines = [str(line) for line in lines]
    with open(self._logs[peer.name], 'a', encoding='utf-8') as log:
      log.writelines(f'{line}\n' for line in lines)
    if peer.name == tasks_lib.CHIEF:
      for line in lines:
        self._show(line)

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
    if attempt.failure or attempt.verdict is not None or self._is_given_up:
      return  # A consequence of the first.
    attempt.failure = Failure(
      peer.name,
      peer.address,
      cause,
      exit_code,
      attempt.number - 1,
      self._logs[peer.name],
    )
    if attempt is self._attempts[-1]:
      self.failure = attempt.failure
    if self._is_to_be_tried_again(attempt):
      self._say(
        f'{peer.name} ({peer.address}): {cause}: restart {attempt.number} of'
        f' {self._max_restarts}, with all other tasks'
      )

  def _is_to_be_tried_again(self, attempt):
    return not (
      self._is_given_up
      or attempt.failure is None
      or attempt.failure.exit_code in _FINAL_CODES
      or attempt.number > self._max_restarts
    )

  def _advance(self, attempt):
    """Brings an attempt forward, as far as what was heard allows."""
    if attempt.verdict is not None:
      return
    is_current = attempt is self._attempts[-1]
    if attempt.failure or self._is_given_up or not is_current:
      self._stop_in_order(attempt)
      if not attempt.running or not attempt.is_started:
        self._let_all_go(attempt, self._is_to_be_tried_again(attempt))
    elif not attempt.is_started:
      is_free = not any(a.running for a in self._attempts[:-1])
      if is_free and len(attempt.peers) == len(self._names):
        self._start(attempt)
    elif all(peer.code == 0 for peer in attempt.peers.values()):
      self._let_all_go(attempt, False)
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
    self.failure = None
    for name, peer in attempt.peers.items():
      with open(self._logs[name], 'a', encoding='utf-8') as log:
        if attempt.number > 1:
          log.write(
            f'--- restart {attempt.number - 1} of {self._max_restarts} ---\n'
          )
        self._log_starts[name] = log.tell()
      peer.connection.send(go=attempt.number)

  def _stop_in_order(self, attempt):
    running = attempt.running
    if not (attempt.is_started and running):
      return
    attempt.deadline = attempt.deadline or time.monotonic() + STOP_SECS
    workers = [peer for peer in running if peer.name.startswith('worker')]
    for peer in workers or running:
      if not peer.is_told_to_stop:
        peer.is_told_to_stop = True
        peer.connection.send(stop=signal.SIGTERM)
    if attempt.is_late:
      for peer in running:  # With its connection ends the agent, and the task.
        peer.connection.is_open = False

  def _let_all_go(self, attempt, is_again):
    attempt.verdict = is_again
    for peer in attempt.peers.values():
      self._let_go(peer, is_again)
    if attempt.failure and not is_again:
      self.is_over = True

  def _let_go(self, peer, is_again):
    peer.is_ended = True
    peer.connection.send(leave=is_again)

  def _drop_closed(self):
    now = time.monotonic()
    for connection, (_, deadline) in self._strangers.items():
      connection.is_open &= now < deadline
    for key in list(self._selector.get_map().values()):
      connection = key.fileobj
      if (
        isinstance(connection, json_lines.Connection) and not connection.is_open
      ):
        self._selector.unregister(connection)
        self._strangers.pop(connection, None)
        connection.close()
