"""Prints the run as Kubernetes manifests, or has kubectl run it (--apply)."""

from __future__ import annotations

import logging
import os
import posixpath
import re

from absl import flags

from distmnist.common import cli, refusals, stop_grace
from distmnist.common.names import LAUNCH_ID
from distmnist.common.refusals import Refusal
from distmnist.launching import jobs, problem_file
from distmnist.launching.kubernetes import kubectl_run, manifests, yaml_text
from distmnist.launching.kubernetes.manifests import (
  DATA_DIR,
  KILL_MARGIN_SECS,
  LOGS_DIR,
  PROBLEM_DIR,
)
from distmnist.storage import urls

_log = logging.getLogger(__name__)

# How long a task waits for the others: nodes may have to be added and to pull
# the image, and Kubernetes waits up to 360 s before it replaces a Pod again.
_START_TIMEOUT_SECS = 600
# From SIGTERM to SIGKILL. Nodes that are reclaimed often allow no more.
_KILL_SECS = 30
# The longest suffix of the name is '-worker-9999'.
_NAME_LENGTH = 63 - len('-worker-9999')

_KIND = flags.DEFINE_enum(
  'kind',
  'job',
  list(manifests.WORKLOADS),
  'What --launcher=kubernetes makes of the run: a Job and a Service for each'
  ' task, one JobSet, or one TrainJob of Kubeflow Trainer v2.',
)
_NAME = flags.DEFINE_string(
  'kube_name',
  'distmnist',
  'Name of the run on Kubernetes; the names of all its objects begin with it.',
)
_NAMESPACE = flags.DEFINE_string(
  'kube_namespace',
  None,
  "Kubernetes namespace of the run. Default: that of kubectl's context.",
)
_IMAGE = flags.DEFINE_string(
  'kube_image',
  None,
  'Container image of the tasks, built from the Dockerfile. Required.',
)
_DATA_CLAIM = flags.DEFINE_string(
  'kube_data_claim',
  None,
  f'PersistentVolumeClaim with the data set, mounted at {DATA_DIR} in each'
  ' worker. Default: none, and each worker downloads the data set.',
)
_LOGS_CLAIM = flags.DEFINE_string(
  'kube_logs_claim',
  None,
  f'PersistentVolumeClaim (ReadWriteMany) mounted at {LOGS_DIR} in each worker,'
  f' for --logdir, which is then {LOGS_DIR}/NAME (of --kube_name) unless given.'
  ' Default: none, and no checkpoint is kept.',
)
_CPU = flags.DEFINE_string(
  'kube_cpu',
  '2',
  'CPUs of each worker, as request and limit: 2, 0.5 or 500m.',
)
_MEMORY = flags.DEFINE_string(
  'kube_memory',
  '4Gi',
  'Memory of each worker, as request and limit, in bytes: 4Gi, 512Mi.',
)
_PS_CPU = flags.DEFINE_string(
  'kube_ps_cpu',
  '1',
  'CPUs of each ps, as request and limit: 2, 0.5 or 500m.',
)
_PS_MEMORY = flags.DEFINE_string(
  'kube_ps_memory',
  '1Gi',
  'Memory of each ps, as request and limit, in bytes: 4Gi, 512Mi.',
)
_GPUS = flags.DEFINE_integer(
  'kube_gpus', 0, 'Number of NVIDIA GPUs of each worker.', lower_bound=0
)
_QUEUE = flags.DEFINE_string(
  'kube_queue',
  None,
  'LocalQueue of Kueue that admits the run: as a whole with --kind=jobset and'
  ' trainjob, task by task with --kind=job.',
)
_PATCH = flags.DEFINE_string(
  'kube_patch',
  None,
  'YAML file that kubectl kustomize merges into the manifests: documents with a'
  ' kind, such as Pod, a metadata.name, such as worker, if not all are meant,'
  ' and the fields to set.',
)
_APPLY = flags.DEFINE_bool(
  'apply',
  False,
  'Have kubectl create the run, show the log of the chief and end with its '
  'exit code; Ctrl-C makes the tasks save and deletes the run. Otherwise the '
  'manifests are printed.',
)

