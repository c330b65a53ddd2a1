"""The end: what workers say to the ps."""

import time

import pytest

from distmnist.cluster import probing
from distmnist.lifecycle import shutdown
from distmnist.logdir import report as report_lib


@pytest.mark.slow
def test_what_a_worker_has_sent_is_heard_after_it_is_gone(
  logged, make_cluster, monkeypatch
):
  cluster = make_cluster(1, 2)
  chief, worker = (
    shutdown.Others(cluster.worker(i), cluster.servers[i]) for i in (0, 1)
  )

  def find_gone(self, addresses):
    # It has sent and left since the chief looked for messages.
    worker.send_stats(report_lib.WorkerStats(1, local_steps=5))
    return dict(addresses)

  monkeypatch.setattr(probing.Absences, 'find_gone', find_gone)
  [stats] = chief.wait_at_end(60, time.sleep)
  assert (stats.worker, stats.local_steps) == (1, 5)
  assert logged == []
  for each in (chief, worker):
    for box in (each._stop_queue, each._end_queue, each._save_queue):
      if box:
        box.close()
