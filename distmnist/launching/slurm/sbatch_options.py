"""The lines of a Slurm job's script that are options of sbatch. Pure."""

import shlex

from distmnist.common import cli


def make(logs_dir, counts, components, may_requeue):
  """Returns the lines (str) for the parts of a job.

  Args:
    logs_dir: str, an absolute path; slurm.log there is the job's own log.
    counts: list of int, the ps and all other tasks.
    components: list of lists of str, more options: one list for all tasks, or
      one for the ps and one for the others of a heterogeneous job.
    may_requeue: bool, whether Slurm may start the job again.

  Raises:
    cli.UsageError: an option would take more than one line.
  """
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