_LABEL = (
  r'[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?',
  'lowercase letters, digits and dashes (DNS-1123)',
)
_OBJECT = r'[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?', f'a name of {_LABEL[1]}'
_CPUS = (
  r'(?=.*[1-9])([0-9]+m?|[0-9]*\.[0-9]{1,3})',
  'CPUs above 0, such as 2, 0.5 or 500m',
)
_BYTES = r'[1-9][0-9]*(k|M|G|T|Ki|Mi|Gi|Ti)?', 'memory such as 4Gi or 512Mi'


def _check_pattern(flag: flags.FlagHolder, pattern: str, expected: str) -> None:
  """Has a flag refuse values that do not fit a pattern, said in words."""
  flags.register_validator(
    flag,
    lambda value: value is None or re.fullmatch(pattern, value) is not None,
    f'expected {expected}',
  )


_check_pattern(
  _NAME,
  rf'[a-z]([-a-z0-9]{{0,{_NAME_LENGTH - 2}}}[a-z0-9])?',
  f'up to {_NAME_LENGTH} {_LABEL[1]}, starting with a letter and not ending'
  ' with a dash',
)
_check_pattern(_NAMESPACE, *_LABEL)
for _flag in (_DATA_CLAIM, _LOGS_CLAIM, _QUEUE):
  _check_pattern(_flag, *_OBJECT)
for _flag in (_CPU, _PS_CPU):
  _check_pattern(_flag, *_CPUS)
for _flag in (_MEMORY, _PS_MEMORY):
  _check_pattern(_flag, *_BYTES)


def launch(job: jobs.Job) -> int:
  """Prints the manifests of the jobs.Job or runs it; returns its exit code."""
  options = choose_options(job)
  documents = manifests.make(job, options)
  text = yaml_text.write(job, options, documents)
  if _find_logdir(job) is None:
    _log.info(
      'without --kube_logs_claim no checkpoint is kept: what a ps, or the last'
      ' worker, holds is lost with it'
    )
  if options.queue and options.kind == 'job':
    _log.info(
      f'--kube_queue={options.queue} admits the tasks one by one, and some may'
      ' wait for others: --kind=jobset has all admitted at once'
    )
  if options.launch:
    return kubectl_run.run(options, documents, text)
  print(text, end='')
  return 0


def choose_options(job: jobs.Job) -> manifests.Options:
  """Returns the manifests.Options of the flags and the jobs.Job.

  Raises:
    cli.UsageError: something is missing, or would be lost with a Pod.
  """
  refusals.refuse(
    _REFUSALS,
    logs_dir=job.logs_dir,
    logdir=_find_logdir(job),
    evaluator=job.evaluator,
    resume=job.flag('resume'),
    num_gpus=job.flag('num_gpus') or '0',
  )
  manifests.check_name(job, _KIND.value, _NAME.value)
  logdir = _find_logdir(job)
  if logdir:
    _check_folder('logdir', logdir, LOGS_DIR, _LOGS_CLAIM.value)
  data_dir = job.flag('data_dir')
  if _DATA_CLAIM.value:
    data_dir = data_dir or DATA_DIR
    _check_folder('data_dir', data_dir, DATA_DIR, _DATA_CLAIM.value)
  grace_secs, grace_flags = stop_grace.choose(job, _KILL_SECS, KILL_MARGIN_SECS)
  chosen = {
    'start_timeout_secs': _START_TIMEOUT_SECS,
    'logdir': logdir,
    'data_dir': data_dir,
  }
  chosen_flags = [
    f'--{name}={value}'
    for name, value in chosen.items()
    if value is not None and job.flag(name) is None
  ]
  claims = {DATA_DIR: _DATA_CLAIM.value, LOGS_DIR: _LOGS_CLAIM.value}
  problem = problem_file.read(job.flag('problem'))
  problem_flags = problem_file.make_flags(job.flag('problem'), PROBLEM_DIR)
  is_applied = _APPLY.value and not job.dry_run
  return manifests.Options(
    kind=_KIND.value,
    name=_NAME.value,
    namespace=_NAMESPACE.value,
    image=_IMAGE.value or '',  # Refused above.
    resources={
      'ps': {'cpu': _PS_CPU.value, 'memory': _PS_MEMORY.value},
      'worker': {'cpu': _CPU.value, 'memory': _MEMORY.value},
    },
    gpus=_GPUS.value,
    claims={path: claim for path, claim in claims.items() if claim},
    stop_grace_secs=grace_secs,
    # With each --flagfile expanded, as the image need not have it. Of two flags
    # of the same name the later wins: the user's.
    train_flags=(*chosen_flags, *grace_flags, *job.given, *problem_flags),
    problem=problem,
    queue=_QUEUE.value,
    patch=_PATCH.value,
    launch=os.environ[LAUNCH_ID] if is_applied else None,
  )


