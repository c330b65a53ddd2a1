"""cluster: who is who, who am I, the server's port, the wait for others."""

import json
import os
import re
import socket

import pytest
import tensorflow.compat.v1 as tf
from absl.testing import flagsaver

from distmnist import cli, consistency
from distmnist import cluster as cluster_lib
from tests import in_process

PS, WORKERS = ('p0:1', 'p1:1'), ('w0:1', 'w1:1', 'w2:1')


@pytest.mark.parametrize(
  'text, expected',
  [
    (None, ()),
    ('  ', ()),
    ('a:2222', ('a:2222',)),
    ('a:1, 10.0.0.2:65535', ('a:1', '10.0.0.2:65535')),
    ('[::1]:2222', ('[::1]:2222',)),
  ],
)
def test_hosts_are_a_tuple(text, expected):
  assert cluster_lib.parse_hosts(text, 'ps_hosts') == expected


@pytest.mark.parametrize(
  'text, entry',
  [
    ('a:1,', ''),
    (',a:1', ''),
    ('a', 'a'),
    (':2222', ':2222'),
    ('a b:2222', 'a b:2222'),
    ('http://a:2222', 'http://a:2222'),
    ('ada@a:2222', 'ada@a:2222'),
  ],
)
def test_what_is_no_host_and_port_is_shown(text, entry):
  with pytest.raises(cli.UsageError) as caught:
    cluster_lib.parse_hosts(text, 'ps_hosts')
  assert str(caught.value) == (
    f"--ps_hosts: '{entry}' is not host:port (the whole list: {text})"
  )


@pytest.mark.parametrize('port', ['0', '65536', '-1', 'x', '', '2 2', '²'])
def test_a_port_out_of_range_is_shown(port):
  with pytest.raises(
    cli.UsageError,
    match=f"^--worker_hosts: the port of 'b:{port}' is not a number from 1 to "
    '65535$',
  ):
    cluster_lib.parse_hosts(f'a:1,b:{port}', 'worker_hosts')


@pytest.mark.parametrize(
  'ps_hosts, worker_hosts, job_name, task_index, message',
  [
    ((), (), 'ps', 0, '--job_name=ps needs --ps_hosts and --worker_hosts'),
    (
      (),
      (),
      'worker',
      2,
      '--task_index=2 needs --worker_hosts: without hosts there is one worker, '
      '0',
    ),
    (
      PS,
      (),
      'ps',
      0,
      '--worker_hosts is empty: name at least one worker',
    ),
    (PS, WORKERS, None, 0, '--job_name is missing: say ps or worker'),
    (
      PS,
      WORKERS,
      'worker',
      None,
      '--task_index is missing: say which of the 3 worker hosts this task is, '
      'from 0',
    ),
    (
      PS,
      WORKERS,
      'worker',
      3,
      '--task_index=3 is out of range: --worker_hosts names 3, so expected '
      '0..2',
    ),
    (
      PS,
      WORKERS,
      'ps',
      2,
      '--task_index=2 is out of range: --ps_hosts names 2, so expected 0..1',
    ),
    (
      PS,
      (*WORKERS, 'p1:1'),
      'worker',
      0,
      'p1:1 is given to two tasks: each needs its own',
    ),
  ],
)
def test_an_identity_that_does_not_fit_is_one_clear_line(
  ps_hosts, worker_hosts, job_name, task_index, message
):
  with pytest.raises(cli.UsageError, match=f'^{re.escape(message)}$'):
    cluster_lib.make_cluster(ps_hosts, worker_hosts, job_name, task_index)


def test_a_worker_knows_its_place():
  cluster = cluster_lib.make_cluster(PS, WORKERS, 'worker', 1)
  assert (cluster.num_ps, cluster.num_workers) == (2, 3)
  assert cluster.is_distributed
  assert not cluster.is_chief
  assert (cluster.name, cluster.address) == ('worker 1', 'w1:1')
  assert cluster.addresses('ps') == {'ps 0': 'p0:1', 'ps 1': 'p1:1'}
  assert cluster.task_device == '/job:worker/task:1'
  assert cluster.cpu_device == '/job:worker/task:1/device:CPU:0'
  assert cluster.compute_device == '/job:worker/task:1/device:CPU:0'
  assert cluster.spec().as_dict() == {'ps': [*PS], 'worker': [*WORKERS]}


