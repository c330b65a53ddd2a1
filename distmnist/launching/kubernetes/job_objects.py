"""A run on Kubernetes as a Job and a Service for each task.

The Service has its own IP, which stays when the Pod behind it is replaced. It
also leads to Pods that are not ready yet, as tasks wait for each other before
any of them is ready.
"""

import dataclasses

from distmnist.launching import jobs
from distmnist.launching.kubernetes import objects, pods


def make(job, options):
  """Returns a Job for each task and its Service, a list of dicts."""
  documents = []
  for task in _make_tasks(job, options):
    index = f'{task.job_name}-{task.task_index}'
    name = f'{options.name}-{index}'
    labels = objects.labels_of(options, role=task.job_name, task=index)
    serving = {}
    if task.port:
      service = {
        'selector': labels,
        'publishNotReadyAddresses': True,
        'ports': [{'name': 'grpc', 'port': task.port}],
      }
      documents.append(objects.make(options, 'Service', name, labels, service))
      serving = pods.make_serving()
    pod = pods.make_task(options, task.job_name, task.argv, serving)
    spec = {
      **objects.make_time_limits(options),
      'backoffLimit': job.max_restarts,
      'podFailurePolicy': objects.make_failure_policy(),
      'template': {
        'metadata': {'labels': labels},
        'spec': {'restartPolicy': 'Never', **pod},
      },
    }
    documents.append(objects.make(options, 'Job', name, labels, spec))
  return documents


def _make_tasks(job, options):
  """Returns the list of jobs.Task; the host of each is its Service."""
  counts = {'ps': job.num_ps, 'worker': job.num_workers}
  ps_hosts, worker_hosts = (
    [f'{options.name}-{job_name}-{i}:{pods.PORT}' for i in range(count)]
    for job_name, count in counts.items()
  )

  def make(job_name):
    own_flags = pods.make_resource_flags(options, job_name)
    words = [*own_flags, *options.train_flags]
    return jobs.make_tasks(ps_hosts, worker_hosts, words, module=job.module)

  own_flags = pods.make_resource_flags(options, 'evaluator')
  words = (*own_flags, *options.train_flags)
  return [
    *make('ps')[: job.num_ps],
    *make('worker')[job.num_ps :],
    *jobs.make_evaluator_tasks(dataclasses.replace(job, train_flags=words)),
  ]
