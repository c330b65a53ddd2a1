"""The role of a task, and the environment variables that name it."""

import dataclasses
import reprlib

TF_CONFIG = 'TF_CONFIG'
NUM_PS = 'DISTMNIST_NUM_PS'
NUM_EVALUATORS = 'DISTMNIST_NUM_EVALUATORS'
FIRST_PORT = 'DISTMNIST_FIRST_PORT'
short = reprlib.Repr()
short.maxstring = short.maxother = 60


@dataclasses.dataclass(frozen=True)
class Identity:
  """All tasks of a cluster, and which of them this one is.

  Attributes:
    source: where it was read.
    ps_hosts, worker_hosts: 'host:port' of each; both empty for one process.
    evaluator_hosts: as far as they are named.
    job_name: 'ps', 'worker' or 'evaluator'.
    task_index: the index within the job.
    chief_alias: 'chief' or 'master' if the source so calls worker 0, else ''.
  """

  source: str
  ps_hosts: tuple[str, ...] = ()
  worker_hosts: tuple[str, ...] = ()
  evaluator_hosts: tuple[str, ...] = ()
  job_name: str = 'worker'
  task_index: int = 0
  chief_alias: str = ''