def test_worker_0_and_no_ps_is_the_chief():
  assert cluster_lib.make_cluster(PS, WORKERS, 'worker', 0).is_chief
  assert not cluster_lib.make_cluster(PS, WORKERS, 'ps', 0).is_chief


def test_no_hosts_are_one_process_that_is_its_own_chief():
  cluster = cluster_lib.make_cluster((), (), None, None)
  assert cluster == cluster_lib.make_cluster((), (), 'worker', 0)
  assert (cluster.num_ps, cluster.num_workers) == (0, 1)
  assert cluster.is_chief
  assert not cluster.is_distributed
  assert (cluster.name, cluster.address) == ('worker 0', 'this process')
  assert (cluster.task_device, cluster.cpu_device) == ('', '/device:CPU:0')
  assert cluster_lib.make_server(cluster, tf.ConfigProto()) is None


def test_workers_without_a_ps_are_a_cluster():
  cluster = cluster_lib.make_cluster((), ('w0:1',), 'worker', 0)
  assert cluster.is_distributed
  assert cluster.spec().as_dict() == {'worker': ['w0:1']}
  assert cluster.device_setter() == '/job:worker/task:0/device:CPU:0'


def test_a_gpu_computes_and_the_cpu_keeps_the_books():
  cluster = cluster_lib.make_cluster(PS, WORKERS, 'worker', 2, num_gpus=1)
  assert cluster.compute_device == '/job:worker/task:2/device:GPU:0'
  assert cluster.cpu_device == '/job:worker/task:2/device:CPU:0'


def test_variables_go_to_the_ps_in_turn_and_the_rest_stays(tf_session):
  cluster = cluster_lib.make_cluster(PS, WORKERS, 'worker', 1, num_gpus=1)
  with tf.device(cluster.device_setter()):
    variables = [tf.get_variable(f'v{i}', [2]) for i in range(3)]
    product = variables[0] * 2
  devices = [v.device for v in variables]
  assert devices == [f'/job:ps/task:{i}/device:CPU:0' for i in (0, 1, 0)]
  assert product.device == '/job:worker/task:1/device:GPU:0'


def test_one_process_keeps_its_variables(tf_session):
  with tf.device(cluster_lib.Cluster().device_setter()):
    assert tf.get_variable('v', [2]).device == '/device:CPU:0'


def test_a_session_sees_the_ps_and_itself_alone():
  cluster = cluster_lib.make_cluster(PS, WORKERS, 'worker', 1)
  given = tf.ConfigProto(intra_op_parallelism_threads=3)
  config = cluster.session_config(given)
  assert list(config.device_filters) == ['/job:ps', '/job:worker/task:1']
  assert config.intra_op_parallelism_threads == 3
  assert not given.device_filters
  assert not cluster_lib.Cluster().session_config(given).device_filters


@pytest.mark.parametrize(
  'ps_hosts, worker_hosts, leader',
  [(PS, WORKERS, ''), ((), WORKERS, '/job:worker/replica:0/task:0')],
)
def test_collectives_are_led_by_worker_0_where_there_is_no_ps(
  ps_hosts, worker_hosts, leader
):
  cluster = cluster_lib.make_cluster(ps_hosts, worker_hosts, 'worker', 1)
  given = tf.ConfigProto(intra_op_parallelism_threads=3)
  for config in cluster.with_collectives(given), cluster.session_config(given):
    assert config.experimental.collective_group_leader == leader
    assert config.intra_op_parallelism_threads == 3
  assert not given.experimental.collective_group_leader


def test_one_process_has_no_collectives():
  config = cluster_lib.Cluster().with_collectives(tf.ConfigProto())
  assert config == tf.ConfigProto()


CLUSTER_FLAGS = '--ps_hosts=p0:1', '--worker_hosts=w0:1,w1:1'


