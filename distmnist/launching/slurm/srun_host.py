"""The host of tasks in a Slurm job: one srun starts them all, as one step.

A step starts 300 tasks in a second or two, each on the cores and GPUs that
Slurm has for it, where an srun for each would take as many processes here and
requests to Slurm. The price: its tasks start together and are signalled
together.

Each task runs under a shell of a few lines (_TASK), which writes to its own
stdout, and srun brings that here line by line:

  MARK RANK begun PID NODE   the task starts
  MARK RANK told SIGNAL      it has ended, after Slurm signalled the step
  MARK RANK ended CODE       it has ended; 128 + n after signal n
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

from distmnist.cluster.identity import FIRST_PORT
from distmnist.common import cli, files, signals, stop_grace
from distmnist.common.names import ATTEMPT
from distmnist.launching import child_process
from distmnist.launching import host as host_lib
from distmnist.launching.screen import terminal
from distmnist.launching.supervisor import failures

_log = logging.getLogger(__name__)

MARK = 'distmnist-task'
_LINE = re.compile(rf'{MARK} (\d+) (begun|told|ended) (\d+) ?(\S*)')
_MAX_MOVES = 20
# Far more than Slurm takes to kill a step; then srun itself is killed.
_KILL_SECS = 60.0
_LOOK_SECS = 0.05

# All of this process's variables go to the tasks, whatever sbatch was told (its
# --export); and no task's end ends the others, as the supervisor decides that.
_SRUN = (
  *('srun', '--quiet', '--distribution=block', '--mpi=none', '--wait=0'),
  *('--kill-on-bad-exit=0', '--export=ALL'),
)
# The words of the shell itself on a program that was killed are for nobody.
_TASK = """{gpus}
say() {{ echo "{mark} $SLURM_PROCID $*"; }}
{traps}
say begun $$ "$SLURMD_NODENAME"
exec 2>/dev/null
(exec "$@" >>"$log" 2>&1 </dev/null)
code=$?
say ended $code
exit $code
"""
# The GPUs of a node go to its tasks in turn.
_SHARE_GPUS = """pick() {
  shift $((SLURM_LOCALID % $#))
  export CUDA_VISIBLE_DEVICES="$1"
}
case ${CUDA_VISIBLE_DEVICES-} in
*,*) IFS=,; pick $CUDA_VISIBLE_DEVICES; unset IFS ;;
esac"""


class SrunHost(host_lib.Host):
  """The tasks of the Slurm job that this process belongs to.

  A request that comes while a step runs waits for its end: only tasks that are
  requested together run together, numbered in that order.

  A signal to some tasks reaches all, as Slurm knows only the step: a ps hears
  of the end with the workers, and itself waits for the chief's save. SIGKILL
  ends the step.

  Where Slurm signals the tasks, as before a time limit (--signal=USR1@60), that
  is in `signals` like what this process receives; once at most, because Slurm
  allows no more time after a second one. What is told to leave is reported in a
  later turn than the signal.

  A step in which a task finds its port taken (exit code 98) is started again on
  other ports, up to 20 times, and its end is not reported.

  Attributes:
    nodes: name -> node of each task that has begun.
  """

  name = 'srun'
  ends_as_one = True

  def __init__(
    self,
    folder: str,
    num_tasks: int,
    env: Mapping[str, str],
    stop_grace_secs: float = stop_grace.DEFAULT_SECS,
    has_shared_gpus: bool = False,
    num_earlier: int = 0,
  ) -> None:
    """
    Args:
      folder: an existing folder that the nodes share.
      num_tasks: how many tasks may run at a time.
      env: this process's variables, with Slurm's, for all tasks.
      stop_grace_secs: see TaskGroup.
      has_shared_gpus: whether each task gets one GPU of its node.
      num_earlier: the attempts at all tasks by this job before it was queued
        again.
    """
    super().__init__()
    self._job_id = env['SLURM_JOB_ID']
    self._path = os.path.join(folder, f'job_{self._job_id}.tasks')
    self._num_tasks = num_tasks
    self._env = dict(env)
    self._stop_grace_secs = stop_grace_secs
    self._has_shared_gpus = has_shared_gpus
    self._num_earlier = num_earlier
    self._num_moves = 0
    # name -> what the shell of a task does first
    self._requests: dict[str, str] = {}
    self._step: _Step | None = None
    self._received: list[int] = []
    self._ended: list[tuple[str, int | None]] = []
    # scancel, until it has ended
    self._helpers: list[subprocess.Popen[bytes]] = []
    self.nodes: dict[str, str] = {}

  def __enter__(self) -> SrunHost:
    with contextlib.ExitStack() as stack:
      self._wake = stack.enter_context(signals.waking(self._received))
      self._selector = stack.enter_context(selectors.DefaultSelector())
      self._selector.register(self._wake, selectors.EVENT_READ)
      self._at_exit = stack.pop_all()
    self.is_ready = True
    return self

  def __exit__(self, *error: object) -> None:
    if self._step:
      self._step.end()
    for helper in self._helpers:
      helper.kill()
      helper.wait()
    with contextlib.suppress(OSError):
      os.remove(self._path)
    self._at_exit.close()

  @property
  def pid(self) -> int:
    return self._step.process.pid if self._step else os.getpid()

  def start(self, request: host_lib.Request) -> None:
    env = dict(request.env)
    attempt = int(env.get(ATTEMPT, 1)) + self._num_earlier
    if attempt > 1:
      env[ATTEMPT] = str(attempt)
    words = [f'{key}={shlex.quote(value)}' for key, value in env.items()]
    self._requests[request.name] = '; '.join(
      [
        f'log={shlex.quote(os.path.abspath(request.log))}',
        *([f'export {" ".join(words)}'] if words else []),
        f'set -- {shlex.join([sys.executable, *request.argv[1:]])}',
      ]
    )

  def signal(self, names: Iterable[str], signum: int) -> None:
    step, requests = self._step, self._requests
    if not requests.keys().isdisjoint(names):
      self._ended += [(name, -signum) for name in requests]
      self._requests = {}
    if not step or step.is_abandoned or step.left.isdisjoint(names):
      return
    if signum == signal.SIGKILL or not step.has_begun:
      step.kill(signum)
    elif not step.is_told_by_slurm:
      self._tell(step, signum)

  def kill(self) -> None:
    if self._step:
      self._step.kill()

  def poll(
    self, timeout_secs: float | None = None
  ) -> list[tuple[str, int | None]]:
    if self._requests and not self._step:
      try:
        self._start_step()
      except OSError as error:
        self._refuse(f'not started: {self._path}: {error.strerror}')
    step = self._step
    for key, _ in self._selector.select(self._find_secs(timeout_secs)):
      if key.fileobj is self._wake:
        self._wake.recv(4096)
      elif step:
        self._note(step, step.read())
    self._helpers = [each for each in self._helpers if each.poll() is None]
    if step and step.has_ended():
      self._note(step, step.read())
      step.close()
      self._step = None
      self._finish(step)
    if self._received and not self.signals:
      self.signals.append(self._received[0])
      return []
    ended, self._ended = self._ended, []
    return ended

  def _find_secs(self, timeout_secs: float | None) -> float | None:
    if self._ended:
      return 0.0
    needs_look = self._step is not None and self._step.needs_look
    if needs_look and (timeout_secs is None or timeout_secs > _LOOK_SECS):
      return _LOOK_SECS
    return timeout_secs

  def _start_step(self) -> None:
    """Starts all tasks that are requested.

    Raises:
      cli.RunError: this machine has no srun.
      OSError: the file of the tasks cannot be written.
    """
    port = choose_first_port(
      int(self._job_id), self._num_tasks, self._num_moves
    )
    with files.replacing(self._path) as file:
      file.write(make_script(self._requests.values(), self._has_shared_gpus))
    self._step = _Step(
      make_command(len(self._requests), self._env, ['/bin/sh', self._path]),
      {**self._env, FIRST_PORT: str(port)},
      self._requests,
      self._selector,
    )
    self._requests = {}

  def _refuse(self, reason: str) -> None:
    """Reports tasks that were requested as not started, for now."""
    self.reasons |= dict.fromkeys(self._requests, reason)
    for name in self._requests:
      self._report(name, cli.NOT_STARTED, is_told=True)
    self._requests = {}

  def _note(self, step: _Step, lines: list[tuple[str, str, int, str]]) -> None:
    """Takes what the shells of the tasks say, [(name, what, number, node)]."""
    for name, what, number, node in lines:
      if step.is_abandoned:
        return
      if what == 'begun':
        self.nodes[name] = node
        self.begun.append((name, number))
      elif what == 'told':
        if not step.is_told:
          step.is_told_by_slurm = True
          self._received.append(number)
      else:
        self._note_end(step, name, failures.from_shell(number))
    if not step.left:
      step.kill_in(_KILL_SECS)

  def _note_end(self, step: _Step, name: str, code: int) -> None:
    is_told = step.is_told or bool(self._received)
    may_move = self._num_moves < _MAX_MOVES and not is_told
    if code == cli.PORT_TAKEN and may_move:
      self._move(step, name)
    else:
      self._report(name, code, is_told)

  def _report(self, name: str, code: int, is_told: bool) -> None:
    if code and name.startswith('evaluator'):
      # It cannot start again alone: it is done, and so starts with all others.
      if not is_told:
        _log.info(
          f'{name} failed: {failures.describe_end(code)}: the run goes on'
          ' without it'
        )
      code = 0
    self._ended.append((name, code))

  def _move(self, step: _Step, name: str) -> None:
    """Has all tasks leave, to start again on other ports."""
    self._num_moves += 1
    step.is_abandoned = True
    self._requests = step.requests
    _log.info(f'{name} found its port taken: all tasks move to other ports')
    self._tell(step, signal.SIGTERM)
    step.kill_in(stop_grace.for_worker(self._stop_grace_secs))

  def _tell(self, step: _Step, signum: int) -> None:
    """Has Slurm signal all steps of the job, and not wait for that."""
    step.is_told = True
    name = signal.Signals(signum).name.removeprefix('SIG')
    command = ['scancel', f'--signal={name}', self._job_id]
    try:
      self._helpers.append(
        subprocess.Popen(
          command,
          env=self._env,
          stdin=subprocess.DEVNULL,
          stdout=subprocess.DEVNULL,
          # It is too late where Slurm itself ends the job.
          stderr=subprocess.DEVNULL if self._received else None,
          start_new_session=True,
        )
      )
    except OSError as error:
      _log.info(f'{shlex.join(command)}: {error.strerror}')

  def _finish(self, step: _Step) -> None:
    """Reports what the shells of tasks could not: they were killed, too."""
    if step.is_abandoned:
      return
    code = step.process.returncode
    words = f'srun {"was" if code < 0 else "ended with"} '
    words += failures.describe_end(code)
    is_told = step.killed_by or self._received
    if not step.has_begun and code in cli.FINAL_CODES and not is_told:
      raise cli.RunError(f'{words} and has started no task')
    left = [name for name in step.requests if name in step.left]
    if step.killed_by:
      code = -step.killed_by
    elif code:
      self.reasons |= dict.fromkeys(left, f'lost, as {words}')
      # The code is srun's own, which for a task would be final.
      is_its_own = code < 0 or code in cli.FINAL_CODES
      code = cli.LOST if is_its_own else failures.from_shell(code)
    for name in left:
      self._report(name, code, is_told=True)


class _Step:
  """One srun, and what is known of its tasks.

  Attributes:
    process: srun.
    requests: name -> what the shell of the task does first, in the order of the
      tasks' numbers.
    left: the tasks whose end is not known.
    has_begun: whether a task has.
    is_told: whether we told the tasks to leave.
    is_told_by_slurm: whether Slurm has.
    killed_by: the signal for which we had it killed, or 0.
    is_abandoned: whether it is to be forgotten, as its tasks start again.
  """

  def __init__(
    self,
    command: Sequence[str],
    env: Mapping[str, str],
    requests: dict[str, str],
    selector: selectors.BaseSelector,
  ) -> None:
    """Starts it.

    Raises:
      cli.RunError: there is no srun.
    """
    self.requests = requests
    self._names = list(requests)
    self.left = set(requests)
    self.has_begun = self.is_told = self.is_told_by_slurm = False
    self.is_abandoned = False
    self.killed_by = 0
    self._kill_time = math.inf
    self._rest = b''
    self._selector = selector
    try:
      self.process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        # What Slurm sends to the job's script is ours to pass on.
        start_new_session=True,
      )
    except OSError as error:
      raise cli.RunError(
        f'srun cannot be started on this node: {error.strerror}'
      ) from error
    self._stdout = child_process.get_pipe(self.process.stdout)
    os.set_blocking(self._stdout.fileno(), False)
    selector.register(self._stdout, selectors.EVENT_READ)
    self._is_heard = True

  @property
  def needs_look(self) -> bool:
    """Whether something is to happen that no event announces."""
    return not self._is_heard or self._kill_time < math.inf

  def read(self) -> list[tuple[str, str, int, str]]:
    """Returns the new [(name, what, number, node)]; prints other lines."""
    found: list[tuple[str, str, int, str]] = []
    if not self._is_heard:
      return found
    with contextlib.suppress(BlockingIOError):
      while data := os.read(self._stdout.fileno(), 1 << 16):
        *lines, self._rest = (self._rest + data).split(b'\n')
        found += filter(None, map(self._parse, lines))
      self._stop_reading()
    return found

  def _stop_reading(self) -> None:
    self._selector.unregister(self._stdout)
    self._is_heard = False

  def _parse(self, line: bytes) -> tuple[str, str, int, str] | None:
    text = line.decode(errors='replace')
    match = _LINE.search(text)
    if not match:
      with terminal.may_close():
        print(text, flush=True)
      return None
    name = self._names[int(match[1])]
    self.has_begun = True
    if match[2] == 'ended':
      self.left.discard(name)
    return name, match[2], int(match[3]), match[4]

  def has_ended(self) -> bool:
    """Whether srun has; kills what is due."""
    if time.monotonic() >= self._kill_time:
      self.kill()
    return self.process.poll() is not None

  def close(self) -> None:
    if self._is_heard:
      self._stop_reading()
    self._stdout.close()

  def kill_in(self, secs: float) -> None:
    if self._kill_time == math.inf:
      self._kill_time = time.monotonic() + secs

  def kill(self, signum: int = signal.SIGKILL) -> None:
    """Has Slurm kill all tasks; srun itself is killed if that fails.

    `signum` is what they were to get: those that have not begun end by that.
    """
    if not self.killed_by:
      self.process.terminate()
      self.killed_by = signum
      self._kill_time = time.monotonic() + _KILL_SECS
    elif time.monotonic() >= self._kill_time:
      self.process.kill()

  def end(self) -> None:
    """Kills the tasks that are left and waits for the end of srun."""
    if self.left:
      self.kill()
    child_process.end(self.process, _KILL_SECS)
    self.close()


def choose_first_port(job_id: int, num_tasks: int, num_moves: int = 0) -> int:
  """Returns the first port of a job's tasks on each node.

  Jobs that share a node serve on ports of their own, below those that the
  kernel gives to outgoing connections.

  Args:
    num_moves: how often the job has found a port taken.
  """
  width = -(-num_tasks // 32) * 32
  return 10000 + (job_id + num_moves * 37) % (22400 // width) * width


def make_command(
  num_tasks: int, env: Mapping[str, str], words: Sequence[str]
) -> list[str]:
  """Returns the command that starts a step.

  Args:
    env: with the variables of the job; if that is a heterogeneous one of two
      parts, the tasks fill both.
    words: what each task runs.
  """
  if 'SLURM_HET_SIZE' not in env:
    return [*_SRUN, f'--ntasks={num_tasks}', *_find_cpus(env, ''), *words]
  # One step on two allocations; its tasks are numbered consecutively.
  parts = [
    [*_SRUN[1:], f'--het-group={i}', *_find_cpus(env, f'_HET_GROUP_{i}')]
    for i in range(2)
  ]
  return ['srun', *parts[0], *words, ':', *parts[1], *words]


def _find_cpus(env: Mapping[str, str], group: str) -> list[str]:
  """Returns the option that srun does not inherit from sbatch."""
  cpus = env.get(f'SLURM_CPUS_PER_TASK{group}')
  return [f'--cpus-per-task={cpus}'] if cpus else []


def make_script(starts: Iterable[str], has_shared_gpus: bool) -> str:
  """Returns what the shell of each task runs, for /bin/sh.

  Args:
    starts: what each does first, in the order of the tasks.
    has_shared_gpus: whether each task gets one GPU of its node.
  """
  cases = '\n'.join(f'{rank}) {start} ;;' for rank, start in enumerate(starts))
  return f'case $SLURM_PROCID in\n{cases}\nesac\n' + _TASK.format(
    gpus=_SHARE_GPUS if has_shared_gpus else '',
    mark=MARK,
    # A signal is the program's: the shell runs these once that has ended.
    traps='\n'.join(
      f"trap 'say told {int(n)}' {n.name.removeprefix('SIG')}"
      for n in map(signal.Signals, signals.STOPS)
    ),
  )
