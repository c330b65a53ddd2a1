import pytest

from distmnist.launching.kubernetes import run_status
from tests.support.kube_answers import make_end, make_object, make_pod


def test_of_two_chiefs_it_is_the_newer():
  pods = [
    make_pod('mnist-ps-0-c', '2026-01-01T00:02:00Z'),
    make_pod('mnist-worker-0-b', '2026-01-01T00:00:05Z'),
    make_pod('mnist-worker-0-a', '2026-01-01T00:01:00Z'),
  ]
  found = run_status.find_newest(pods, 'mnist-worker-0-')
  assert found['metadata']['name'] == 'mnist-worker-0-a'
  assert run_status.find_newest(pods, 'mnist-worker-1-') is None


@pytest.mark.parametrize(
  ('document', 'outcome'),
  [
    ({'kind': 'Job'}, None),
    (make_object('Job', 'Suspended'), None),
    (make_object('Job', 'SuccessCriteriaMet', 'Complete'), True),
    (make_object('Job', 'FailureTarget', 'Failed'), False),
    (make_object('JobSet', 'StartupPolicyCompleted'), None),
    (make_object('JobSet', 'Completed'), True),
    (make_object('TrainJob', 'Complete'), True),
    (make_object('TrainJob', 'Failed'), False),
  ],
)
def test_an_object_tells_how_it_has_ended(document, outcome):
  assert run_status.find_outcome(document) is outcome


def test_a_condition_that_is_not_so_is_none():
  document = make_object('Job', 'Complete')
  document['status']['conditions'][0]['status'] = 'False'
  assert run_status.find_outcome(document) is None


def test_the_first_to_fail_is_named_with_its_reason():
  pods = [
    make_pod('a', terminated=make_end(3, '2026-01-01T00:00:09Z')),
    make_pod(
      'b', terminated=make_end(137, '2026-01-01T00:00:05Z', 'OOMKilled')
    ),
    make_pod('c', terminated=make_end(0, '2026-01-01T00:00:01Z')),
    make_pod('d', running={}),
  ]
  assert run_status.find_first_failure(pods) == ('b', 137, 'OOMKilled')
  assert run_status.find_first_failure(pods[2:]) is None


def test_an_evicted_pod_says_so():
  pod = make_pod('a', terminated=make_end(137))
  pod['status']['reason'] = 'Evicted'
  assert run_status.find_first_failure([pod]) == ('a', 137, 'Evicted')


def test_what_waits_says_for_what():
  unscheduled = make_pod('c')
  unscheduled['status']['conditions'] = [
    {
      'type': 'PodScheduled',
      'status': 'False',
      'message': '0/3 nodes are available: 3 Insufficient nvidia.com/gpu.',
    }
  ]
  pods = [
    make_pod('b', waiting={'reason': 'ContainerCreating'}),
    make_pod('a', waiting={'reason': 'ContainerCreating'}),
    unscheduled,
    make_pod('d', running={}),
    make_pod('e'),
  ]
  assert run_status.explain_waiting(pods) == (
    'a, b: ContainerCreating; c: 0/3 nodes are available: 3 Insufficient'
    ' nvidia.com/gpu.; e: Pending'
  )
  assert run_status.explain_waiting(pods[3:4]) == ''


def test_a_sidecar_is_not_the_task():
  pod = make_pod('a', terminated=make_end(3))
  sidecar = {'name': 'proxy', 'state': {'running': {}}}
  pod['status']['containerStatuses'].insert(0, sidecar)
  assert run_status.find_code(pod) == 3
  assert run_status.has_started(pod)