def test_the_flags_make_the_cluster(set_flags, monkeypatch):
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: ['a'])
  set_flags(
    *CLUSTER_FLAGS,
    '--job_name=worker',
    '--task_index=1',
    '--start_timeout_secs=2.5',
    '--num_gpus=1',
  )
  assert cluster_lib.from_flags() == cluster_lib.Cluster(
    ('p0:1',), ('w0:1', 'w1:1'), 'worker', 1, 2.5, 1
  )


def test_no_flags_are_one_process(set_flags):
  set_flags('--num_gpus=0')
  assert cluster_lib.from_flags() == cluster_lib.Cluster()


CONFIG = json.dumps(
  {
    'cluster': {'ps': ['p0:1'], 'chief': ['w0:1'], 'worker': ['w1:1']},
    'task': {'type': 'worker', 'index': 0},
  }
)
STEP = {
  'DISTMNIST_NUM_PS': '1',
  'SLURM_PROCID': '2',
  'SLURM_STEP_ID': '0',
  'SLURM_NTASKS': '3',
  'SLURM_JOB_NODELIST': 'a,b',
  'SLURM_TASKS_PER_NODE': '2,1',
}


def test_who_told_it_makes_no_difference(set_flags):
  with flagsaver.flagsaver():
    set_flags(
      *CLUSTER_FLAGS, '--job_name=worker', '--task_index=1', '--num_gpus=0'
    )
    by_flags = cluster_lib.from_flags({'TF_CONFIG': ''})
    # What the tasks of a cluster compare.
    settings = consistency.settings_from_flags(by_flags)
  set_flags('--num_gpus=0')
  by_config = cluster_lib.from_flags({'TF_CONFIG': CONFIG})
  assert (by_flags.told_by, by_config.told_by) == ('flags', 'TF_CONFIG')
  assert by_flags == by_config
  assert settings == consistency.settings_from_flags(by_config)
  assert settings['worker_hosts'] == 'w0:1,w1:1'


@pytest.mark.parametrize(
  'words, environ, told_by, line',
  [
    ([], {}, '', None),
    ([], {'TF_CONFIG': CONFIG}, 'TF_CONFIG', None),
    ([], STEP, 'Slurm', None),
    (
      [],
      STEP | {'TF_CONFIG': CONFIG},
      'TF_CONFIG',
      'who is who is told by TF_CONFIG: DISTMNIST_NUM_PS not used',
    ),
    (
      [*CLUSTER_FLAGS, '--job_name=ps', '--task_index=0'],
      STEP | {'TF_CONFIG': 'no matter what'},
      'flags',
      'who is who is told by flags: TF_CONFIG, DISTMNIST_NUM_PS not used',
    ),
    (
      ['--worker_hosts='],
      {'TF_CONFIG': CONFIG},
      'flags',
      'who is who is told by flags: TF_CONFIG not used',
    ),
  ],
)
def test_flags_come_before_tf_config_and_that_before_slurm(
  set_flags, words, environ, told_by, line
):
  lines = []
  set_flags('--num_gpus=0', *words)
  assert cluster_lib.from_flags(environ, lines.append).told_by == told_by
  assert lines == ([line] if line else [])


def test_a_ps_of_tf_config_takes_no_gpu(set_flags):
  set_flags('--num_gpus=4')
  config = CONFIG.replace('"type": "worker"', '"type": "ps"')
  found = cluster_lib.from_flags({'TF_CONFIG': config})
  assert (found.name, found.num_gpus) == ('ps 0', 0)


@pytest.mark.parametrize(
  'environ, lines',
  [
    (
      {},
      [
        'told by    nobody: one process',
        'worker 0   trains alone, the chief',
        'this task  worker 0',
      ],
    ),
    (
      {'TF_CONFIG': CONFIG},
      [
        'told by    TF_CONFIG',
        'ps 0       p0:1',
        'worker 0   w0:1, the chief, chief 0 of TF_CONFIG',
        'worker 1   w1:1, worker 0 of TF_CONFIG',
        'this task  worker 1',
      ],
    ),
    (
      {'TF_CONFIG': CONFIG.replace('"type": "worker"', '"type": "evaluator"')},
      [
        'told by      TF_CONFIG',
        'ps 0         p0:1',
        'worker 0     w0:1, the chief, chief 0 of TF_CONFIG',
        'worker 1     w1:1, worker 0 of TF_CONFIG',
        'evaluator 0  this process, outside of the cluster',
        'this task    evaluator 0',
      ],
    ),
    (
      STEP,
      [
        'told by    Slurm',
        'ps 0       a:2222',
        'worker 0   a:2223, the chief',
        'worker 1   b:2222',
        'this task  worker 1',
      ],
    ),
  ],
)
def test_a_cluster_describes_itself(set_flags, environ, lines):
  set_flags('--num_gpus=0')
  assert cluster_lib.from_flags(environ).describe().splitlines() == lines


