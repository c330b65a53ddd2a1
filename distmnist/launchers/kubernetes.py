"""Prints the run as Kubernetes manifests, or has kubectl run it (--apply)."""

import logging
import os
import posixpath

from absl import flags

from distmnist.common import cli, refusals, stop_grace
from distmnist.common.names import LAUNCH_ID
from distmnist.common.refusals import Refusal
from distmnist.launching import problem_file
from distmnist.launching.kubernetes import (
  kubectl_run,
  manifests,
  pod_flags,
  pods,
  unit_objects,
  yaml_text,
)
from distmnist.launching.kubernetes import options as options_lib
from distmnist.launching.kubernetes.pods import DATA_DIR, LOGS_DIR, PROBLEM_DIR
from distmnist.storage import urls

_log = logging.getLogger(__name__)

# How long a task waits for the others: nodes may have to be added and to pull
# the image, and Kubernetes waits up to 360 s before it replaces a Pod again.
_START_TIMEOUT_SECS = 600
# From SIGTERM to SIGKILL. Nodes that are reclaimed often allow no more.
_KILL_SECS = 30
# The longest suffix of the name is '-tensorboard' or '-worker-9999'.
_NAME_LENGTH = 63 - len('-tensorboard')

_KIND = flags.DEFINE_enum(
  'kind',
  'job',
  manifests.KINDS,
  'What --launcher=kubernetes makes of the run: a Job and a Service for each'
  ' task, one JobSet, one TrainJob of Kubeflow Trainer v2, or one TFJob of'
  " Kubeflow's training operator, which is deprecated.",
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
_USER = flags.DEFINE_integer(
  'kube_user',
  1000,
  'ID of the user, and of the group, that the tasks run as; never root.',
  lower_bound=1,
  upper_bound=2**31 - 1,  # As in runAsUser.
)
_TENSORBOARD = flags.DEFINE_bool(
  'kube_tensorboard', False, 'Run a TensorBoard on the --logdir as well.'
)
_APPLY = flags.DEFINE_bool(
  'apply',
  False,
  'Have kubectl create the run, show the log of the chief and end with its '
  'exit code; Ctrl-C makes the tasks save and deletes the run. Otherwise the '
  'manifests are printed.',
)

flags.adopt_module_key_flags(pod_flags)
pod_flags.check_pattern(
  _NAME,
  rf'[a-z]([-a-z0-9]{{0,{_NAME_LENGTH - 2}}}[a-z0-9])?',
  f'up to {_NAME_LENGTH} {pod_flags.LABEL[1]}, starting with a letter and not'
  ' ending with a dash',
)
pod_flags.check_pattern(_NAMESPACE, *pod_flags.LABEL)
pod_flags.check_pattern(_DATA_CLAIM, *pod_flags.NAME)
pod_flags.check_pattern(_LOGS_CLAIM, *pod_flags.NAME)


def launch(job):
  """Prints the manifests of the jobs.Job or runs it; returns its exit code."""
  options = choose_options(job)
  documents = manifests.make(job, options)
  text = yaml_text.write(job, options, documents)
  if not options.logdir:
    _log.info(
      'without --kube_logs_claim no checkpoint is kept: what a ps, or the last'
      ' worker, holds is lost with it'
    )
  if options.kind == 'tfjob':
    _log.info(
      "Kubeflow's training operator, which runs a TFJob, is deprecated:"
      ' --kind=jobset and --kind=trainjob run the same'
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


def choose_options(job):
  """Returns the options_lib.Options of the flags and the jobs.Job.

  Raises:
    cli.UsageError: something is missing, or would be lost with a Pod.
  """
  refusals.refuse(
    _REFUSALS,
    logs_dir=job.logs_dir,
    resume=job.flag('resume'),
    num_gpus=job.flag('num_gpus') or '0',
  )
  unit_objects.check_name(job, _KIND.value, _NAME.value)
  logdir = job.flag('logdir')
  if not logdir and _LOGS_CLAIM.value:
    logdir = posixpath.join(LOGS_DIR, _NAME.value)
  if logdir:
    check_folder('logdir', logdir, LOGS_DIR, _LOGS_CLAIM.value)
  elif _TENSORBOARD.value or job.evaluator:
    flag = 'kube_tensorboard' if _TENSORBOARD.value else 'evaluator'
    raise cli.UsageError(
      f'--{flag} has nothing to show: give --kube_logs_claim too'
    )
  data_dir = job.flag('data_dir')
  if _DATA_CLAIM.value:
    data_dir = data_dir or DATA_DIR
    check_folder('data_dir', data_dir, DATA_DIR, _DATA_CLAIM.value)
  grace_secs, grace_flags = stop_grace.choose(
    job, _KILL_SECS, pods.KILL_MARGIN_SECS
  )
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
  return options_lib.Options(
    kind=_KIND.value,
    name=_NAME.value,
    namespace=_NAMESPACE.value,
    image=_IMAGE.value,
    claims={path: claim for path, claim in claims.items() if claim},
    user=_USER.value,
    logdir=logdir,
    tensorboard=_TENSORBOARD.value,
    stop_grace_secs=grace_secs,
    # With each --flagfile expanded, as the image need not have it. Of two flags
    # of the same name the later wins: the user's.
    train_flags=(*chosen_flags, *grace_flags, *job.given, *problem_flags),
    problem=problem,
    launch=os.environ[LAUNCH_ID] if is_applied else None,
    **pod_flags.choose(),
  )


# Facts: logs_dir, str or None; resume, str or None, and num_gpus, str, train's.
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
    lambda f: f'--num_gpus={f.num_gpus}',
    lambda f: f.num_gpus.isdecimal() and int(f.num_gpus) > pod_flags.GPUS.value,
    lambda f: (
      f', but a worker has --kube_gpus={pod_flags.GPUS.value}: leave '
      '--num_gpus out, and set the GPUs of each worker with --kube_gpus'
    ),
  ),
)


def check_folder(name, folder, mount, claim):
  """Refuses a folder that would be lost with its Pod or that no other sees.

  Args:
    name: str, train's flag.
    folder: str, its value.
    mount: str, where the volume is mounted.
    claim: str or None, the PersistentVolumeClaim of the volume.

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
