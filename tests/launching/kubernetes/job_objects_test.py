"""A Job and a Service for each task."""

import pytest

from tests.support.manifests import (
  container_of,
  find,
  flags_of,
  selects,
  templates_of,
)
from tests.support.manifests import make_as_read as make

each_shape = pytest.mark.parametrize(
  'shape', [{'num_ps': num_ps} for num_ps in (0, 1, 2)], ids=str
)


@each_shape
def test_the_hosts_of_the_flags_are_services_and_lead_to_their_tasks(shape):
  documents = make(**shape, tensorboard=True)
  services, jobs = find(documents, 'Service'), find(documents, 'Job')
  assert set(services) == {*jobs, 'mnist-tensorboard'}
  for name, job in jobs.items():
    flags = flags_of(job['spec']['template'])
    hosts = [flags.get('ps_hosts'), flags.get('worker_hosts')]
    addresses = ','.join(filter(None, hosts)).split(',')
    assert addresses == [f'{other}:2222' for other in jobs]
    # It is found under its own name.
    own = flags[f'{flags["job_name"]}_hosts'].split(',')
    assert own[int(flags['task_index'])] == f'{name}:2222'
  for name, service in services.items():
    selected = [
      other
      for other, template in templates_of(documents).items()
      if selects(service['spec']['selector'], template)
    ]
    assert selected == [name]


def test_one_worker_alone_serves_nowhere():
  documents = make(num_ps=0, num_workers=1)
  assert [d['kind'] for d in documents] == ['Job']
  container = container_of(templates_of(documents)['mnist-worker-0'])
  assert 'readinessProbe' not in container
  assert 'ports' not in container
  assert not any('hosts' in word for word in container['args'])
