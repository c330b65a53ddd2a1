"""How long a task that is told to stop may take, and how long others wait.

A task ends itself by force --stop_grace_secs after the first signal. Whoever
has told it waits longer, and kills it only then, so that the task has the last
word. All in seconds.
"""

from distmnist.common import cli
from distmnist.common.names import TRAIN
from distmnist.launching import jobs

# What train's --stop_grace_secs is by default: with all that comes after it
# still less than the 10 s that `docker stop` gives.
DEFAULT_SECS = 8.0
MIN_SECS = 2.0
# A ps gives the chief less than itself, or it could not say how that ended.
_SAID_SECS = 1.0
# A ps saves nothing, and is told once the workers have left.
PS_SECS = 1.0


def parse(words):
  """Returns the grace (float) of tasks with these flags of train.

  Args:
    words: list of str, with each --flagfile read.

  Raises:
    cli.UsageError: it is no number of seconds.
  """
  text = jobs.flag_value(words, 'stop_grace_secs')
  try:
    secs = DEFAULT_SECS if text is None else float(text)
  except ValueError:
    secs = 0.0
  if secs < MIN_SECS:
    raise cli.UsageError(
      f'--stop_grace_secs={text}: expected a number of seconds from'
      f' {MIN_SECS:g} on'
    )
  return secs


def choose(job, system_secs, margin_secs):
  """Returns (grace, flags): what tasks take where a system kills them.

  Args:
    job: jobs.Job; a --stop_grace_secs among its flags of train is kept.
    system_secs: float, from the system's signal to its kill.
    margin_secs: float, by how much the tasks are to be earlier.

  Returns:
    float, and the list of str that tells train, to come before its other flags.
  """
  if job.module != TRAIN or job.flag('stop_grace_secs') is not None:
    return parse(job.given), []
  secs = max(MIN_SECS, system_secs - margin_secs)
  return secs, [f'--stop_grace_secs={secs:g}']


def for_save(secs_left):
  """How long a ps that has `secs_left` itself waits for the chief's save."""
  return max(0.0, secs_left - _SAID_SECS)


def for_worker(grace_secs):
  """From a launcher's signal to its kill."""
  return grace_secs + 0.5


def for_job(is_ps, jobs, grace_secs):
  """From a launcher's signal to its kill, of its workers or of its ps.

  Args:
    is_ps: bool.
    jobs: set of the job names that this launcher runs. One that has ps alone
      may tell them with the workers elsewhere.
    grace_secs: float.
  """
  if is_ps and jobs != {'ps'}:
    return PS_SECS
  return for_worker(grace_secs)


def for_remote(grace_secs):
  """From the signal to the kill on a host that has lost its launcher."""
  return grace_secs + 1.0


def for_orphans(grace_secs):
  """From the signal to the kill by a fork server that has lost its launcher."""
  return grace_secs + 2.0
