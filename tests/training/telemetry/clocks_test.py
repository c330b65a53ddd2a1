"""Clocks of other tasks, asked over the links."""

import types

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.training.telemetry import clocks


@pytest.mark.slow
def test_the_clocks_of_one_machine_agree(make_cluster):
  shared = make_cluster(2, 1)
  ahead = clocks.measure(shared.worker(0), shared.servers[0])
  assert ahead.keys() == {'worker 0', 'ps 0', 'ps 1'}
  assert ahead['ps 0'] == 0.0
  assert all(abs(secs) < 1 for secs in ahead.values())


@pytest.mark.slow
def test_without_a_ps_worker_0_has_the_clock(make_cluster):
  shared = make_cluster(0, 2)
  ahead = clocks.measure(shared.worker(1), shared.servers[1])
  assert ahead.keys() == {'worker 0', 'worker 1'}
  assert ahead['worker 0'] == 0.0


def test_one_process_asks_nobody():
  assert clocks.measure(cluster_lib.Cluster(), None) == {}


def test_of_several_looks_the_quickest_counts(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(
    clocks, 'time', types.SimpleNamespace(time=lambda: now[0])
  )
  waits = iter([(3, 1), (0.1, 0.1), (1, 5), (2, 2), (4, 4)])

  def read():
    there, back = next(waits)
    now[0] += there
    stamp = now[0] + 7
    now[0] += back
    return stamp

  assert clocks._ask(read) == pytest.approx(7)
