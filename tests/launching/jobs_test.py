import shlex

import pytest

from distmnist.common import cli, command_line
from distmnist.launching import jobs

PS = ['a:1', 'b:2']
WORKERS = ['c:3', 'd:4', 'e:5']


def test_ps_come_first_then_the_workers_in_order():
  cluster = jobs.make_tasks(PS, WORKERS, [])
  assert [task.name for task in cluster] == [
    *('ps 0', 'ps 1', 'worker 0', 'worker 1', 'worker 2'),
  ]
  assert [task.address for task in cluster] == PS + WORKERS
  assert (cluster[1].host, cluster[1].port) == ('b', 2)


def test_a_task_is_told_who_it_is_and_who_the_others_are():
  task = jobs.make_tasks(PS, WORKERS, ['--steps=5'], num_cores=8)[3]
  assert task.argv == (
    *('python', '-m', 'distmnist.train', '--job_name=worker'),
    *('--task_index=1', '--ps_hosts=a:1,b:2', '--worker_hosts=c:3,d:4,e:5'),
    *('--intra_op_parallelism_threads=2', '--inter_op_parallelism_threads=2'),
    '--steps=5',
  )


def test_threads_of_a_ps_are_one_and_of_a_worker_at_least_one():
  cluster = jobs.make_tasks(PS, WORKERS, [], num_cores=2)
  threads = {
    command_line.find_value(task.argv, 'intra_op_parallelism_threads')
    for task in cluster
  }
  assert threads == {'1'}


def test_tasks_on_machines_of_their_own_have_the_threads_of_tensorflow():
  for task in jobs.make_tasks(PS, WORKERS, ['--steps=5']):
    assert task.argv[7:] == ('--steps=5',)


def test_one_worker_without_a_ps_gets_no_cluster_flags():
  (task,) = jobs.make_tasks([], ['127.0.0.1:0'], [])
  assert task.port is None
  assert task.address == '127.0.0.1'
  for name in jobs.CLUSTER_FLAGS:
    assert command_line.find_value(task.argv, name) is None


def test_workers_without_a_ps_are_a_cluster_without_ps_hosts():
  cluster = jobs.make_tasks([], WORKERS, [])
  assert len(cluster) == 3
  assert (
    command_line.find_value(cluster[2].argv, 'worker_hosts') == 'c:3,d:4,e:5'
  )
  assert command_line.find_value(cluster[2].argv, 'ps_hosts') is None


@pytest.mark.parametrize('name', jobs.CLUSTER_FLAGS)
@pytest.mark.parametrize('words', ['--{}=x', '-{}=x', '--{} x'])
def test_who_sets_a_cluster_flag_himself_is_refused(name, words):
  flags = ['--steps=1', *words.format(name).split()]
  with pytest.raises(
    cli.UsageError, match=f"--{name} is the launcher's to set"
  ):
    jobs.make_tasks(PS, WORKERS, flags)


def test_no_gpus_are_hidden_from_all_and_unknown_ones_left_alone():
  for task in jobs.make_tasks(PS, WORKERS, [], gpus=[]):
    assert task.env == (('CUDA_VISIBLE_DEVICES', ''),)
  for task in jobs.make_tasks(PS, WORKERS, [], gpus=None):
    assert task.env == ()


def test_the_data_task_has_the_flags_of_train_and_serves_nowhere():
  task = jobs.make_data_task(['--dataset=mnist'])
  assert task.name == 'data'
  assert task.address == '127.0.0.1'
  assert task.argv == (
    *('python', '-m', 'distmnist.train', '--dataset=mnist', '--download_only'),
  )


def test_the_check_task_is_the_worker_that_only_looks():
  worker = jobs.make_tasks(PS, WORKERS, ['--model=mlp'], gpus=['0'])[len(PS)]
  task = jobs.make_check_task(worker)
  assert (task.name, task.port, task.env) == ('check', None, worker.env)
  assert task.argv[: len(worker.argv)] == worker.argv
  assert task.argv[-1] == '--print_cluster'


def test_a_command_can_be_pasted():
  task = jobs.make_tasks(PS, WORKERS, ['--name=a b'], gpus=['0'])[0]
  variable, *words = shlex.split(task.command)
  assert variable == 'CUDA_VISIBLE_DEVICES='
  assert tuple(words) == task.argv


def test_an_evaluator_is_told_its_role_and_no_hosts():
  job = jobs.Job(train_flags=('--logdir=run',), evaluator=True)
  (task,) = jobs.make_evaluator_tasks(job, 'h', num_threads=1)
  assert (task.name, task.address) == ('evaluator 0', 'h')
  assert task.argv[3:] == (
    *('--job_name=evaluator', '--task_index=0'),
    *('--intra_op_parallelism_threads=1', '--inter_op_parallelism_threads=2'),
    '--logdir=run',
  )
  assert ('CUDA_VISIBLE_DEVICES', '') in task.env
  assert jobs.make_evaluator_tasks(jobs.Job()) == []


def test_options_are_split_as_in_a_shell():
  words = jobs.split_options('ssh_options', '-p 2200 -i "my key"')
  assert words == ['-p', '2200', '-i', 'my key']
  error = '--ssh_options=-i "key: No closing quotation'
  with pytest.raises(cli.UsageError, match=error):
    jobs.split_options('ssh_options', '-i "key')
