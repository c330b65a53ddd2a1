"""The server of a task: its config, its port, what is said of them."""

import socket
import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.cluster import server as server_lib
from distmnist.common import cli
from tests.support import in_process
from tests.support.paths import REPO


def test_the_server_config_by_flags(set_flags):
  set_flags(
    '--intra_op_parallelism_threads=1',
    '--inter_op_parallelism_threads=2',
    '--noallow_soft_placement',
  )
  config = server_lib.make_server_config(num_gpus=0)
  assert config.intra_op_parallelism_threads == 1
  assert config.inter_op_parallelism_threads == 2
  assert not config.allow_soft_placement
  assert config.device_count == {'GPU': 0}
  assert server_lib.make_server_config(num_gpus=1).device_count == {}


def test_on_a_gpu_graphs_are_optimised_as_tensorflow_does_by_default(set_flags):
  with_gpu = server_lib.make_server_config(num_gpus=1).graph_options
  assert with_gpu == tf.GraphOptions()
  rewriting = server_lib.make_server_config().graph_options.rewrite_options
  assert rewriting.optimizers == ['pruning', 'arithmetic', 'dependency']


def test_a_square_is_no_power(tf_session, set_flags):
  config = server_lib.make_server_config()
  square = tf.random.uniform([2]) ** 2
  run = tf.RunOptions(output_partition_graphs=True)
  found = tf.RunMetadata()
  with tf.Session(config=config) as session:
    session.run(square, options=run, run_metadata=found)
  ops = {node.op for graph in found.partition_graphs for node in graph.node}
  assert 'Square' in ops
  assert 'Pow' not in ops


def test_the_placement_is_printed_if_asked_for(tf_session, set_flags, logged):
  with tf.device('/job:ps/task:1'):
    tf.constant(1, name='one')
  set_flags()
  server_lib.log_placement(tf.get_default_graph())
  assert logged == []
  set_flags('--log_device_placement')
  server_lib.log_placement(tf.get_default_graph())
  assert logged == ['one (Const): /job:ps/task:1']


@pytest.fixture
def start_server(monkeypatch):
  """Returns start(port): a server that only takes its port."""
  taken = []

  def take_port(spec, job_name, task_index, config):
    port = int(spec.task_address(job_name, task_index).rpartition(':')[2])
    # As strict as can be: anything else on the port makes this fail.
    taken.append(socket.create_server(('127.0.0.1', port)))
    return taken[-1]

  def start(port):
    cluster = cluster_lib.make_cluster((), (f'127.0.0.1:{port}',), 'worker', 0)
    return server_lib.make_server(cluster, tf.ConfigProto())

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


_TWO_TASKS = """
import os
import sys

import distmnist.runtime
import tensorflow.compat.v1 as tf

spec = tf.train.ClusterSpec({'worker': sys.argv[1:]})
first, second = [tf.train.Server(spec, 'worker', i) for i in range(2)]
with tf.device('/job:worker/task:1'):
  product = tf.constant(3) * tf.constant(4)
config = tf.ConfigProto(operation_timeout_in_ms=60_000)
with tf.Session(first.target, config=config) as session:
  print(session.run(product), os.environ['https_proxy'])
"""


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('options', [None, 'grpc.minimal_stack=1'])
def test_tasks_meet_without_the_proxy_that_the_process_keeps(
  monkeypatch, options
):
  for name in ('no_proxy', 'NO_PROXY', 'TF_GRPC_DEFAULT_OPTIONS'):
    monkeypatch.delenv(name, raising=False)
  if options:
    monkeypatch.setenv('TF_GRPC_DEFAULT_OPTIONS', options)
  with (
    socket.create_server(('127.0.0.1', 0)) as proxy,
    in_process.hold_ports(2) as ports,
  ):
    address = f'http://127.0.0.1:{proxy.getsockname()[1]}'
    for name in ('http_proxy', 'https_proxy', 'grpc_proxy'):
      monkeypatch.setenv(name, address)
    hosts = [f'127.0.0.1:{port}' for port in ports]
    done = subprocess.run(
      [sys.executable, '-c', _TWO_TASKS, *hosts],
      cwd=REPO,
      capture_output=True,
      text=True,
      timeout=120,
    )
    proxy.setblocking(False)
    with pytest.raises(BlockingIOError):
      proxy.accept()  # Nobody has come.
  assert done.stdout == f'12 {address}\n', done.stderr


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
