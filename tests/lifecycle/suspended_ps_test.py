"""Tasks that begin beside a suspended ps, which accepts connections."""

import signal

import pytest

from distmnist.common import names
from tests.support.runner import SMALL, wait_for_line

FLAGS = (
  *SMALL,
  '--train_steps=10000000',
  '--log_secs=0',
  # It is silent for some seconds before it is named.
  '--start_timeout_secs=10',
  '--stall_warn_secs=1',
  '--stall_fail_secs=15',
)


@pytest.mark.daily
@pytest.mark.slow
@pytest.mark.parametrize('rule', ['async_sgd', 'sync_sgd'])
def test_who_begins_beside_a_suspended_ps_says_so_and_ends(
  tasks, make_real_cluster, rule
):
  flags = *FLAGS, f'--strategy={rule}'
  cluster = make_real_cluster(2, 2)
  ps, workers = cluster.start_all(*flags)
  for worker in workers:
    wait_for_line(worker, 'step ')
  tasks.suspend(ps[1])  # Not the one that keeps the heartbeats.
  for worker in workers:
    tasks.signal(worker, signal.SIGKILL)
  tasks.wait(*workers)
  again = {names.ATTEMPT: '2'}
  workers = [cluster.start('worker', i, *flags, **again) for i in range(2)]
  for worker in workers:
    wait_for_line(worker, 'waiting for an answer of ps ')
  assert tasks.wait(*workers) == [3, 3]
  for worker in workers:
    assert (
      'a ps accepts connections but does not answer within 10 s: ps 1 at '
      f'{cluster.hosts["ps"][1]}, silent for ' in worker.last_line
    ), worker.output
