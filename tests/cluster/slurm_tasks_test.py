"""Which task is which in a step of Slurm."""

import re

import pytest

from distmnist.cluster.identity import Identity
from distmnist.cluster.slurm_tasks import (
  expand_counts,
  expand_nodes,
  read_slurm,
)
from distmnist.cluster.task_environment import read
from distmnist.common import cli


@pytest.mark.parametrize(
  'text, expected',
  [
    ('gpu5', ['gpu5']),
    ('a,b', ['a', 'b']),
    ('node[01-03,07],gpu5', ['node01', 'node02', 'node03', 'node07', 'gpu5']),
    ('n[8-11]', ['n8', 'n9', 'n10', 'n11']),
    ('n[08-11]', ['n08', 'n09', 'n10', 'n11']),
    ('n[098-101]', ['n098', 'n099', 'n100', 'n101']),
    ('n[1,01,001]', ['n1', 'n01', 'n001']),
    ('n[3]-ib.x', ['n3-ib.x']),
    ('r[1-2]n[09-10],m[0]x', ['r1n09', 'r1n10', 'r2n09', 'r2n10', 'm0x']),
    ('[1-2]', ['1', '2']),
  ],
)
def test_a_node_list_is_expanded(text, expected):
  assert expand_nodes(text) == expected


@pytest.mark.parametrize(
  'text',
  [
    *('', 'a,', 'a,,b', 'a[1-2', 'a1]', 'a[]', 'a[[1]]', 'a[2-1]', 'a[1-2-3]'),
    *('a[1,,2]', 'a[x]', 'a[²]', 'bgl[123x456]', 'a' * 256),
    *('a[0-999999999]', 'a[0-99][0-99],b', 'a[0-99][0-99][0-99]'),
  ],
)
def test_a_node_list_that_is_none_is_one_short_line(text):
  with pytest.raises(cli.UsageError, match='^SLURM_JOB_NODELIST=') as caught:
    expand_nodes(text)
  assert '\n' not in str(caught.value) and len(str(caught.value)) < 200


@pytest.mark.parametrize(
  'text, expected', [('1', [1]), ('2(x3),1', [2, 2, 2, 1]), ('4,2(x1)', [4, 2])]
)
def test_tasks_per_node_are_expanded(text, expected):
  assert expand_counts(text) == expected


@pytest.mark.parametrize(
  'text',
  [
    *('', '2(x', '2x3', '2,', '0', '-1', '2(x-1)'),
    *('999999999', '1(x999999999)'),  # More than anybody has.
  ],
)
def test_tasks_per_node_that_are_none_are_one_line(text):
  with pytest.raises(cli.UsageError, match='^SLURM_TASKS_PER_NODE=.*$'):
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
    assert each.source == 'Slurm'
    assert each.ps_hosts == ('node2:2222',)
    assert each.worker_hosts == ('node2:2223', 'node2:2224', 'node3:2222')


def test_the_last_task_may_be_an_evaluator_and_no_part_of_the_cluster():
  found = [
    read_slurm(step_of(i, DISTMNIST_NUM_EVALUATORS='1')) for i in range(4)
  ]
  assert [each.job_name for each in found] == [
    *('ps', 'worker', 'worker', 'evaluator')
  ]
  assert found[3].task_index == 0
  for each in found:
    assert each.worker_hosts == ('node2:2223', 'node2:2224')


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
  'changes, named',
  [
    ({'SLURM_STEP_ID': None}, 'SLURM_STEP_ID'),
    ({'DISTMNIST_NUM_PS': 'two'}, "DISTMNIST_NUM_PS='two'"),
    ({'SLURM_PROCID': '-1'}, "SLURM_PROCID='-1'"),
    ({'SLURM_PROCID': '4'}, 'SLURM_PROCID=4'),
    ({'DISTMNIST_NUM_PS': '4'}, 'DISTMNIST_NUM_PS=4'),
    (
      {'DISTMNIST_NUM_PS': '3', 'DISTMNIST_NUM_EVALUATORS': '1'},
      'DISTMNIST_NUM_EVALUATORS=1',
    ),
    ({'SLURM_STEP_NODELIST': None}, 'SLURM_JOB_NODELIST names 3 hosts'),
    ({'SLURM_STEP_TASKS_PER_NODE': '3,2'}, 'SLURM_STEP_TASKS_PER_NODE has 5'),
    (
      {'SLURM_STEP_NODELIST': None, 'SLURM_JOB_NODELIST': None},
      'SLURM_JOB_NODELIST',
    ),
    ({'DISTMNIST_FIRST_PORT': '65534'}, 'DISTMNIST_FIRST_PORT=65534'),
    ({'SLURM_NODEID': '1', 'SLURM_LOCALID': '0'}, '--distribution=block'),
    ({'SLURM_STEP_NODELIST': 'a[1,1]'}, "SLURM_STEP_NODELIST='a[1,1]'"),
    ({'SLURM_STEP_NODELIST': 'a b,c'}, "SLURM_STEP_NODELIST: 'a b:2222'"),
  ],
)
def test_a_step_that_does_not_fit_is_one_line(changes, named):
  with pytest.raises(cli.UsageError, match=re.escape(named)) as caught:
    read_slurm(step_of(1, **changes))
  assert '\n' not in str(caught.value)
