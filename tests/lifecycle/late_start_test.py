"""A worker is started again as the last ps leaves: the run has ended."""

import socket

import pytest

from distmnist.common.names import ATTEMPT
from tests.support import in_process, programs
from tests.support.runner import DEADLINE_SECS, SMALL

FLAGS = *SMALL, '--train_steps=5'


def start(tasks, tmp_path, address, **env):
  """Returns worker 1 of a run whose ps is at `address` (str), started."""
  [port] = in_process.pick_ports(1)
  return tasks.start(
    tmp_path / 'worker.log',
    *(*FLAGS, f'--logdir={tmp_path}/run', '--start_timeout_secs=2'),
    *('--job_name=worker', '--task_index=1', f'--ps_hosts={address}'),
    f'--worker_hosts=127.0.0.1:1,127.0.0.1:{port}',
    **env,
  )


def wait_for_call(server):
  """Returns once gRPC calls; a mere look at what is there says nothing."""
  server.settimeout(DEADLINE_SECS)
  said = b''
  while not said.startswith(b'PRI'):
    connection, _ = server.accept()
    with connection:
      connection.settimeout(DEADLINE_SECS)
      said = connection.recv(100)


@pytest.mark.slow
@pytest.mark.parametrize(
  'is_finished, env, code',
  [(True, {ATTEMPT: '2'}, 0), (True, {}, 1), (False, {ATTEMPT: '2'}, 1)],
)
def test_it_ends_well_if_the_run_is_at_its_last_step(
  tasks, tmp_path, is_finished, env, code
):
  if is_finished:
    programs.run_forked('train', *FLAGS, f'--logdir={tmp_path}/run')
  # It accepts connections and answers nothing, like a ps that is ending.
  with socket.create_server(('127.0.0.1', 0)) as ps:
    host, port = ps.getsockname()
    worker = start(tasks, tmp_path, f'{host}:{port}', **env)
    wait_for_call(ps)
  assert tasks.wait(worker) == [code]
  assert ('the run has ended' in worker.output) == (code == 0)
  assert ('error: ' in worker.output) == (code != 0)
