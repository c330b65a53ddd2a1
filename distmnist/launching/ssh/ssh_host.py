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
# How long the first host that cannot be reached waits for the others' answers,
# so that all such hosts are named at once: ssh's ConnectTimeout, and a bit.
_OTHERS_SECS = 12.0
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
    # name -> host of first attempts that did not reach theirs, until told.
    self._unreached: dict[str, str] = {}
    self._tell_time = math.inf

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
    running = [task.ssh for task in self._tasks.values() if task.ssh]
    for ssh in running:
      ssh.hang_up()
    deadline = time.monotonic() + self._grace_secs + 2
    for ssh in running:
      ssh.end(max(0.0, deadline - time.monotonic()))
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
    self._tell_unreached()
    for name in [name for name in names if name in self._tasks]:
      if ssh := self._tasks[name].ssh:
        ssh.tell(signum)
      else:
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
      if not (ssh := task.ssh):
        continue
      ssh.check_ready()
      has_ended = ssh.has_ended()  # Takes its last words: it may have begun.
      if ssh.is_ready and not task.has_begun:
        task.has_begun = True
        self.begun.append((name, None))
      if has_ended:
        self._finish(name, task, ssh)
    is_connecting = any(task.is_connecting for task in self._tasks.values())
    if not is_connecting or time.monotonic() >= self._tell_time:
      self._tell_unreached()
    ended, self._ended = self._ended, []
    return ended

  def _find_secs(self, timeout_secs: float | None) -> float | None:
    """Returns the seconds until something is due, at most `timeout_secs`."""
    if self._ended:
      return 0.0
    due = [task.due_secs for task in self._tasks.values()]
    due.append(max(0.0, self._tell_time - time.monotonic()))
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

  def _finish(self, name: str, task: _Task, ssh: _Ssh) -> None:
    if ssh.is_turned_away and time.monotonic() < task.give_up_time:
      ssh.write(f'ssh to {task.login}: {ssh.words}: trying again')
      task.try_again()
      return
    code = ssh.find_code(task.is_first)
    if ssh.has_failed and not ssh.is_killed:
      words = f'ssh to {task.login}: {ssh.words}'
      if 'No module named' in words:
        words += (
          f': the Python there was {self._python}: name another by --ssh_python'
        )
      ssh.write(words)
      self.reasons[name] = words
      if code == cli.FAILED:
        del self._tasks[name]
        self._unreached[name] = task.host
        self._tell_time = min(self._tell_time, time.monotonic() + _OTHERS_SECS)
        return
    self._note_end(name, code)

  def _tell_unreached(self) -> None:
    """Reports the hosts that cannot be reached, all with the first of them."""
    if not self._unreached:
      return
    _, *others = dict.fromkeys(self._unreached.values())
    if others:
      name = next(iter(self._unreached))
      self.reasons[name] += f'; nor does a task start on {", ".join(others)}'
    self._ended += [(name, cli.FAILED) for name in self._unreached]
    self._unreached.clear()
    self._tell_time = math.inf

  def _note_end(self, name: str, code: int) -> None:
    del self._tasks[name]
    self._ended.append((name, code))


class _Task:
  """A task elsewhere, from its request to its end.

  Attributes:
    login: [user@]host.
    host: without the user.
    is_first: whether this is the first attempt at it.
    ssh: the one that runs it; None before the first, and from one that was
      turned away to the next.
    has_begun: whether that was told.
    give_up_time: then an ssh that is turned away is not tried again.
  """

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
    self.is_first = ATTEMPT not in request['env']
    self.ssh: _Ssh | None = None
    self.has_begun = False
    self.give_up_time = math.inf
    self._command = command
    self._request = json.dumps(request).encode() + b'\n'
    self._log = log
    self._beats = beats
    self._start_time = 0.0  # When the next ssh may start.

  @property
  def is_connecting(self) -> bool:
    return self.ssh is not None and not self.ssh.is_ready

  @property
  def is_due(self) -> bool:
    return self.ssh is None and time.monotonic() >= self._start_time

  @property
  def due_secs(self) -> float:
    """Seconds until it has something to do that no event announces."""
    if self.ssh:
      return self.ssh.due_secs
    # With those that connect already it waits for one of their events.
    return max(_LOOK_SECS, self._start_time - time.monotonic())

  def connect(self, selector: selectors.BaseSelector) -> None:
    """Starts ssh.

    Raises:
      OSError: the system refuses.
    """
    self.ssh = _Ssh(
      self._command, self._request, self._log, self._beats, selector
    )
    now = time.monotonic()
    self.give_up_time = min(self.give_up_time, now + TURNED_AWAY_SECS)

  def try_again(self) -> None:
    """Lets the next ssh start in a while."""
    self.ssh = None
    self._start_time = time.monotonic() + random.uniform(*_AGAIN_SECS)


