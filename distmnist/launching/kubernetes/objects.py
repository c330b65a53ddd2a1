"""What the objects of a run on Kubernetes have in common."""

from distmnist.common import cli

_APIS = {
  'ConfigMap': 'v1',
  'Deployment': 'apps/v1',
  'Job': 'batch/v1',
  'JobSet': 'jobset.x-k8s.io/v1alpha2',
  'NetworkPolicy': 'networking.k8s.io/v1',
  'Service': 'v1',
  'TFJob': 'kubeflow.org/v1',
  'TrainJob': 'trainer.kubeflow.org/v1alpha1',
  'TrainingRuntime': 'trainer.kubeflow.org/v1alpha1',
}
# The kinds that run the tasks, and the conditions that say how each has ended.
WORKLOADS = {
  'Job': {'Complete': True, 'Failed': False},
  'JobSet': {'Completed': True, 'Failed': False},
  'TFJob': {'Succeeded': True, 'Failed': False},
  'TrainJob': {'Complete': True, 'Failed': False},
}
_QUEUE_LABEL = 'kueue.x-k8s.io/queue-name'


def make(options, kind, name, labels, spec, field='spec'):
  """Returns an object (dict) of the run, of `kind` and `name`."""
  metadata = {'name': name}
  if options.namespace:
    metadata['namespace'] = options.namespace
  labels = {**labels, **make_queue_label(options, kind)}
  return {
    'apiVersion': _APIS[kind],
    'kind': kind,
    'metadata': {**metadata, 'labels': labels},
    field: spec,
  }


def make_queue_label(options, kind):
  """Returns the label (dict) by which Kueue finds what it is to admit."""
  is_queued = options.queue and kind in WORKLOADS
  return {_QUEUE_LABEL: options.queue} if is_queued else {}


def labels_of(options, **more):
  """Returns the labels (dict) of what belongs to the run."""
  launch = {'launch': options.launch} if options.launch else {}
  return {'app': 'distmnist', 'run': options.name, **launch, **more}


def select(labels):
  """Returns what kubectl calls a selector (str) of labels (dict)."""
  return ','.join(f'{name}={value}' for name, value in labels.items())


def make_time_limits(options):
  """Returns the fields (dict) of an object that limit how long it stays."""
  limits = {
    'activeDeadlineSeconds': options.deadline_secs,
    'ttlSecondsAfterFinished': options.ttl_secs,
  }
  return {name: secs for name, secs in limits.items() if secs is not None}


def make_failure_policy(is_needed=True):
  """Returns the podFailurePolicy (dict) of a Job.

  Args:
    is_needed: bool, whether the run fails with its Pod. Otherwise the Pod
      restarts, at growing intervals, until the run ends.
  """
  # That a node is drained or preempted is not the task's fault.
  ignored = [
    {
      'action': 'Ignore',
      'onPodConditions': [{'type': 'DisruptionTarget', 'status': 'True'}],
    }
  ]
  if not is_needed:
    codes = {'operator': 'NotIn', 'values': [0]}
    return {'rules': [*ignored, {'action': 'Ignore', 'onExitCodes': codes}]}
  codes = {'operator': 'In', 'values': list(cli.FINAL_CODES)}
  return {'rules': [*ignored, {'action': 'FailJob', 'onExitCodes': codes}]}
