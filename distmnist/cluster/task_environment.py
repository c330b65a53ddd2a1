"""The cluster and this task's role, where environment variables name it.

TF_CONFIG         JSON, as Kubeflow's TFJob, Vertex AI and others set it: the
                  hosts of each job, and which task this is. Its chief (or
                  master) is worker 0 here, and its workers come after it;
                  without one its worker 0 is the chief. An evaluator is not
                  part of the cluster. One trainer without a ps needs no
                  address: it is one process.
DISTMNIST_NUM_PS  set for all tasks of a Slurm step, which Slurm's own variables
                  describe: the first DISTMNIST_NUM_PS are ps, the others
                  workers; the last DISTMNIST_NUM_EVALUATORS (0) are not part of
                  the cluster. The tasks of a host serve, in order, on the ports
                  from DISTMNIST_FIRST_PORT (2222) on.

Functions of the variables, given as a dict.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from distmnist.cluster import identity, slurm_tasks, tf_config
from distmnist.common.names import ATTEMPT, LAUNCH, LAUNCH_ID, MIN_WORKERS

# The first one that is set counts.
NAMES = (identity.TF_CONFIG, identity.NUM_PS)


def find(environ: Mapping[str, str]) -> list[str]:
  """Returns those of NAMES that are set in `environ`."""
  return [name for name in NAMES if environ.get(name, '').strip()]


def forget(environ: MutableMapping[str, str]) -> None:
  """Removes what tells a task its role from `environ`, a launcher's.

  A launcher, or a sweep, tells its tasks theirs: the role of its own process,
  which may itself have been started as a task, is not for them.
  """
  for name in (*NAMES, ATTEMPT, LAUNCH_ID, MIN_WORKERS):
    environ.pop(name, None)


_NO_NUM_PS = (
  f'{identity.NUM_PS} is not set',
  f'--launcher=slurm of {LAUNCH}, or set {identity.NUM_PS} for all',
)
_NO_ROLE = (
  'they give no task its role',
  '--job_name, --task_index, --ps_hosts and --worker_hosts',
)
# What starts a program several times: its name; its variables with the number
# of this process, with that of all, and any that has to be set as well; what a
# cluster lacks then, and what gives it.
_STARTERS = (
  *(
    ('Slurm step', 'SLURM_PROCID', count, 'SLURM_STEP_ID', *_NO_NUM_PS)
    for count in ('SLURM_STEP_NUM_TASKS', 'SLURM_NTASKS')
  ),
  *(
    ('run of mpirun', f'{name}_RANK', f'{name}_SIZE', '', *_NO_ROLE)
    for name in ('OMPI_COMM_WORLD', 'PMI')
  ),
  ('run of torchrun', 'RANK', 'WORLD_SIZE', '', *_NO_ROLE),
)


def describe_alone(environ: Mapping[str, str]) -> str | None:
  """Returns a line if a process that trains alone is one of several.

  Else None. Whoever starts n of them expects one training.

  Args:
    environ: gives no task its role.
  """
  for what, index, count, more, missing, advice in _STARTERS:
    numbers = [environ.get(name, '') for name in (index, count)]
    if not all(n.isascii() and n.isdigit() for n in numbers):
      continue
    if int(numbers[1]) > 1 and (not more or environ.get(more)):
      return (
        f'this is process {numbers[0]} of {numbers[1]} of a {what} by {index} '
        f'and {count}, but {missing}: it trains alone, as does each of them; '
        f'for one training: {advice}'
      )
  return None


def read(environ: Mapping[str, str]) -> identity.Identity | None:
  """Returns the Identity that `environ` describes, or None.

  Raises:
    cli.UsageError: what is set cannot be understood, or does not fit.
  """
  found = find(environ)
  if not found:
    return None
  if found[0] == identity.TF_CONFIG:
    return tf_config.read_tf_config(environ[identity.TF_CONFIG])
  return slurm_tasks.read_slurm(environ)