class _Ssh:
  """One ssh, from its start to its end.

  Attributes:
    is_ready: whether the other end runs.
  """

  def __init__(
    self,
    command: list[str],
    request: bytes,
    log: str,
    beats: beats.Beats,
    selector: selectors.BaseSelector,
  ) -> None:
    """Starts it.

    Args:
      command: its words.
      request: what it passes to the agent; beats follow.
      log: the task's.
      beats: those of all tasks.
      selector: the host's, which then calls `handle`.

    Raises:
      OSError: the system refuses.
    """
    with open(log, 'ab', opener=files.no_follow) as file:
      self._process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=file,
        stderr=subprocess.PIPE,
        start_new_session=True,  # A Ctrl-C is ours to pass on.
        preexec_fn=child_process.die_with_parent,
      )
    self._stdin = child_process.get_pipe(self._process.stdin)
    self._stderr = child_process.get_pipe(self._process.stderr)
    self._log = log
    self._beats = beats
    self._selector = selector
    self._ready_deadline = time.monotonic() + READY_SECS
    self._said: list[str] = []
    self._rest = b''
    self._unsent = request
    self._has_request = False
    self._is_heard = True
    self._killed_by = 0  # The signal for which it was killed.
    self._is_too_late = False
    self.is_ready = False
    for pipe in (self._stdin, self._stderr):
      os.set_blocking(pipe.fileno(), False)
    selector.register(self._stderr, selectors.EVENT_READ, self)
    selector.register(self._stdin, selectors.EVENT_WRITE, self)

  @property
  def is_killed(self) -> bool:
    """Whether it was killed because we were told to."""
    is_by_kill = self._process.returncode == -signal.SIGKILL
    return bool(self._killed_by) and is_by_kill

  @property
  def due_secs(self) -> float:
    """Seconds until it has something to do that no event announces."""
    if not self._is_heard:
      return _LOOK_SECS
    if self.is_ready:
      return math.inf
    return max(0.0, self._ready_deadline - time.monotonic())

  def handle(self, events: int) -> None:
    """Reads or writes what there is, as the selector says."""
    if events & selectors.EVENT_WRITE:
      self._flush()
    if events & selectors.EVENT_READ:
      self._read()

  def check_ready(self) -> None:
    """Ends it if its other end does not come to run."""
    if not self.is_ready and time.monotonic() > self._ready_deadline:
      self._said = [f'nothing runs there after {READY_SECS:g} s']
      self._is_too_late = True
      self._process.kill()

  def tell(self, signum: int) -> None:
    """Has the task get a signal; without a task there it ends itself."""
    self._read()  # It may have said that the other end runs.
    if self.is_ready and signum != signal.SIGKILL:
      self._send(f'{int(signum)}\n'.encode())
    else:
      self._killed_by = self._killed_by or signum
      self._process.kill()

  def has_ended(self) -> bool:
    """Whether it has ended; closes its pipes then."""
    if self._process.poll() is None:
      return False
    self._read()
    self._take(self._rest)
    self.hang_up()
    if self._is_heard:
      self._selector.unregister(self._stderr)
    self._stderr.close()
    return True

  def hang_up(self) -> None:
    """Ends what it reads, and so the task."""
    if not self._stdin.closed:
      self._stop_writing()
      self._beats.drop_pipe(self._stdin.fileno())
      with contextlib.suppress(BrokenPipeError):
        self._stdin.close()

  def end(self, secs: float) -> None:
    """Waits for its end, at most `secs` seconds; then kills it."""
    child_process.end(self._process, secs)
    self._stderr.close()

  @property
  def is_turned_away(self) -> bool:
    """Whether sshd had no room."""
    said = '\n'.join(self._said)
    return (
      self._process.returncode == agent.SSH_FAILED_CODE
      and ('kex_exchange_identification' in said or 'MaxStartups' in said)
      and not self._killed_by
    )

  @property
  def has_failed(self) -> bool:
    """Whether the task was never reached, or the connection to it is lost."""
    code = self._process.returncode
    return not self.is_ready or not 0 <= code < agent.SSH_FAILED_CODE

  @property
  def words(self) -> str:
    """Its last words, or those of the shell there."""
    code = self._process.returncode
    if self._said and (code >= 0 or self._is_too_late):
      return self._said[-1]
    if code < 0:
      return failures.describe_end(code)
    if code == agent.SSH_FAILED_CODE:
      return 'the connection was lost'
    return f'ended with exit code {code} before the task'

  def find_code(self, is_first: bool) -> int:
    """Returns the task's exit code, -n after signal n.

    Args:
      is_first: whether this is the first attempt at the task.
    """
    if self.is_killed:
      return -self._killed_by
    if self.has_failed:
      # A host that cannot be reached at the start is a mistake; later it may
      # come back, and what is slow may be fast.
      is_mistake = is_first and not (self.is_ready or self._is_too_late)
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
