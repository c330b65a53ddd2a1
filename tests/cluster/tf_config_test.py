"""TF_CONFIG, as several systems write it."""

import json

import pytest

from distmnist.cluster.identity import Identity
from distmnist.cluster.tf_config import read_tf_config
from distmnist.common import cli
from tests.support.tf_configs import PS, WORKERS, config

# As the training operator of Kubeflow writes it, the evaluator listed.
KUBEFLOW = {
  'chief': ['run-chief-0.ml.svc:2222'],
  'evaluator': ['run-evaluator-0.ml.svc:2222'],
  'ps': ['run-ps-0.ml.svc:2222'],
  'worker': ['run-worker-0.ml.svc:2222', 'run-worker-1.ml.svc:2222'],
}


@pytest.mark.parametrize(
  'job, index, expected',
  [
    ('chief', 0, ('worker', 0)),
    ('worker', 0, ('worker', 1)),
    ('worker', 1, ('worker', 2)),
    ('ps', 0, ('ps', 0)),
    ('evaluator', 0, ('evaluator', 0)),
  ],
)
def test_the_chief_of_a_tfjob_is_worker_0_and_the_workers_come_after_it(
  job, index, expected
):
  found = read_tf_config(config(KUBEFLOW, job, index, environment='cloud'))
  assert found == Identity(
    'TF_CONFIG',
    ('run-ps-0.ml.svc:2222',),
    (
      'run-chief-0.ml.svc:2222',
      'run-worker-0.ml.svc:2222',
      'run-worker-1.ml.svc:2222',
    ),
    ('run-evaluator-0.ml.svc:2222',),
    *expected,
    chief_alias='chief',
  )


def test_a_master_is_a_chief():
  cluster = {'master': ['m:1'], 'worker': WORKERS, 'ps': PS}
  found = read_tf_config(config(cluster, 'master', 0))
  assert found.worker_hosts == ('m:1', 'w0:1', 'w1:1')
  assert (found.job_name, found.task_index) == ('worker', 0)
  assert found.chief_alias == 'master'


def test_without_a_chief_worker_0_is_it():
  found = read_tf_config(config({'worker': WORKERS, 'ps': PS}, 'worker', 1))
  assert found == Identity(
    'TF_CONFIG', tuple(PS), tuple(WORKERS), job_name='worker', task_index=1
  )


def test_an_evaluator_need_not_be_listed():
  # As Vertex AI has it, which adds things of its own.
  text = json.dumps(
    {
      'cluster': {'chief': ['c:1'], 'worker': ['w:1'], 'ps': ['p:1']},
      'environment': 'cloud',
      'job': {'python_module': 'x', 'args': ['--a']},
      'task': {'type': 'evaluator', 'index': 0, 'trial': '1', 'cloud': 'abc'},
    }
  )
  found = read_tf_config(text)
  assert (found.job_name, found.task_index) == ('evaluator', 0)
  assert (found.ps_hosts, found.worker_hosts) == (('p:1',), ('c:1', 'w:1'))
  assert found.evaluator_hosts == ()


@pytest.mark.parametrize(
  'given',
  [
    {'worker': {'1': 'w1:1', '0': 'w0:1'}, 'ps': {'0': 'p:1'}},
    {'worker': WORKERS, 'ps': ['p:1'], 'chief': [], 'evaluator': None},
  ],
)
def test_all_tasks_may_be_named_by_their_numbers_and_jobs_may_be_empty(given):
  found = read_tf_config(config(given, 'worker', '1'))
  assert (found.ps_hosts, found.worker_hosts) == (('p:1',), tuple(WORKERS))
  assert (found.job_name, found.task_index) == ('worker', 1)


