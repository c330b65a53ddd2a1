"""process_bytes: one count of the sockets of this process for all."""

import gc
import queue
import threading

import pytest

from distmnist.watching import process_bytes, socket_bytes


@pytest.fixture
def sockets(monkeypatch):
  """The sockets of this process, {inode: (sent, received)}, and the looks."""
  gc.collect()  # No counter of another test is held.
  found, looks = {}, queue.Queue()

  def read_sockets(pid):
    looks.put(pid)
    return list(found.items())

  monkeypatch.setattr(process_bytes, '_LOOK_SECS', 0.001)
  monkeypatch.setattr(process_bytes, '_shared', {})
  monkeypatch.setattr(socket_bytes, '_read_sockets', read_sockets)
  return found, looks


def wait_for_look(looks):
  """Waits until a look has begun and ended after this call."""
  while not looks.empty():
    looks.get()
  for _ in range(2):
    looks.get(timeout=20)


@pytest.mark.slow
def test_a_connection_that_nobody_asked_for_meanwhile_counts(sockets):
  found, looks = sockets
  found['old'] = (5, 7)
  meter = process_bytes.Meter()
  found['short'] = (100, 200)
  wait_for_look(looks)
  del found['short']
  assert meter.read() == (100, 200)


@pytest.mark.slow
def test_each_counts_from_its_own_start(sockets):
  found, _ = sockets
  first = process_bytes.Meter()
  assert first.read() is None
  found['a'] = (10, 20)
  second = process_bytes.Meter()
  found['a'] = (11, 22)
  assert first.read() == (11, 22)
  assert second.read() == (1, 2)


@pytest.mark.slow
def test_no_thread_is_left_when_nobody_counts(sockets, monkeypatch):
  _, looks = sockets
  before = set(threading.enumerate())
  meter = process_bytes.Meter()
  (thread,) = set(threading.enumerate()) - before
  wait_for_look(looks)
  process_bytes._shared.clear()  # The real one refers to it weakly.
  del meter
  gc.collect()
  thread.join(timeout=20)
  assert not thread.is_alive()
