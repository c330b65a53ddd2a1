"""Tasks on other machines: each is followed by an ssh, which ends as it does.

There launching/agent.py runs the task. What it writes to stdout ssh itself adds
to the task's log; on stderr the agent says when it runs, and all else is ssh's
or the shell's. The signs of life come from beats.py.

The agents end their tasks when stdin ends: so they outlive neither this host
nor its process, however that ends.
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import os
import random
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO

from distmnist.common import cli, files, signals, stop_grace
from distmnist.common.names import ATTEMPT, LAUNCH_ID
from distmnist.launching import agent, beats, child_process
from distmnist.launching import host as host_lib
from distmnist.launching.screen import task_logs
from distmnist.launching.supervisor import failures

# sshd turns some away if more than ten connect at once (its MaxStartups). A
# launch connects this many to a host; it may have other clients, so each tries
# again.
NUM_AT_ONCE = 6
TURNED_AWAY_SECS = 60.0
# From the start of ssh until the other end runs: a login shell, and Python from
# a file server that has much to do.
READY_SECS = 120.0
# Between two tries: at random, or all would connect at once again.
_AGAIN_SECS = 0.2, 2.0
# How often to look whether an ssh that says nothing more has ended.
_LOOK_SECS = 0.05


def ssh_command(
  login: str, command: str, options: Sequence[str] = ()
) -> list[str]:
  """Returns the words that run `command`, which is for the shell there.

  Args:
    login: [user@]host.
    options: of ssh. They override ours: ssh takes the first.
  """
  ours = (
    'BatchMode=yes',  # A prompt would wait forever.
    'ConnectTimeout=10',
    # It gives up 75 s after the other side's last answer. By then the task has
    # ended there, so that a restart finds its port free: it takes at most 5 s
    # from our last line to the cut, 60 s of silence, and a few to leave.
    'ServerAliveInterval=15',
    'ServerAliveCountMax=5',
    # A shared connection would outlive us, and one of us could end it for all.
    'ControlPath=none',
  )
  words = [word for option in ours for word in ('-o', option)]
  return ['ssh', '-T', *options, *words, '--', login, command]


class SshHost(host_lib.Host):
  """Runs each task where it belongs, over an ssh of its own."""

  name = 'launcher'

  def __init__(
    self,
    places: Mapping[str, tuple[str, int | None]],
    command: str,
    options: Sequence[str],
    python: str,
    grace_secs: float,
  ) -> None:
    """
    Args:
      places: name of a task -> (login, port): ssh's [user@]host, and where the
        task serves there.
      command: starts the agent there, for the shell.
      options: of ssh.
      python: the Python in `command`, for messages.
      grace_secs: from SIGTERM to SIGKILL for tasks that still run there when we
        are gone.
    """
    super().__init__()
    self.is_ready = True
    self._places = places
    self._command = command
    self._options = options
    self._python = python
    self._grace_secs = grace_secs
    self._tasks: dict[str, _Task] = {}  # Until their ends.
    self._ended: list[tuple[str, int | None]] = []

  def __enter__(self) -> SshHost:
    child_process.allow_many_files()  # Two a task.
    with contextlib.ExitStack() as stack:
      self._wake = stack.enter_context(signals.waking(self.signals))
      self._selector = stack.enter_context(selectors.DefaultSelector())
      self._selector.register(self._wake, selectors.EVENT_READ)
      self._beats = beats.Beats()
      self._beats.__enter__()
      self._at_exit = stack.pop_all()
    return self

  def __exit__(self, *error: object) -> None:
    self._beats.__exit__(*error)
    for task in self._tasks.values():
      task.hang_up()
    deadline = time.monotonic() + self._grace_secs + 2
    for task in self._tasks.values():
      task.end(max(0.0, deadline - time.monotonic()))
    self._at_exit.close()

  def start(self, request: host_lib.Request) -> None:
    login, port = self._places[request.name]
    told = {LAUNCH_ID: os.environ[LAUNCH_ID]} if LAUNCH_ID in os.environ else {}
    order: agent.Request = {
      'argv': request.argv,
      'env': {**told, **request.env},
      'port': port,
      'grace_secs': stop_grace.for_remote(self._grace_secs),
    }
    words = ssh_command(login, self._command, self._options)
    self._tasks[request.name] = _Task(
      login, words, order, request.log, self._beats
    )
    self._connect_next()

  def signal(self, names: Iterable[str], signum: int) -> None:
    for name in [name for name in names if name in self._tasks]:
      if self._tasks[name].tell(signum):
        self._note_end(name, -signum)

  def kill(self) -> None:
    self.signal(list(self._tasks), signal.SIGKILL)

  def poll(
    self, timeout_secs: float | None = None
  ) -> list[tuple[str, int | None]]:
    self._connect_next()
    for key, events in self._selector.select(self._find_secs(timeout_secs)):
      if key.fileobj is self._wake:
        self._wake.recv(4096)
      else:
        key.data.handle(events)
    for name, task in list(self._tasks.items()):
      task.check_ready()
      has_ended = task.has_ended()  # Takes its last words: it may have begun.
      if task.is_ready and not task.has_begun:
        task.has_begun = True
        self.begun.append((name, None))
      if has_ended:
        self._finish(name, task)
    ended, self._ended = self._ended, []
    return ended

  def _find_secs(self, timeout_secs: float | None) -> float | None:
    """Returns the seconds until something is due, at most `timeout_secs`."""
    if self._ended:
      return 0.0
    due = [task.due_secs for task in self._tasks.values()]
    due += [] if timeout_secs is None else [timeout_secs]
    secs = min(due, default=math.inf)
    return None if secs == math.inf else secs

  def _connect_next(self) -> None:
    """Starts the ssh of tasks that wait, as many a host as may connect."""
    connecting = collections.Counter(
      task.host for task in self._tasks.values() if task.is_connecting
    )
    for name, task in list(self._tasks.items()):
      if not task.is_due or connecting[task.host] >= NUM_AT_ONCE:
        continue
      connecting[task.host] += 1
      try:
        task.connect(self._selector)
      except OSError as error:
        self.reasons[name] = f'no ssh was started: {error.strerror}'
        self._note_end(name, cli.NOT_STARTED)

  def _finish(self, name: str, task: _Task) -> None:
    if task.is_turned_away:
      task.write(f'ssh to {task.login}: {task.words}: trying again')
      task.try_again()
      return
    if task.has_failed and not task.is_killed:
      words = f'ssh to {task.login}: {task.words}'
      if 'No module named' in words:
        words += (
          f': the Python there was {self._python}: name another by --ssh_python'
        )
      task.write(words)
      self.reasons[name] = words
    self._note_end(name, task.find_code())

  def _note_end(self, name: str, code: int) -> None:
    del self._tasks[name]
    self._ended.append((name, code))


class _Task:
  """A task elsewhere, from its request to the end of its ssh.

  Attributes:
    host: without the user.
    is_ready: whether the other end runs.
    has_begun: whether that was told.
  """

  # Those of the last ssh, once there was one.
  _process: subprocess.Popen[bytes]
  _stdin: IO[bytes]
  _stderr: IO[bytes]

  def __init__(
    self,
    login: str,
    command: list[str],
    request: agent.Request,
    log: str,
    beats: beats.Beats,
  ) -> None:
    self.login = login
    self.host = login.rpartition('@')[2]
    self._command = command
    self._is_first = ATTEMPT not in request['env']
    self._request = json.dumps(request).encode() + b'\n'
    self._log = log
    self._beats = beats
    self._has_ssh = False
    self._start_time = 0.0  # When the next ssh may start.
    self._give_up_time = math.inf  # Then one that is turned away tries no more.
    self._killed_by = 0  # The signal for which its ssh was killed.
    self._is_too_late = False
    self.is_ready = self.has_begun = False

  @property
  def is_killed(self) -> bool:
    """Whether its ssh was killed because we were told to."""
    is_by_kill = self._has_ssh and self._process.returncode == -signal.SIGKILL
    return bool(self._killed_by) and is_by_kill

  @property
  def is_connecting(self) -> bool:
    return self._has_ssh and not self.is_ready

  @property
  def is_due(self) -> bool:
    return not self._has_ssh and time.monotonic() >= self._start_time

  @property
  def due_secs(self) -> float:
    """Seconds until it has something to do that no event announces."""
    if not self._has_ssh:
      # With those that connect already it waits for one of their events.
      return max(_LOOK_SECS, self._start_time - time.monotonic())
    if not self._is_heard:
      return _LOOK_SECS
    if self.is_ready:
      return math.inf
    return max(0.0, self._ready_deadline - time.monotonic())

  def connect(self, selector: selectors.BaseSelector) -> None:
    """Starts ssh.

    Raises:
      OSError: the system refuses.
    """
    with open(self._log, 'ab', opener=files.no_follow) as log:
      self._process = subprocess.Popen(
        self._command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.PIPE,
        start_new_session=True,  # A Ctrl-C is ours to pass on.
        preexec_fn=child_process.die_with_parent,
      )
    self._has_ssh = True
    self._stdin = child_process.get_pipe(self._process.stdin)
    self._stderr = child_process.get_pipe(self._process.stderr)
    now = time.monotonic()
    self._give_up_time = min(self._give_up_time, now + TURNED_AWAY_SECS)
    self._ready_deadline = now + READY_SECS
    self._selector = selector
    self._said: list[str] = []
    self._rest = b''
    self._unsent = self._request
    self._has_request = False
    self._is_heard = True
    for pipe in (self._stdin, self._stderr):
      os.set_blocking(pipe.fileno(), False)
    selector.register(self._stderr, selectors.EVENT_READ, self)
    selector.register(self._stdin, selectors.EVENT_WRITE, self)

  def handle(self, events: int) -> None:
    """Reads or writes what there is, as the selector says."""
    if events & selectors.EVENT_WRITE:
      self._flush()
    if events & selectors.EVENT_READ:
      self._read()

  def check_ready(self) -> None:
    """Ends an ssh whose other end does not come to run."""
    if self.is_connecting and time.monotonic() > self._ready_deadline:
      self._said = [f'nothing runs there after {READY_SECS:g} s']
      self._is_too_late = True
      self._process.kill()

  def tell(self, signum: int) -> bool:
    """Has the task get a signal; returns whether it ends without one."""
    if not self._has_ssh:
      return True
    self._read()  # It may have said that the other end runs.
    if self.is_ready and signum != signal.SIGKILL:
      self._send(f'{int(signum)}\n'.encode())
    else:
      self._killed_by = self._killed_by or signum
      self._process.kill()
    return False

  def has_ended(self) -> bool:
    """Whether its ssh has ended; closes its pipes then."""
    if not self._has_ssh or self._process.poll() is None:
      return False
    self._read()
    self._take(self._rest)
    self.hang_up()
    if self._is_heard:
      self._selector.unregister(self._stderr)
    self._stderr.close()
    return True

  def hang_up(self) -> None:
    """Ends what ssh reads, and so the task."""
    if self._has_ssh and not self._stdin.closed:
      self._stop_writing()
      self._beats.drop_pipe(self._stdin.fileno())
      with contextlib.suppress(BrokenPipeError):
        self._stdin.close()

  def end(self, secs: float) -> None:
    """Waits for the end of ssh, at most `secs` seconds; then kills it."""
    if self._has_ssh:
      child_process.end(self._process, secs)
      self._stderr.close()

  @property
  def is_turned_away(self) -> bool:
    """Whether sshd had no room, and there is time to try again."""
    said = '\n'.join(self._said)
    return (
      self._process.returncode == agent.SSH_FAILED_CODE
      and ('kex_exchange_identification' in said or 'MaxStartups' in said)
      and not self._killed_by
      and time.monotonic() < self._give_up_time
    )

  def try_again(self) -> None:
    """Lets the next ssh start in a while."""
    self._has_ssh = False
    self._start_time = time.monotonic() + random.uniform(*_AGAIN_SECS)

  @property
  def has_failed(self) -> bool:
    """Whether the task was never reached, or the connection to it is lost."""
    code = self._process.returncode
    return not self.is_ready or not 0 <= code < agent.SSH_FAILED_CODE

  @property
  def words(self) -> str:
    """The last words of ssh, or of the shell there."""
    code = self._process.returncode
    if self._said and (code >= 0 or self._is_too_late):
      return self._said[-1]
    if code < 0:
      return failures.describe_end(code)
    if code == agent.SSH_FAILED_CODE:
      return 'the connection was lost'
    return f'ended with exit code {code} before the task'

  def find_code(self) -> int:
    """Returns the task's exit code, -n after signal n."""
    if self.is_killed:
      return -self._killed_by
    if self.has_failed:
      # A host that cannot be reached at the start is a mistake; later it may
      # come back, and what is slow may be fast.
      is_mistake = self._is_first and not (self.is_ready or self._is_too_late)
      return cli.FAILED if is_mistake else cli.LOST
    return failures.from_shell(self._process.returncode)

  def write(self, line: str) -> None:
    """Adds a line to the task's log; one that does not fit is lost."""
    task_logs.append_if_possible(self._log, [line])

  def _send(self, data: bytes) -> None:
    if not self._stdin.closed:
      if not self._unsent:
        self._selector.register(self._stdin, selectors.EVENT_WRITE, self)
      self._unsent += data
      self._flush()

  def _flush(self) -> None:
    try:
      sent = os.write(self._stdin.fileno(), self._unsent)
      self._unsent = self._unsent[sent:]
    except BlockingIOError:
      pass
    except OSError:  # ssh will say why.
      self._unsent = b''
    if not self._unsent:
      self._stop_writing()
      if not self._has_request:  # Whole: a line may follow it.
        self._has_request = True
        self._beats.add_pipe(self._stdin.fileno())

  def _stop_writing(self) -> None:
    with contextlib.suppress(KeyError):
      self._selector.unregister(self._stdin)

  def _read(self) -> None:
    """Takes what ssh says."""
    if not self._is_heard:
      return
    try:
      while data := os.read(self._stderr.fileno(), 1 << 16):
        *lines, self._rest = (self._rest + data).split(b'\n')
        for line in lines:
          self._take(line)
    except BlockingIOError:
      return
    self._is_heard = False
    self._selector.unregister(self._stderr)

  def _take(self, line: bytes) -> None:
    text = line.decode(errors='replace').strip()
    if text.endswith(agent.READY):  # After a prompt without an end, say.
      self.is_ready = True
      self._said = []
    elif text:
      self.write(text)
      # We print the host: drop the prefix `ssh:` or `user@host:`.
      said = re.sub(r'^(ssh|\S+@\S+): ', '', text)
      self._said.append(said.removesuffix('.'))
