from distmnist.launching.kubernetes import objects
from tests.support.manifests import make, make_options


def test_kueue_finds_what_is_to_be_admitted_and_nothing_else():
  for kind, expected in {
    'job': ['Job', 'Job', 'Job'],
    'jobset': ['JobSet'],
    'tfjob': ['TFJob'],
    'trainjob': ['TrainJob'],
  }.items():
    documents = make(kind=kind, queue='team', tensorboard=True)
    queued = [
      d['kind']
      for d in documents
      if d['metadata']['labels'].get('kueue.x-k8s.io/queue-name') == 'team'
    ]
    assert queued == expected


def test_without_a_namespace_it_is_that_of_kubectl():
  labels = objects.labels_of(make_options(), task='ps-0')
  assert labels == {'app': 'distmnist', 'run': 'mnist', 'task': 'ps-0'}
  made = objects.make(make_options(), 'Service', 'a', labels, {})
  assert made['metadata'] == {'name': 'a', 'labels': labels}
  options = make_options(namespace='ml')
  made = objects.make(options, 'ConfigMap', 'a', labels, {}, field='data')
  assert made['metadata']['namespace'] == 'ml'
  assert made['data'] == {}


def test_a_run_has_no_limit_of_time_unless_it_is_given():
  assert objects.make_time_limits(make_options()) == {}
  options = make_options(ttl_secs=0, deadline_secs=5)
  assert objects.make_time_limits(options) == {
    'activeDeadlineSeconds': 5,
    'ttlSecondsAfterFinished': 0,
  }
