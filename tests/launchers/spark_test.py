"""The launcher; tests with a real Spark are in tests/spark/training_test.py."""

import functools
import socket

import pytest

from distmnist.common import cli
from distmnist.launchers import spark

CLUSTER = '--master=local-cluster[3,1,1024]'


@pytest.fixture
def launch(launch_here):
  return functools.partial(launch_here, '--launcher=spark')


@pytest.mark.parametrize(
  ('words', 'said'),
  [
    (
      [CLUSTER, '--num_ps=2', '--'],
      'local-cluster[3,1,1024] has 3 slots, but the cluster has 4 tasks, and'
      ' each takes one',
    ),
    (['--master=local[2]', '--'], 'local[2] has 2 slots, but the cluster'),
    ([CLUSTER, '--spark_conf=cores=2', '--'], 'such as spark.task.cpus=2'),
  ],
)
def test_a_wrong_command_line_is_one_line_before_anything_starts(
  launch, words, said
):
  code, out, err = launch(*words)
  assert (code, out) == (2, '')
  assert said in err
  assert len(err.splitlines()) == 1


def test_a_dry_run_prints_the_tasks(launch, tmp_path):
  (tmp_path / 'own.flags').write_text('--batch_size=7\n')
  code, out, err = launch(
    CLUSTER,
    '--dry_run',
    '--',
    f'--flagfile={tmp_path}/own.flags',
    '--logdir=/shared/run',
  )
  assert code == 0, err
  lines = out.splitlines()
  assert len(lines) == 3
  assert lines[2] == (
    'python -m distmnist.train --job_name=worker --task_index=1'
    ' --ps_hosts=executor-0:2222 --worker_hosts=executor-1:2222,executor-2:2222'
    ' --batch_size=7 --logdir=/shared/run'
  )


def test_a_wrong_setting_does_not_print_the_secret_ones(launch):
  code, _, err = launch(
    CLUSTER, '--spark_conf=spark.my.password=hunter2', '--spark_conf=x', '--'
  )
  assert code == 2
  assert 'error: --spark_conf=x: expected name=value' in err
  assert 'hunter2' not in err


def test_no_java_is_said_in_one_line(launch, monkeypatch):
  pytest.importorskip('pyspark')
  monkeypatch.setenv('PATH', '/nowhere')
  for home, named in (('', 'PATH'), ('/nowhere', 'JAVA_HOME=/nowhere')):
    monkeypatch.setenv('JAVA_HOME', home)
    code, _, err = launch(CLUSTER, '--')
    (line,) = err.splitlines()
    assert code == 1 and named in line


def test_no_pyspark_is_said_in_one_line(monkeypatch):
  monkeypatch.setattr(spark.importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(cli.RunError, match=r'pip install distmnist\[spark\]'):
    spark.check_installed({})


def test_a_master_that_does_not_answer_is_named():
  with socket.socket() as closed, socket.create_server(('', 0)) as listens:
    closed.bind(('127.0.0.1', 0))
    dead = f'127.0.0.1:{closed.getsockname()[1]}'
    spark.check_answers(f'spark://{dead},localhost:{listens.getsockname()[1]}')
    spark.check_answers('yarn')
    for address in (dead, 'no_port', f'{dead}0000'):
      with pytest.raises(cli.RunError, match=f'answers at {address}: start'):
        spark.check_answers(f'spark://{address}')


def test_what_the_user_sets_wins():
  conf = spark.make_conf('yarn', 5, ['spark.task.cpus=2', 'spark.a.b=x=y'])
  assert conf['spark.executor.instances'] == '5'
  assert (conf['spark.task.cpus'], conf['spark.a.b']) == ('2', 'x=y')
  assert 'spark.driver.host' not in conf
  conf = spark.make_conf(
    'local-cluster[3, 2, 512]', 5, ['spark.executor.instances=3']
  )
  assert conf['spark.executor.instances'] == '3'
  assert conf['spark.executor.memory'] == '512m'
  assert conf['spark.driver.host'] == '127.0.0.1'
