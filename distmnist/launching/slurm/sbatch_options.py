"""The lines of a Slurm job's script that are options of sbatch. Pure."""

import re
import shlex
import signal

from distmnist.common import cli, signals

_STOPS = [signal.Signals(n).name.removeprefix('SIG') for n in signals.STOPS]


def make(logs_dir, counts, components, may_requeue):
  """Returns the lines (str) for the parts of a job.

  Args:
    logs_dir: str, an absolute path; slurm.log there is the job's own log.
    counts: list of int, the ps and all other tasks.
    components: list of lists of str, more options: one list for all tasks, or
      one for the ps and one for the others of a heterogeneous job.
    may_requeue: bool, whether Slurm may start the job again.

  Raises:
    cli.UsageError: an option would take more than one line, or has Slurm send
      a signal that ends the tasks unsaved.
  """
  for option in {option for options in components for option in options}:
    _check_signal(option)
  common = [
    '--job-name=distmnist',
    f'--output={_as_pattern(logs_dir)}/slurm.log',
    '--open-mode=append',
    '--requeue' if may_requeue else '--no-requeue',
  ]
  if len(components) == 1:
    counts = [sum(counts)]
  parts = [
    [*common, f'--ntasks={count}', *options]
    for count, options in zip(counts, components, strict=True)
  ]
  return '\n#SBATCH hetjob\n'.join(
    '\n'.join(f'#SBATCH {_quote(option)}' for option in part) for part in parts
  )


def _check_signal(option):
  """Checks an option of the kind --signal=[{R|B}:]NAME_OR_NUMBER[@SECS]."""
  match = re.fullmatch(r'--signal=(?:([RB]+):)?(\w+)(?:@\d+)?', option)
  if not match:
    return
  to_whom, signum = match[1] or '', match[2].upper().removeprefix('SIG')
  numbers = {str(int(n)) for n in signals.STOPS}
  if 'B' in to_whom or signum not in {*_STOPS, *numbers}:
    raise cli.UsageError(
      f'--slurm_options={option}: the tasks save when they themselves get one '
      f'of {", ".join(_STOPS)}: expected such as --signal=TERM@60, without B:, '
      'which signals the script of the job alone'
    )


def _as_pattern(path):
  """Returns Slurm's pattern of a file name for exactly this path."""
  # A backslash anywhere turns the meaning of % off.
  if '\\' in path:
    return path.replace('\\', '\\\\')
  return path.replace('%', '%%')


def _quote(option):
  if '\n' in option:
    raise cli.UsageError(
      f'{option!r} cannot be given to sbatch, which reads one option a line:'
      ' leave the line break out'
    )
  # Unlike a shell, sbatch takes a backslash for an escape within '' too.
  return shlex.quote(option).replace('\\', '\\\\')
