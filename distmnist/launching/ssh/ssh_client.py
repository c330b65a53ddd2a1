"""Stands in on this machine for a task on another host.

It starts ssh, requests the task, passes signals on and ends as the task does.
On the other host ssh_agent.py runs the task.

ssh carries, line by line:

  stdin   the request, {"argv": [...], "env": {...}, "port": number or null,
          "grace_secs": number}; then the numbers of signals for the task, and
          empty lines as signs of life
  stdout  what the task writes
  stderr  READY once the other end runs; all else is ssh's or the shell's
"""

import contextlib
import json
import os
import random
import re
import resource
import select
import signal
import subprocess
import sys
import time

from distmnist.common import cli
from distmnist.common import signals as signals_lib
from distmnist.common.names import ATTEMPT, LAUNCH_ID
from distmnist.launching import child_process
from distmnist.launching.ssh import file_semaphore, ssh_agent
from distmnist.launching.supervisor import failures

# How the last line of a log begins if ssh failed rather than the task.
SSH_FAILED = 'ssh to '

# ssh gives up 75 s after the other side's last answer (ssh_command). By then
# the task has ended there, so that a restart finds its port free: it takes at
# most 10 s from our last line to the cut, 60 s of silence, and a few to leave.
BEAT_SECS = 10.0
# sshd turns some away if more than ten connect at once (its MaxStartups). One
# launch connects this many; there may be other clients, so each tries again.
NUM_AT_ONCE = 6
TURNED_AWAY_SECS = 60.0
# The variable that gives tasks on this machine the path of a host's semaphore.
SEMAPHORE = 'DISTMNIST_SSH_SEMAPHORE'


def ssh_command(login, command, options=()):
  """Returns the list of str that runs `command` (str, for the shell there).

  Args:
    login: str, [user@]host.
    command: str.
    options: list of str for ssh. They override ours: ssh takes the first.
  """
  ours = (
    'BatchMode=yes',  # A prompt would wait forever.
    'ConnectTimeout=10',
    'ServerAliveInterval=15',
    'ServerAliveCountMax=5',
    # A shared connection would outlive us, and one of us could end it for all.
    'ControlPath=none',
  )
  words = [word for option in ours for word in ('-o', option)]
  return ['ssh', '-T', *options, *words, '--', login, command]


def make_argv(login, request, command):
  """Returns the argv (tuple of str) of the process that stands in for a task.

  Args:
    login: str, [user@]host, for messages about ssh.
    request: dict, see above.
    command: list of str, the whole ssh command.
  """
  return ('python', '-m', __name__, login, json.dumps(request), *command)


def run():
  """Runs the task that our argv asks for; ends as it does."""
  login, request, *command = sys.argv[1:]
  signals = signals_lib.Reader(*signals_lib.STOPS, signal.SIGCHLD)
  gate = file_semaphore.FileSemaphore(os.environ[SEMAPHORE], NUM_AT_ONCE)
  stopped_by = []

  def pause(secs):
    ready, _, _ = select.select([signals], [], [], secs)
    stopped_by.extend(signals.read() if ready else ())
    return bool(stopped_by)

  if not gate.enter(pause):
    sys.exit(128 + stopped_by[0])
  deadline = time.monotonic() + TURNED_AWAY_SECS
  while True:
    ssh = _Ssh(_with_attempt(request), command, signals, gate.leave)
    ssh.follow()
    if not ssh.is_turned_away or time.monotonic() > deadline:
      break
    print(f'{SSH_FAILED}{login}: {ssh.words}: trying again', flush=True)
    # Each after its own random delay, or all would connect at once again.
    if ssh.wait_for_signal(random.uniform(0.2, 2)):
      break
  if ssh.stopped_by:
    sys.exit(128 + ssh.stopped_by)
  if ssh.has_failed:
    print(f'{SSH_FAILED}{login}: {ssh.words}', flush=True)
    # A host that cannot be reached at the start is a mistake; later it may come
    # back.
    is_first = ATTEMPT not in os.environ and not ssh.is_ready
    sys.exit(cli.FAILED if is_first else cli.LOST)
  signum = ssh.code - 128
  # Codes that train itself returns stay as they are.
  if signum in {*signal.valid_signals()} - {*signals_lib.STOPS}:
    # Ends as a task on this machine would, so that the signal is named.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), signum)
  sys.exit(ssh.code)


