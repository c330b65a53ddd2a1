"""A run on Kubernetes as one object; tasks learn their role from TF_CONFIG.

Kind `jobset`: a JobSet of the Jobs ps, chief, worker and evaluator. It is done
when the chief is, fails as a whole, and is admitted as a whole by Kueue. Kind
`trainjob`: a TrainJob of Kubeflow Trainer v2 whose own TrainingRuntime, without
a framework, holds this JobSet. Kind `tfjob`: a TFJob of Kubeflow's training
operator.
"""

import json

from distmnist.common import cli
from distmnist.launching.kubernetes import objects, pods

# On each Pod of a Job whose Pods are numbered.
_INDEX_LABEL = 'batch.kubernetes.io/job-completion-index'


def check_name(job, kind, name):
  """Refuses a run's name that is too long for its Pods.

  Raises:
    cli.UsageError: `name` is too long.
  """
  if kind not in ('jobset', 'trainjob'):
    return
  last = max(job.num_ps, job.num_workers - 1, 1) - 1
  # JobSet-role-0-index-random: a Pod's name is also a host name.
  endings = [f'-worker-0-{last}-abcde']
  endings += ['-evaluator-0-0-abcde'] * job.evaluator
  most = 63 - max(map(len, endings))
  if len(name) > most:
    raise cli.UsageError(
      f'--kube_name={name} has {len(name)} characters: expected at most {most} '
      f'with --kind={kind}, which adds a role and a number'
    )


def make_jobset(job, options):
  """Returns the JobSet, a list of one dict."""
  spec = _make_jobset_spec(job, options)
  labels = objects.labels_of(options)
  return [objects.make(options, 'JobSet', options.name, labels, spec)]


def make_trainjob(job, options):
  """Returns the TrainingRuntime and the TrainJob, a list of two dicts."""
  labels = objects.labels_of(options)
  # Neither mlPolicy nor the label of an ancestor step: nothing of a framework
  # is added, and a TrainJob's own command cannot replace that of a role.
  template = {
    'metadata': {'labels': labels},
    'spec': _make_jobset_spec(job, options),
  }
  runtime = {'apiGroup': 'trainer.kubeflow.org', 'kind': 'TrainingRuntime'}
  specs = {
    'TrainingRuntime': {'template': template},
    'TrainJob': {'runtimeRef': {**runtime, 'name': options.name}},
  }
  return [
    objects.make(options, kind, options.name, labels, spec)
    for kind, spec in specs.items()
  ]


def _make_jobset_spec(job, options):
  counts = {
    role: count for role, (_, count) in _count_roles(job).items() if count
  }
  limits = objects.make_time_limits(options)
  # A JobSet has no deadline, but its Jobs do.
  ttl = {k: v for k, v in limits.items() if k == 'ttlSecondsAfterFinished'}
  return {
    **ttl,
    'successPolicy': {'operator': 'All', 'targetReplicatedJobs': ['chief']},
    # Its Jobs restart tasks; once one has given up, all end.
    'failurePolicy': {'maxRestarts': 0},
    'replicatedJobs': [
      {
        'name': role,
        'replicas': 1,
        'template': {'spec': _make_indexed_job(job, options, role, counts)},
      }
      for role in counts
    ],
  }


def _make_indexed_job(job, options, role, counts):
  """Returns the spec (dict) of the Job with a Pod for each task of a role."""
  job_name, _ = _count_roles(job)[role]
  is_member = job_name != 'evaluator'
  env, serving = (), {}
  if sum(counts.values()) > 1:
    env = _make_role_env(options, role, counts)
    serving = pods.make_serving() if is_member else {}
  limits = objects.make_time_limits(options)
  limits.pop('ttlSecondsAfterFinished', None)
  argv = _make_argv(job, options, job_name)
  pod = pods.make_task(options, job_name, argv, serving, env)
  return {
    **limits,
    'completionMode': 'Indexed',
    'completions': counts[role],
    'parallelism': counts[role],
    'backoffLimitPerIndex': job.max_restarts,
    'maxFailedIndexes': 0,
    'podFailurePolicy': objects.make_failure_policy(is_needed=is_member),
    'template': {
      'metadata': {'labels': objects.labels_of(options, role=job_name)},
      'spec': {'restartPolicy': 'Never', **pod},
    },
  }


def _make_role_env(options, role, counts):
  """Returns the variables (list of dict) that tell a Pod its role.

  A JobSet names the Pods JOBSET-ROLE-0-INDEX, and has a headless Service of the
  same name, which also lists Pods that are not ready.
  """
  name = options.name
  cluster = {
    each: [
      f'{name}-{each}-0-{index}.{name}:{pods.PORT}' for index in range(count)
    ]
    for each, count in counts.items()
  }
  field = {'fieldPath': f"metadata.labels['{_INDEX_LABEL}']"}
  # Kubernetes replaces $(TASK_INDEX), as that variable comes first.
  task = f'{{"type": "{role}", "index": $(TASK_INDEX)}}'
  config = f'{{"cluster": {json.dumps(cluster)}, "task": {task}}}'
  return [
    {'name': 'TASK_INDEX', 'valueFrom': {'fieldRef': field}},
    {'name': 'TF_CONFIG', 'value': config},
  ]


def make_tfjob(job, options):
  """Returns the TFJob, a list of one dict."""
  # OnFailure rather than ExitCode, which takes our 3 (another task was lost)
  # for final and counts no restarts. The price: 1 and 2 are retried.
  policy = 'OnFailure' if job.max_restarts else 'Never'
  # No readiness probe: the operator's Services have no address for a Pod that
  # is not ready, and the tasks wait for each other.
  serving = {'ports': [{'name': 'tfjob-port', 'containerPort': pods.PORT}]}

  def make_replicas(job_name, count):
    labels = objects.labels_of(options, role=job_name)
    argv = _make_argv(job, options, job_name)
    return {
      'replicas': count,
      'restartPolicy': policy,
      'template': {
        'metadata': {'labels': labels},
        'spec': pods.make_task(options, job_name, argv, serving),
      },
    }

  names = {'ps': 'PS', 'chief': 'Chief', 'worker': 'Worker'}
  names['evaluator'] = 'Evaluator'
  run_policy = {
    'cleanPodPolicy': 'Running',
    **objects.make_time_limits(options),
  }
  if job.max_restarts:
    # The operator gives up once all tasks together reach this number.
    run_policy['backoffLimit'] = job.max_restarts + 1
  spec = {
    'runPolicy': run_policy,
    'tfReplicaSpecs': {
      names[role]: make_replicas(job_name, count)
      for role, (job_name, count) in _count_roles(job).items()
      if count
    },
  }
  labels = objects.labels_of(options)
  return [objects.make(options, 'TFJob', options.name, labels, spec)]


def _count_roles(job):
  """Returns {role of TF_CONFIG: (job name, how many)}."""
  return {
    'ps': ('ps', job.num_ps),
    'chief': ('worker', 1),
    'worker': ('worker', job.num_workers - 1),
    'evaluator': ('evaluator', int(job.evaluator)),
  }


def _make_argv(job, options, job_name):
  own_flags = pods.make_resource_flags(options, job_name)
  return ('python', '-m', job.module, *own_flags, *options.train_flags)