def test_an_evaluator_is_no_part_of_the_cluster(set_flags):
  set_flags('--num_gpus=0')
  config = CONFIG.replace('"type": "worker"', '"type": "evaluator"')
  found = cluster_lib.from_flags({'TF_CONFIG': config})
  assert found.name == 'evaluator 0'
  assert not found.is_chief
  assert found.spec().as_dict() == {'ps': ['p0:1'], 'worker': ['w0:1', 'w1:1']}


@pytest.mark.parametrize(
  'job_name, found, expected',
  [('worker', [], 0), ('worker', ['a', 'b'], 1), ('ps', ['a'], 0)],
)
def test_a_worker_takes_a_gpu_where_there_is_one(
  set_flags, monkeypatch, job_name, found, expected
):
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: found)
  set_flags(*CLUSTER_FLAGS, f'--job_name={job_name}', '--task_index=0')
  assert cluster_lib.from_flags().num_gpus == expected


def test_more_gpus_than_there_are_are_refused(set_flags, monkeypatch):
  monkeypatch.setattr(tf.config, 'list_physical_devices', lambda kind: ['a'])
  set_flags('--num_gpus=2')
  with pytest.raises(cli.UsageError, match='^--num_gpus=2, but .* sees 1 here'):
    cluster_lib.from_flags()


def test_a_ps_takes_no_gpu_that_it_is_offered(set_flags):
  set_flags(*CLUSTER_FLAGS, '--job_name=ps', '--task_index=0', '--num_gpus=4')
  assert cluster_lib.from_flags().num_gpus == 0


def test_a_tower_a_gpu(set_flags):
  member = cluster_lib.make_cluster(PS, WORKERS, 'worker', 2, num_gpus=3)
  assert member.tower_devices == [
    f'/job:worker/task:2/device:GPU:{i}' for i in range(3)
  ]
  assert cluster_lib.Cluster().tower_devices == ['/device:CPU:0']


def test_the_server_config_by_flags(set_flags):
  set_flags(
    '--intra_op_parallelism_threads=1',
    '--inter_op_parallelism_threads=2',
    '--noallow_soft_placement',
  )
  config = cluster_lib.make_server_config(num_gpus=0)
  assert config.intra_op_parallelism_threads == 1
  assert config.inter_op_parallelism_threads == 2
  assert not config.allow_soft_placement
  assert config.gpu_options.allow_growth
  assert config.device_count == {'GPU': 0}
  assert cluster_lib.make_server_config(num_gpus=1).device_count == {}


def test_on_a_gpu_graphs_are_optimised_as_tensorflow_does_by_default(set_flags):
  with_gpu = cluster_lib.make_server_config(num_gpus=1).graph_options
  assert with_gpu == tf.GraphOptions()
  without = cluster_lib.make_server_config().graph_options
  assert without.rewrite_options.optimizers == ['pruning', 'dependency']


def test_the_placement_is_printed_if_asked_for(tf_session, set_flags):
  lines = []
  with tf.device('/job:ps/task:1'):
    tf.constant(1, name='one')
  set_flags()
  cluster_lib.log_placement(tf.get_default_graph(), lines.append)
  assert lines == []
  set_flags('--log_device_placement')
  cluster_lib.log_placement(tf.get_default_graph(), lines.append)
  assert lines == ['one (Const): /job:ps/task:1']


# What a server does before TensorFlow's own is started.