def _with_attempt(request):
  request = json.loads(request)
  told = {n: os.environ[n] for n in (ATTEMPT, LAUNCH_ID) if n in os.environ}
  request['env'] |= told
  return json.dumps(request)


class _Ssh:
  """One ssh process, from its start to its end.

  Attributes:
    is_ready: bool, whether the other end has started.
    stopped_by: int, the signal that stopped us before it had, or None.
    code: int, ssh's exit code (the task's if ready); -n after signal n.
  """

  def __init__(self, request, command, signals, on_ready):
    self._signals = signals
    self._on_ready = on_ready
    self.is_ready = False
    self.stopped_by = None
    self.code = None
    self._said = []
    self._rest = b''
    self._process = subprocess.Popen(
      command,
      stdin=subprocess.PIPE,
      stderr=subprocess.PIPE,
      # We pass on signals for our group ourselves, by number.
      start_new_session=True,
      preexec_fn=child_process.die_with_parent,
    )
    self._send(request)

  @property
  def has_failed(self):
    """Whether the task was never reached, or the connection to it is lost."""
    return not self.is_ready or not 0 <= self.code < ssh_agent.SSH_FAILED_CODE

  @property
  def words(self):
    """What ssh, or the shell there, said last (str)."""
    if self.code < 0:
      return failures.describe_end(self.code)
    if self._said:
      return self._said[-1]
    if self.code == ssh_agent.SSH_FAILED_CODE:
      return 'the connection was lost'
    return f'ended with exit code {self.code} before the task'

  @property
  def is_turned_away(self):
    said = '\n'.join(self._said)
    return self.code == ssh_agent.SSH_FAILED_CODE and any(
      word in said for word in ('kex_exchange_identification', 'MaxStartups')
    )

  def follow(self):
    """Keeps the task alive and passes signals on until ssh ends."""
    process, beat_time = self._process, time.monotonic() + BEAT_SECS
    stderr = process.stderr.fileno()
    os.set_blocking(stderr, False)
    os.set_blocking(process.stdin.fileno(), False)
    readers = [self._signals, stderr]
    while process.poll() is None:
      secs = max(0, beat_time - time.monotonic())
      ready, _, _ = select.select(readers, [], [], secs)
      # First, as it says whether there is a task to take a signal.
      if stderr in ready and not self._read(stderr):
        readers.remove(stderr)
      if self._signals in ready:
        self._pass_on(self._signals.read())
      if time.monotonic() >= beat_time:
        self._send('')
        beat_time = time.monotonic() + BEAT_SECS
    self.code = process.wait()
    self._read(stderr)
    self._take(self._rest)
    process.stdin.close()
    process.stderr.close()

  def wait_for_signal(self, secs):
    """Returns whether we are told to leave within `secs`."""
    ready, _, _ = select.select([self._signals], [], [], secs)
    if ready:
      self._pass_on(self._signals.read())
    return self.stopped_by is not None

  def _pass_on(self, signums):
    for signum in signums:
      if signum == signal.SIGCHLD:
        continue
      if self.is_ready:
        self._send(str(signals_lib.choose_passed_on(signum)))
      else:
        self.stopped_by = signum
        self._process.kill()

  def _send(self, line):
    # If the pipe is full or broken, ssh will say why.
    with contextlib.suppress(BlockingIOError, BrokenPipeError):
      os.write(self._process.stdin.fileno(), line.encode() + b'\n')

  def _read(self, stderr):
    """Takes what ssh says; returns whether it may say more."""
    try:
      while data := os.read(stderr, 1 << 16):
        *lines, self._rest = (self._rest + data).split(b'\n')
        for line in lines:
          self._take(line)
    except BlockingIOError:
      return True
    return False

  def _take(self, line):
    line = line.decode(errors='replace').strip()
    if line == ssh_agent.READY:
      self.is_ready = True
      self._said = []
      self._on_ready()
    elif line:
      print(line, flush=True)
      # We print the host: drop the prefix `ssh:` or `user@host:`.
      said = re.sub(r'^(ssh|\S+@\S+): ', '', line)
      self._said.append(said.removesuffix('.'))