def _find_logdir(job: jobs.Job) -> str | None:
  """Returns the --logdir of the tasks, None if they have none."""
  logdir = job.flag('logdir')
  if not logdir and _LOGS_CLAIM.value:
    return posixpath.join(LOGS_DIR, _NAME.value)
  return logdir or None


# Facts: logs_dir, str or None; evaluator, bool; logdir and resume, str or None,
# and num_gpus, str, train's.
_REFUSALS = (
  Refusal(
    'kube_image',
    lambda f: not _IMAGE.value,
    ' is missing: give the name of an image that the nodes can pull, built by: '
    'docker build -t NAME .',
  ),
  Refusal(
    lambda f: f'--logs_dir={f.logs_dir}',
    lambda f: f.logs_dir,
    ': Kubernetes itself keeps a log of each task; leave it out, and see '
    'kubectl logs',
  ),
  Refusal(
    lambda f: f'--resume={f.resume}',
    lambda f: f.resume not in (None, 'auto'),
    ': a Pod that replaces a lost one has the same command, and would start '
    'over; leave it out, and give a new run a --logdir of its own',
  ),
  Refusal(
    'evaluator',
    lambda f: f.evaluator and not f.logdir,
    ' has nothing to show: give --kube_logs_claim too',
  ),
  Refusal(
    lambda f: f'--num_gpus={f.num_gpus}',
    lambda f: f.num_gpus.isdecimal() and int(f.num_gpus) > _GPUS.value,
    lambda f: (
      f', but a worker has --kube_gpus={_GPUS.value}: leave '
      '--num_gpus out, and set the GPUs of each worker with --kube_gpus'
    ),
  ),
)


def _check_folder(
  name: str, folder: str, mount: str, claim: str | None
) -> None:
  """Refuses a folder that would be lost with its Pod or that no other sees.

  Args:
    name: train's flag.
    folder: its value.
    mount: where the volume is mounted.
    claim: the PersistentVolumeClaim of the volume, or None.

  Raises:
    cli.UsageError: it is not on the volume.
  """
  if urls.is_remote(folder):  # All Pods see a store.
    return
  if not claim:
    kind = 'logs' if mount == LOGS_DIR else 'data'
    raise cli.UsageError(
      f'--{name}={folder} would be a separate folder in each Pod, and lost with'
      f' it: name a volume with --kube_{kind}_claim, mounted at {mount}'
    )
  path = posixpath.normpath(folder)
  if not f'{path}/'.startswith(f'{mount}/'):
    raise cli.UsageError(
      f'--{name}={folder} is not on the volume {claim}, which is mounted at'
      f' {mount}: give --{name}={mount}/{posixpath.basename(path)}, or leave it'
      ' out'
    )