@pytest.fixture
def start_server(monkeypatch):
  """Returns start(port): a server that only takes its port."""
  taken = []

  def take_port(spec, job_name, task_index, config):
    port = int(spec.task_address(job_name, task_index).rpartition(':')[2])
    # As strict as can be: whoever else has the port makes this fail.
    taken.append(socket.create_server(('127.0.0.1', port)))
    return taken[-1]

  def start(port):
    cluster = cluster_lib.make_cluster((), (f'127.0.0.1:{port}',), 'worker', 0)
    return cluster_lib.make_server(cluster, tf.ConfigProto())

  monkeypatch.setattr(tf.train, 'Server', take_port)
  yield start
  for server in taken:
    server.close()


def test_a_port_that_is_taken_is_named(start_server):
  with socket.create_server(('127.0.0.1', 0)) as other:
    port = other.getsockname()[1]
    with pytest.raises(
      cli.RunError,
      match=f'^worker 0 cannot listen on port {port}: Address already in use; '
      'stop the process that has it or give worker 0 another port$',
    ):
      start_server(port)


@pytest.mark.parametrize(('name', 'code'), [('ATTEMPT', 3), ('FIRST_PORT', 98)])
def test_a_port_that_may_be_free_later_is_no_final_error(
  start_server, monkeypatch, name, code
):
  monkeypatch.setenv(f'DISTMNIST_{name}', '2')
  with (
    socket.create_server(('127.0.0.1', 0)) as other,
    pytest.raises(cli.RunError, match='cannot listen on port') as error,
  ):
    start_server(other.getsockname()[1])
  assert error.value.exit_code == code


@pytest.mark.parametrize(
  ('one', 'other'),
  [
    ('a:2222', 'A:02222'),
    ('localhost:7401', '127.0.0.1:7401'),
    ('localhost:1', '[::1]:1'),
    ('[::1]:1', '[0:0::1]:1'),
    ('a.b:1', 'a.b.:1'),
  ],
)
def test_an_address_is_given_once_however_it_is_spelt(one, other):
  with pytest.raises(
    cli.UsageError,
    match=f'^{re.escape(other)}, also as {re.escape(one)}, is given to two',
  ):
    cluster_lib.make_cluster((one,), (other,), 'ps', 0)


def test_of_many_tasks_some_are_named():
  few = {f'worker {i}': f'a:{i}' for i in range(8)}
  assert cluster_lib.list_tasks(few).count(' at ') == 8
  many = cluster_lib.list_tasks({f'worker {i}': f'a:{i}' for i in range(310)})
  assert many.startswith('worker 0 at a:0, worker 1 at a:1, ')
  assert many.endswith('worker 6 at a:6, 303 more')


def test_addresses_that_differ_may_have_one_port_or_host():
  hosts = 'a:1', 'a:2', 'b:1', '127.0.0.2:1', '[::2]:1'
  assert cluster_lib.make_cluster(hosts, ('c:1',), 'ps', 0).num_ps == 5


def test_proxies_are_dropped_and_said(start_server, monkeypatch, capsys):
  for protocol in ('http', 'https', 'all', 'grpc'):
    for name in (f'{protocol}_proxy', f'{protocol}_proxy'.upper()):
      monkeypatch.delenv(name, raising=False)
  monkeypatch.setenv('https_proxy', 'http://proxy:3128')
  monkeypatch.setenv('ALL_PROXY', 'http://proxy:3128')
  monkeypatch.setenv('no_proxy', 'localhost')
  with in_process.hold_ports(1) as ports:
    start_server(*ports)
  assert not {'https_proxy', 'ALL_PROXY'} & set(os.environ)
  assert os.environ['no_proxy'] == 'localhost'
  assert capsys.readouterr().out == (
    'https_proxy, ALL_PROXY: not used, as gRPC fails behind a proxy\n'
  )
  with in_process.hold_ports(1) as ports:
    start_server(*ports)
  assert capsys.readouterr().out == ''


def test_a_server_that_tensorflow_refuses_is_one_line(
  start_server, monkeypatch
):
  def refuse(*_, **__):
    raise tf.errors.UnknownError(None, None, 'could not start')

  monkeypatch.setattr(tf.train, 'Server', refuse)
  with (
    in_process.hold_ports(1) as [port],
    pytest.raises(
      cli.RunError,
      match=f'^worker 0 cannot serve on 127.0.0.1:{port}: could not start$',
    ),
  ):
    start_server(port)
