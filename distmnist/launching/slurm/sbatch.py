"""A Slurm job, from its submission to its end."""

from __future__ import annotations

import logging
import os
import pathlib
import re
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from distmnist.common import cli, signals
from distmnist.launching import child_process

_log = logging.getLogger(__name__)

TICK_SECS = 0.1
# A controller that does not answer must not hold up a second signal.
CANCEL_SECS = 10.0
# How often to ask the controller for the state of a job.
ASK_SECS = 1.0
# After these states Slurm may requeue a job, and meanwhile not even list it:
# they are an end only once this many looks in a row have found nothing else.
_MAY_COME_AGAIN = '', 'BOOT_FAIL', 'FAILED', 'NODE_FAIL', 'PREEMPTED'
_NUM_SURE_LOOKS = 10
# What clients of Slurm read. Its other variables describe the job that we are
# in, if we are: sbatch would pass them on to the new one.
_KEPT_VARIABLES = 'SLURM_CLUSTERS', 'SLURM_CONF', 'SLURM_JWT'
# The exit code of a job whose script could not say, by the job's state in
# squeue. '': the controller has forgotten the job, which went as sbatch says.
_END_CODES = {
  '': 0,
  'COMPLETED': 0,
  'BOOT_FAIL': 1,
  'FAILED': 1,
  'NODE_FAIL': 1,
  'OUT_OF_MEMORY': 1,
  'CANCELLED': 143,
  'DEADLINE': 143,
  'PREEMPTED': 143,
  'TIMEOUT': 143,
}


class Submission:
  """sbatch, from the submission to the end of the job. A context.

  While it is open, SIGINT, SIGTERM and SIGHUP do not end this process: they
  cancel the job. So does an exception that leaves it, if the job is waited for.

  Attributes:
    signals: what this process received.
  """

  def __init__(
    self, script: str | os.PathLike[str], is_waited_for: bool
  ) -> None:
    wait = ['--wait'] if is_waited_for else []
    self._command = ['sbatch', '--parsable', *wait, str(script)]
    self._is_waited_for = is_waited_for
    self._job_id = ''
    self.signals: list[int] = []
    self._next_ask = 0.0
    self._num_looks = 0

  def __enter__(self) -> Submission:
    self._collecting = signals.collecting(self.signals)
    self._collecting.__enter__()
    self._words = tempfile.TemporaryFile()
    self._sbatch = subprocess.Popen(
      self._command,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=self._words,
      env=make_env(os.environ),
      start_new_session=True,  # A Ctrl-C is ours to pass on.
    )
    self._answer = child_process.get_pipe(self._sbatch.stdout)
    return self

  def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
    if error and self._is_waited_for and self._job_id:
      # Nobody would see what becomes of it.
      _log.info(f'job {self._job_id} is cancelled')
      _cancel(self._job_id)
    # sbatch only waits: the job is Slurm's.
    self._sbatch.kill()
    self._sbatch.wait()
    self._answer.close()
    self._words.close()
    self._collecting.__exit__(None, None, None)

  def read_job_id(self) -> str:
    """Returns the number of the job.

    Raises:
      cli.RunError: it is refused, or a second signal precedes the answer.
    """
    line, poll = b'', select.poll()  # A caller may have many open files.
    poll.register(self._answer, select.POLLIN)
    while not line.endswith(b'\n'):
      if len(self.signals) > 1:
        raise cli.RunError(
          'stopped while sbatch was submitting the job: check squeue for it'
        )
      if poll.poll(1000 * TICK_SECS):
        data = os.read(self._answer.fileno(), 1 << 12)
        if not data:
          self._sbatch.wait()
          raise cli.RunError(f'no job: {self._last_words()}')
        line += data
    # With a federation of clusters: number;name.
    self._job_id = line.decode().strip().partition(';')[0]
    return self._job_id

  def wait(
    self, job_id: str, ended: pathlib.Path, on_tick: Callable[[], None]
  ) -> int:
    """Waits for the end of the job; returns its exit code.

    The first signal cancels it: Slurm sends the tasks SIGTERM, and kills what
    still runs after its KillWait. After a second signal we no longer wait.

    Args:
      ended: the file to which the script finally writes the job's number and
        exit code: it comes earlier than sbatch's answer.
      on_tick: called every TICK_SECS.
    """
    is_cancelled = False
    while True:
      if self.signals and not is_cancelled:
        is_cancelled = True
        _cancel(job_id)
      if len(self.signals) > 1:
        _log.info(f'job {job_id} is left to Slurm, which kills it')
        return 128 + self.signals[0]
      # First, so that the look at the script's file is not too early.
      told = self._find_end(job_id)
      found = _read_end(ended, job_id)
      on_tick()
      if found is not None:
        return found
      if told is not None:
        return told
      threading.Event().wait(TICK_SECS)

  def _find_end(self, job_id: str) -> int | None:
    """Returns the job's exit code according to Slurm, None before its end."""
    code = self._sbatch.poll()
    # sbatch also ends with 0 while the script of a cancelled job still writes,
    # and with 1 while Slurm takes a job from its nodes to queue it again.
    if code is None or time.monotonic() < self._next_ask:
      return None
    self._next_ask = time.monotonic() + ASK_SECS
    state = _ask_state(job_id)
    self._num_looks = self._num_looks + 1 if state in _MAY_COME_AGAIN else 0
    if state not in _END_CODES or 0 < self._num_looks < _NUM_SURE_LOOKS:
      return None
    if code > 0 and state != 'COMPLETED':
      return code
    return _END_CODES[state]

  def _last_words(self) -> str:
    self._words.seek(0)
    lines = self._words.read().decode(errors='replace').split('\n')
    said = [line.strip() for line in lines if line.strip()]
    return '; '.join(said[-2:]) or (
      f'sbatch ended with exit code {self._sbatch.returncode}'
    )


