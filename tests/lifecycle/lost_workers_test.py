"""lost_workers: which are surely gone, by port and by heartbeat."""

import socket

import pytest

from distmnist.cluster import cluster
from distmnist.lifecycle import lost_workers


class FakeWatchdog:
  warn_secs = 10.0

  def __init__(self):
    self.secs = {}

  def secs_silent(self, name):
    return self.secs.get(name)


@pytest.fixture
def listening():
  with socket.create_server(('127.0.0.1', 0)) as server:
    yield server


@pytest.fixture
def found(listening, monkeypatch):
  """Returns (find(num_looks) -> list, FakeWatchdog)."""
  with socket.create_server(('127.0.0.1', 0)) as closed:
    port = closed.getsockname()[1]
  own = '127.0.0.1:1'
  answering = f'127.0.0.1:{listening.getsockname()[1]}'
  member = cluster.make_cluster(
    ('127.0.0.1:2',), (own, answering, f'127.0.0.1:{port}'), 'worker', 0
  )
  watchdog, clock = FakeWatchdog(), [0.0]
  monkeypatch.setattr(lost_workers.time, 'monotonic', lambda: clock[0])
  workers = lost_workers.LostWorkers(member, watchdog, warn_secs=10.0)

  def find(num_looks=10):
    result = []
    for _ in range(num_looks):
      result = workers.find()
      clock[0] += 1.0
    return result

  return find, watchdog


def test_who_beats_is_there(found):
  find, watchdog = found
  watchdog.secs |= {'worker 1': 0.5, 'worker 2': 1.0}
  assert find() == []


def test_who_refuses_connections_and_is_silent_is_gone(found):
  find, watchdog = found
  watchdog.secs |= {'worker 1': 8.0, 'worker 2': 8.0}
  assert find(1) == []
  assert find() == [2]


def test_who_accepts_them_is_gone_after_a_longer_silence(found):
  find, watchdog = found
  watchdog.secs |= {'worker 1': 21.0, 'worker 2': 1.0}
  assert find() == [1]


def test_of_whom_nothing_is_known_is_not_gone(found):
  find, watchdog = found
  assert find() == []
  watchdog.secs['worker 2'] = None
  assert find() == []
