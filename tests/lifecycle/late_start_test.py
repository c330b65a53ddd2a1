"""A worker is started again as the last ps leaves: the run has ended."""

import contextlib
import socket
import types

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.common.names import ATTEMPT
from distmnist.lifecycle import late_start
from tests.support import in_process
from tests.support.runner import DEADLINE_SECS, SMALL

FLAGS = *SMALL, '--train_steps=5'


def start(tasks, logdir, log, address, env):
  """Returns worker 1 of a run whose ps is at `address` (str), started."""
  [port] = in_process.pick_ports(1)
  return tasks.start(
    log,
    *(*FLAGS, f'--logdir={logdir}', '--start_timeout_secs=2'),
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


@pytest.mark.parametrize(
  ('num_ps', 'index', 'needed'),
  [
    (2, 1, ['ps 0', 'ps 1']),
    # Without a ps the chief is the last to leave.
    (0, 1, ['worker 0']),
    (0, 0, ['worker 1', 'worker 2']),
  ],
)
def test_who_has_to_have_left(monkeypatch, num_ps, index, needed):
  monkeypatch.setattr(late_start, '_PATIENCE_SECS', 0.0)
  looked_at, answers = [], [True, False]

  def find_silent(addresses):
    looked_at.append(sorted(addresses))
    return addresses if answers.pop(0) else dict(list(addresses.items())[1:])

  monkeypatch.setattr(late_start.probing, 'find_silent', find_silent)
  ps = tuple(f'p:{i}' for i in range(num_ps))
  workers = 'v:1', 'w:1', 'x:1'
  cluster = cluster_lib.make_cluster(ps, workers, 'worker', index)
  restart = types.SimpleNamespace(
    looks_finished=lambda: True, is_finished=lambda: True
  )
  assert late_start.has_ended(cluster, restart, pytest.fail)
  assert not late_start.has_ended(cluster, restart, pytest.fail)
  assert looked_at == [needed] * 2


@pytest.mark.daily
@pytest.mark.slow
def test_it_ends_well_if_the_run_is_at_its_last_step(tasks, tmp_path):
  ended = tasks.run(tmp_path / 'log', *FLAGS, f'--logdir={tmp_path}/ended')
  assert ended.code == 0
  again = {ATTEMPT: '2'}
  cases = ('ended', again, 0), ('ended', {}, 0), ('begun', again, 3)
  workers = []
  with contextlib.ExitStack() as stack:
    servers = []
    for i, (name, env, _) in enumerate(cases):
      # It accepts connections and answers nothing, like a ps that is ending.
      ps = stack.enter_context(socket.create_server(('127.0.0.1', 0)))
      servers.append(ps)
      address = '{}:{}'.format(*ps.getsockname())
      log = tmp_path / f'worker_{i}.log'
      workers.append(start(tasks, tmp_path / name, log, address, env))
    for ps in servers:
      wait_for_call(ps)
  codes = [code for *_, code in cases]
  assert tasks.wait(*workers) == codes
  for worker, code in zip(workers, codes, strict=True):
    assert ('has ended at step 5: nothing is left' in worker.output) == (
      code == 0
    )
    assert ('error: ' in worker.output) == (code != 0)