def make_env(environ: Mapping[str, str]) -> dict[str, str]:
  """Returns the variables of `environ` that a new job may have."""
  if 'SLURM_JOB_ID' not in environ:
    return dict(environ)
  return {
    name: value
    for name, value in environ.items()
    if name in _KEPT_VARIABLES or not name.startswith(('SLURM_', 'SLURMD_'))
  }


def _read_end(path: pathlib.Path, job_id: str) -> int | None:
  """Returns the exit code that the script wrote, None before it has."""
  try:
    words = path.read_text()
  except OSError:
    return None
  if not words.endswith('\n') or words.split()[0] != job_id:
    return None
  return int(words.split()[1])


def _ask_state(job_id: str) -> str | None:
  """Returns the state of a job, such as 'COMPLETING'.

  '' stands for a job that Slurm has forgotten, None for no answer.
  """
  command = ['squeue', '--noheader', '--states=all', '--format=%T']
  try:
    done = _run(*command, f'--jobs={job_id}')
  except (OSError, subprocess.TimeoutExpired):
    return None
  if done.returncode and 'Invalid job id' not in done.stderr:
    return None
  # A heterogeneous job has a line for each part, the one with the script first.
  return done.stdout.partition('\n')[0].strip()


def _run(*words: str) -> subprocess.CompletedProcess[str]:
  """Returns the subprocess.CompletedProcess of a command that ends soon."""
  return subprocess.run(
    words,
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    start_new_session=True,
    timeout=CANCEL_SECS,
  )


def _cancel(job_id: str) -> None:
  try:
    done = _run('scancel', job_id)
  except subprocess.TimeoutExpired:
    _log.info(
      f'job {job_id}: scancel has not answered within {CANCEL_SECS:g} s: run'
      f' scancel {job_id} yourself, and see squeue'
    )
    return
  if done.returncode:
    _log.info(f'job {job_id}: {" ".join(done.stderr.split())}')


def find_ending(job_id: str, code: int, said: Sequence[str]) -> str:
  """Returns how a job ended if its script names no failed task.

  Args:
    code: its exit code.
    said: the lines of its log.
  """
  for line in reversed(said):
    found = re.match(rf'job {job_id}: cancelled( due to [a-z ]+)?: ', line)
    if found:
      why = found[1] or ', by scancel or by Slurm'
      advice = ' (--slurm_time)' if why == ' due to time limit' else ''
      return f'was cancelled{why}{advice}, exit code {code}'
  return f'ended with exit code {code}'