@pytest.mark.parametrize(
  'text',
  [
    '{}',
    '{"cluster": {}}',
    '{"cluster": null, "task": null}',
    '{"environment": "cloud", "cluster": {}, "job": {}, "task": {}}',
    '{"cluster": {}, "task": {"type": "", "index": 0}}',
    '{"cluster": {}, "task": {"type": "worker", "index": 0}}',
    '{"cluster": {}, "task": {"type": "chief"}}',
    '{"cluster": {"worker": ["w:1"]}, "task": {"type": "worker", "index": 0}}',
  ],
)
def test_an_empty_cluster_or_one_worker_is_one_process(text):
  assert read_tf_config(text) == Identity('TF_CONFIG')


def test_one_chief_and_its_evaluator_need_no_server():
  cluster = {'chief': ['c:1'], 'evaluator': ['e:1']}
  for job, expected in ('chief', 'worker'), ('evaluator', 'evaluator'):
    found = read_tf_config(config(cluster, job, 0))
    assert (found.ps_hosts, found.worker_hosts) == ((), ())
    assert found.job_name == expected
    assert found.evaluator_hosts == ('e:1',)


# What each is refused for has to be named.
REFUSED = {
  '{"cluster"': 'JSON',
  '[' * 100_000: 'JSON',
  '[1]': '[1]',
  '{"cluster": []}': 'cluster is []',
  '{"cluster": {"worker": ["a:1"]}, "task": 1}': 'task is 1',
  config({'workers': WORKERS}): "'workers'",
  config({'worker': 'a:1'}): "worker is 'a:1'",
  config({'worker': ['a:1', 2]}): 'worker 1 is at 2',
  config({'worker': ['a:1', 'b']}): "worker 1 of the cluster: 'b'",
  config({'ps': ['a:0']}): "ps 0 of the cluster: the port of 'a:0'",
  config({'ps': ['a:' + '9' * 5000]}): 'ps 0 of the cluster: the port',
  config({'ps': ['\ud800:1']}): "ps 0 of the cluster: '\\ud800:1'",
  config({'ps': ['a\0:1']}): "'a\\x00:1'",
  config({'chief': ['a:1'], 'master': ['b:1']}): 'a chief and a master',
  config({'chief': ['a:1', 'b:1']}): '2 hosts for chief',
  config({'ps': PS}, 'ps', 0): 'a ps',
  config({'ps': ['a:1'], 'worker': ['b:1', 'a:1']}): 'ps 0 and worker 1',
  config({'worker': {'1': 'a:1'}}): 'worker',
  config({'worker': {'x': 'a:1'}}): "a key of worker is 'x'",
  config({'worker': WORKERS}): 'the type of the task',
  config({'worker': WORKERS}, 'Worker', 0): "'Worker'",
  config({'worker': WORKERS}, ['worker'], 0): "['worker']",
  config({'worker': WORKERS}, 'worker'): 'the index of the task, a worker,',
  config({'worker': WORKERS}, 'worker', -1): 'a worker, is -1',
  config({'worker': WORKERS}, 'worker', 1.0): 'a worker, is 1.0',
  config({'worker': WORKERS}, 'worker', True): 'a worker, is True',
  config({'worker': WORKERS}, 'worker', 'x'): "a worker, is 'x'",
  config({'worker': WORKERS, 'ps': PS}, 'worker', 2): 'worker 2',
  config({'worker': WORKERS}, 'chief', 0): 'chief 0',
  config(KUBEFLOW, 'evaluator', 1): 'evaluator 1',
  config({}, 'ps', 0): 'ps 0',
  config({}, 'worker', 1): 'worker 1',
  # A TFJob with enableDynamicWorker.
  json.dumps(
    {
      'sparseCluster': {'worker': {'0': 'w:1'}, 'ps': PS},
      'task': {'type': 'worker', 'index': 0},
    }
  ): 'sparseCluster',
}


@pytest.mark.parametrize('text', REFUSED, ids=range(len(REFUSED)))
def test_a_tf_config_that_does_not_fit_is_one_short_line(text):
  with pytest.raises(cli.UsageError) as caught:
    read_tf_config(text)
  message = str(caught.value)
  assert message.startswith('TF_CONFIG: ')
  assert REFUSED[text] in message
  assert '\n' not in message
  assert len(message) < 400 or '99999' in message
