"""Watchdogs of a cluster of 1 ps and 2 workers in this process."""

import pytest

from distmnist.lifecycle import stalls, watchdog
from tests.support import in_process

SETTINGS = {
  'batch_size': 100,
  'model': 'cnn',
  'ps_hosts': 'a:1',
  'worker_hosts': 'b:1,c:1',
}


@pytest.fixture
def make_watchdog(make_cluster):
  """Returns make(worker, warn_secs, fail_secs, **settings)."""
  made = []

  def make(worker=0, warn_secs=60, fail_secs=60, **settings):
    cluster, stop = make_cluster(1, 2), in_process.KeepingStop()
    made.append(
      watchdog.Watchdog(
        cluster.worker(worker),
        cluster.servers[worker],
        SETTINGS | settings,
        stalls.Stalls(warn_secs, fail_secs, stop).start(),
        stop,
      )
    )
    return made[-1]

  yield make
  for each in made:
    each.close()
    each._stalls.close()


@pytest.fixture
def ps_row(make_cluster):
  """Checks in ps 0 of the cluster of 1 ps and 2 workers."""
  cluster = make_cluster(1, 2)
  hosts = {k: SETTINGS[k] for k in ('ps_hosts', 'worker_hosts')}
  stop = in_process.KeepingStop()
  ps = watchdog.Watchdog(
    cluster.ps(0),
    cluster.ps_servers[0],
    hosts,
    stalls.Stalls(60, 60, stop),
    stop,
  )
  ps.check_in()
  yield
  ps.close()
