"""task_environment: who is who by TF_CONFIG, and in a step of Slurm."""

import json
import re

import pytest

from distmnist import cli, task_environment
from distmnist.task_environment import (
  Identity,
  expand_counts,
  expand_nodes,
  read,
  read_slurm,
  read_tf_config,
)

PS, WORKERS = ['p0:1', 'p1:1'], ['w0:1', 'w1:1']


def config(cluster, job=None, index=None, **more):
  """Returns a TF_CONFIG (str)."""
  task = {'type': job, 'index': index}
  task = {name: value for name, value in task.items() if value is not None}
  return json.dumps({'cluster': cluster, 'task': task, **more})


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
    chief_title='chief',
  )


def test_a_master_is_a_chief():
  cluster = {'master': ['m:1'], 'worker': WORKERS, 'ps': PS}
  found = read_tf_config(config(cluster, 'master', 0))
  assert found.worker_hosts == ('m:1', 'w0:1', 'w1:1')
  assert (found.job_name, found.task_index) == ('worker', 0)
  assert found.chief_title == 'master'


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


REFUSED = {
  '{"cluster"': "'{\"cluster\"' is not JSON (Expecting ':' delimiter",
  '[' * 100_000: "'[[[[[[[[[[[[[[",
  '[1]': '[1] is not an object: expected {"cluster": {"ps": ["host:port"]',
  '{"cluster": []}': 'cluster is []: expected an object',
  '{"cluster": {"worker": ["a:1"]}, "task": 1}': 'task is 1: expected an obj',
  config({'workers': WORKERS}): "the cluster has a job 'workers': expected "
  'chief, master, ps, worker, evaluator',
  config({'worker': 'a:1'}): "worker is 'a:1': expected a list of \"host:",
  config({'worker': ['a:1', 2]}): 'worker 1 is at 2: expected "host:port"',
  config({'worker': ['a:1', 'b']}): "worker 1 of the cluster: 'b' is not host",
  config({'ps': ['a:0']}): "ps 0 of the cluster: the port of 'a:0' is not a",
  config({'ps': ['a:' + '9' * 5000]}): 'is not a number from 1 to 65535',
  config({'ps': ['\ud800:1']}): "ps 0 of the cluster: '\\ud800:1' is not host",
  config({'ps': ['a\0:1']}): "'a\\x00:1' is not host:port",
  config({'chief': ['a:1'], 'master': ['b:1']}): 'a chief and a master, which',
  config({'chief': ['a:1', 'b:1']}): '2 hosts for chief: expected one',
  config({'ps': PS}, 'ps', 0): 'has a ps, but nobody who trains: expected a wo',
  config({'ps': ['a:1'], 'worker': ['b:1', 'a:1']}): 'ps 0 and worker 1 are '
  'both at a:1: each needs an address of its own',
  config({'worker': {'1': 'a:1'}}): 'of worker the cluster has [1] alone, and ',
  config({'worker': {'x': 'a:1'}}): "a key of worker is 'x': expected a whole",
  config({'worker': WORKERS}): 'the type of the task is missing: expected '
  'worker, evaluator',
  config({'worker': WORKERS}, 'Worker', 0): "the type of the task is 'Worker':",
  config({'worker': WORKERS}, ['worker'], 0): "type of the task is ['worker']:",
  config({'worker': WORKERS}, 'worker'): 'the index of the task, a worker, is '
  'missing: expected a whole number from 0 on',
  config({'worker': WORKERS}, 'worker', -1): 'a worker, is -1: expected',
  config({'worker': WORKERS}, 'worker', 1.0): 'a worker, is 1.0: expected',
  config({'worker': WORKERS}, 'worker', True): 'a worker, is True: expected',
  config({'worker': WORKERS}, 'worker', 'x'): "a worker, is 'x': expected",
  config({'worker': WORKERS, 'ps': PS}, 'worker', 2): 'the task is worker 2, '
  'but the cluster has 2 ps, 2 worker: expected one of these, counted from 0',
  config({'worker': WORKERS}, 'chief', 0): 'the task is chief 0, but the cl',
  config(KUBEFLOW, 'evaluator', 1): 'the task is evaluator 1, but the cluster',
  config({}, 'ps', 0): 'the task is ps 0, but the cluster has no task',
  config({}, 'worker', 1): 'the task is worker 1, but the cluster has no task',
  # A TFJob with enableDynamicWorker.
  json.dumps(
    {
      'sparseCluster': {'worker': {'0': 'w:1'}, 'ps': PS},
      'task': {'type': 'worker', 'index': 0},
    }
  ): 'sparseCluster names only a part of the tasks, and each needs to know all',
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


def test_what_is_set_first_of_all_counts():
  assert task_environment.find({}) == []
  assert read({}) is None
  assert read({'TF_CONFIG': ' ', 'DISTMNIST_NUM_PS': ''}) is None
  both = {'TF_CONFIG': '{}', 'DISTMNIST_NUM_PS': 'x'}
  assert task_environment.find(both) == ['TF_CONFIG', 'DISTMNIST_NUM_PS']
  assert read(both) == Identity('TF_CONFIG')


# Slurm.


@pytest.mark.parametrize(
  'text, expected',
  [
    ('gpu5', ['gpu5']),
    ('a,b', ['a', 'b']),
    (
      'node[01-03,07],gpu5',
      ['node01', 'node02', 'node03', 'node07', 'gpu5'],
    ),
    ('n[8-11]', ['n8', 'n9', 'n10', 'n11']),
    ('n[08-11]', ['n08', 'n09', 'n10', 'n11']),
    ('n[098-101]', ['n098', 'n099', 'n100', 'n101']),
    ('n[1,01,001]', ['n1', 'n01', 'n001']),
    ('n[3]-ib.x', ['n3-ib.x']),
    (
      'r[1-2]n[09-10],m[0]x',
      ['r1n09', 'r1n10', 'r2n09', 'r2n10', 'm0x'],
    ),
    ('[1-2]', ['1', '2']),
  ],
)
def test_a_node_list_is_expanded(text, expected):
  assert expand_nodes(text) == expected


@pytest.mark.parametrize(
  'text, problem',
  [
    ('', 'a name is empty'),
    ('a,', 'a name is empty'),
    ('a,,b', 'a name is empty'),
    ('a[1-2', "'[' is not understood"),
    ('a1]', "']' is not understood"),
    ('a[]', "'[]' is not understood"),
    ('a[[1]]', "'[' is not understood"),
    ('a[2-1]', "'[2-1]' is not understood"),
    ('a[1-2-3]', "'[1-2-3]' is not understood"),
    ('a[1,,2]', "'[1,,2]' is not understood"),
    ('a[x]', "'[x]' is not understood"),
    ('a[²]', "'[²]' is not understood"),
    ('bgl[123x456]', "'[123x456]' is not understood"),
    ('a[0-999999999]', 'that is more than 10,000 hosts'),
    ('a[0-99][0-99],b', 'that is more than 10,000 hosts'),
    ('a[0-99][0-99][0-99]', 'that is more than 10,000 hosts'),
    ('a' * 256, 'a name has more than 255 characters'),
  ],
)
def test_a_node_list_that_is_none_is_one_line(text, problem):
  with pytest.raises(cli.UsageError) as caught:
    expand_nodes(text)
  message = str(caught.value)
  assert message.startswith('SLURM_JOB_NODELIST=')
  assert f'{problem}; expected hosts such as node[01-03,07],gpu5' in message


@pytest.mark.parametrize(
  'text, expected',
  [('1', [1]), ('2(x3),1', [2, 2, 2, 1]), ('4,2(x1)', [4, 2])],
)
def test_tasks_per_node_are_expanded(text, expected):
  assert expand_counts(text) == expected


@pytest.mark.parametrize('text', ['', '2(x', '2x3', '2,', '0', '-1', '2(x-1)'])
def test_tasks_per_node_that_are_none_are_one_line(text):
  with pytest.raises(
    cli.UsageError, match=r'not understood; expected tasks .*, such as 2\(x3\)'
  ):
    expand_counts(text)


@pytest.mark.parametrize('text', ['999999999', '1(x999999999)'])
def test_too_many_tasks_are_refused(text):
  with pytest.raises(cli.UsageError, match='more than 10,000 tasks$'):
    expand_counts(text)


# What srun sets in a step of four tasks on the last two of three nodes.
STEP = {
  'SLURM_JOB_NODELIST': 'node[1-3]',
  'SLURM_STEP_ID': '0',
  'SLURM_STEP_NODELIST': 'node[2-3]',
  'SLURM_STEP_NUM_TASKS': '4',
  'SLURM_STEP_TASKS_PER_NODE': '3,1',
  'SLURM_NTASKS': '4',
  'SLURM_TASKS_PER_NODE': '3,1',
  'DISTMNIST_NUM_PS': '1',
}
PLACES = ('0', '0'), ('0', '1'), ('0', '2'), ('1', '0')


def step_of(task, **changes):
  """Returns the variables of one task; a change to None takes one away."""
  node, local = PLACES[task]
  own = {
    'SLURM_PROCID': str(task),
    'SLURM_NODEID': node,
    'SLURM_LOCALID': local,
  }
  merged = STEP | own | changes
  return {name: text for name, text in merged.items() if text is not None}


def test_the_first_tasks_of_a_step_are_ps_and_the_others_workers():
  found = [read_slurm(step_of(i)) for i in range(4)]
  assert [(each.job_name, each.task_index) for each in found] == [
    ('ps', 0),
    ('worker', 0),
    ('worker', 1),
    ('worker', 2),
  ]
  for each in found:
    assert each.told_by == 'Slurm'
    assert each.ps_hosts == ('node2:2222',)
    assert each.worker_hosts == ('node2:2223', 'node2:2224', 'node3:2222')


def test_the_variables_of_the_job_do_where_the_step_has_none():
  environ = step_of(
    3,
    SLURM_STEP_NODELIST=None,
    SLURM_STEP_NUM_TASKS=None,
    SLURM_STEP_TASKS_PER_NODE=None,
    SLURM_JOB_NODELIST='node[2-3]',
    DISTMNIST_FIRST_PORT='3000',
    DISTMNIST_NUM_PS='0',
  )
  found = read_slurm(environ)
  assert found.ps_hosts == ()
  assert found.worker_hosts[2:] == ('node2:3002', 'node3:3000')
  assert (found.job_name, found.task_index) == ('worker', 3)


def test_a_step_of_one_task_is_one_process():
  environ = step_of(
    0,
    SLURM_STEP_NODELIST='node2',
    SLURM_STEP_NUM_TASKS='1',
    SLURM_STEP_TASKS_PER_NODE='1',
    DISTMNIST_NUM_PS='0',
  )
  assert read_slurm(environ) == Identity('Slurm')


def test_a_shell_in_an_allocation_is_no_task():
  environ = {'SLURM_NTASKS': '4', 'SLURM_JOB_NODELIST': 'node[2-3]'}
  assert read(environ) is None
  assert read(environ | {'SLURM_PROCID': '0'}) is None


@pytest.mark.parametrize(
  'changes, message',
  [
    (
      {'SLURM_STEP_ID': None},
      'DISTMNIST_NUM_PS=1 is set, but this is no task of a Slurm step, which '
      'has SLURM_PROCID and SLURM_STEP_ID: start it by srun, or unset '
      'DISTMNIST_NUM_PS',
    ),
    (
      {'DISTMNIST_NUM_PS': 'two'},
      "DISTMNIST_NUM_PS='two': expected a whole number from 0 on",
    ),
    (
      {'SLURM_PROCID': '-1'},
      "SLURM_PROCID='-1': expected a whole number from 0 on",
    ),
    (
      {'SLURM_PROCID': '4'},
      'SLURM_PROCID=4, but SLURM_STEP_NUM_TASKS=4: expected less',
    ),
    (
      {'DISTMNIST_NUM_PS': '4'},
      'DISTMNIST_NUM_PS=4 leaves no worker among 4 tasks '
      '(SLURM_STEP_NUM_TASKS): ask srun for more by --ntasks, or set fewer ps',
    ),
    (
      {'SLURM_STEP_NODELIST': None},
      'SLURM_JOB_NODELIST names 3 hosts and SLURM_STEP_TASKS_PER_NODE has 4 '
      'tasks on 2, but SLURM_STEP_NUM_TASKS is 4: expected the same tasks in '
      'each; start them by srun, which sets them',
    ),
    (
      {'SLURM_STEP_TASKS_PER_NODE': '3,2'},
      'SLURM_STEP_NODELIST names 2 hosts and SLURM_STEP_TASKS_PER_NODE has 5 '
      'tasks on 2, but SLURM_STEP_NUM_TASKS is 4: expected the same tasks in '
      'each; start them by srun, which sets them',
    ),
    (
      {'SLURM_STEP_NODELIST': None, 'SLURM_JOB_NODELIST': None},
      'DISTMNIST_NUM_PS is set, but neither SLURM_STEP_NODELIST nor '
      'SLURM_JOB_NODELIST is: start the tasks by srun, which sets them, or '
      'unset DISTMNIST_NUM_PS',
    ),
    (
      {'DISTMNIST_FIRST_PORT': '65534'},
      'DISTMNIST_FIRST_PORT=65534 gives 3 tasks of a host the ports to 65536: '
      'expected ports from 1 to 65535',
    ),
    (
      {'SLURM_NODEID': '1', 'SLURM_LOCALID': '0'},
      'SLURM_PROCID=1 is task 0 of node 1, expected task 1 of node 0: deal the '
      'tasks out node by node, by srun --distribution=block',
    ),
    (
      {'SLURM_STEP_NODELIST': 'a[1,1]'},
      "SLURM_STEP_NODELIST='a[1,1]' names a host twice",
    ),
    (
      {'SLURM_STEP_NODELIST': 'a b,c'},
      "SLURM_STEP_NODELIST: 'a b:2222' is not host:port",
    ),
  ],
)
def test_a_step_that_does_not_fit_is_one_line(changes, message):
  with pytest.raises(cli.UsageError, match=f'^{re.escape(message)}$'):
    read_slurm(step_of(1, **changes))
