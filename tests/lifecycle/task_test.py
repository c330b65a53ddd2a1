import json
import os

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.lifecycle import task as task_lib
from tests.support import in_process

WORKER = cluster_lib.make_cluster(('p:1',), ('v:1', 'w:1'), 'worker', 1)


def make_task(cluster):
  return task_lib.Task(cluster, in_process.NoStop())


@pytest.fixture
def tf_config(monkeypatch):
  """Returns tf_config(type, index): this task's TF_CONFIG."""

  def set_config(job_name, index):
    spec = {
      'cluster': {'ps': ['a:1'], 'chief': ['b:1'], 'worker': ['c:1', 'd:1']},
      'task': {'type': job_name, 'index': index},
    }
    monkeypatch.setenv('TF_CONFIG', json.dumps(spec))

  return set_config


def test_the_flags_make_a_task(set_flags, logged):
  hosts = '--ps_hosts=a:1', '--worker_hosts=b:1,c:1'
  set_flags(*hosts, '--job_name=worker', '--task_index=0')
  task = task_lib.from_flags()
  assert (task.cluster.name, task.cluster.num_ps) == ('worker 0', 1)
  assert not task.stop.is_requested
  assert task.server is None
  task.log_role()
  assert logged == []


@pytest.mark.parametrize(
  'job_name, words, visible',
  [('worker', (), '3'), ('worker', ('--num_gpus=0',), ''), ('ps', (), '')],
)
def test_who_computes_on_no_gpu_sees_none(
  set_flags, monkeypatch, job_name, words, visible
):
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: ['one'])
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '3')
  hosts = '--ps_hosts=a:1', '--worker_hosts=b:1'
  set_flags(*hosts, f'--job_name={job_name}', '--task_index=0', *words)
  task_lib.from_flags()
  assert os.environ['CUDA_VISIBLE_DEVICES'] == visible


@pytest.mark.slow
def test_who_told_the_roles_is_said_in_its_names(set_flags, tf_config, logged):
  set_flags()
  tf_config('worker', 1)
  task_lib.from_flags().log_role()
  [line] = logged
  assert line == 'this task is worker 2, by TF_CONFIG, which calls it worker 1'


def test_flags_that_make_no_cluster_are_refused(set_flags):
  hosts = '--ps_hosts=a:1', '--worker_hosts=a:1'
  set_flags(*hosts, '--job_name=worker', '--task_index=0')
  with pytest.raises(cli.UsageError, match='a:1'):
    task_lib.from_flags()


def test_one_process_serves_nobody(set_flags):
  set_flags()
  task = make_task(cluster_lib.Cluster())
  task.serve()
  assert task.server is None
  assert task.watchdog.life
  task.watchdog.close()


def test_the_configs_are_made_once(set_flags):
  set_flags()
  task = make_task(WORKER)
  assert task.server_config is task.server_config
  assert task.session_config is task.session_config
  assert list(task.session_config.device_filters) == list(
    WORKER.session_config(task.server_config).device_filters
  )
