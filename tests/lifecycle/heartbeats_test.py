"""heartbeats: which task beats, how often, and which was replaced."""

import threading
import types

import pytest

from distmnist.cluster import cluster as cluster_lib
from distmnist.cluster import heartbeat_table
from distmnist.common import cli
from distmnist.lifecycle import heartbeats


@pytest.mark.slow
def test_a_task_that_beats_no_more_is_silent(
  make_watchdog, ps_row, monkeypatch
):
  monkeypatch.setattr(heartbeats, '_BEAT_SECS', (0.1, 0.1))
  chief, worker = make_watchdog(0), make_watchdog(1)
  chief.check_in()
  worker.check_in()
  assert chief.secs_silent('worker 7') is None
  chief._stalls.step_begins()  # A task that waits for none does not look.

  def beats():
    secs = chief.secs_silent('worker 1')
    return secs is not None and secs < 1

  wait_until(beats)
  worker.close()
  wait_until(lambda: (chief.secs_silent('worker 1') or 0) > 1)


def test_the_larger_the_cluster_the_more_seldom_a_task_beats_and_looks():
  def get_secs(num_workers):
    workers = tuple(f'host{i}:2222' for i in range(num_workers))
    cluster = cluster_lib.make_cluster(('ps:2222',), workers, 'worker', 0)
    beats = heartbeats.Heartbeats(cluster, None, {}, None, None)
    return beats._beat_secs, beats._read_secs

  assert get_secs(2) == (1, 1)
  assert get_secs(11) == (1, 1)
  assert get_secs(34) == (1.4, pytest.approx(35 / 12))
  assert get_secs(499) == (2, pytest.approx(500 / 12))


class Table:
  """Stands for heartbeat_table.HeartbeatTable."""

  def __init__(self, cluster, server):
    del cluster, server
    self.beats = {}

  def read_beats(self):
    return dict(self.beats)

  def read_busy(self):
    return {'worker 1': 'a save'}


def test_a_silence_is_counted_from_the_last_beat_that_was_another(monkeypatch):
  clock = types.SimpleNamespace(now=50.0)
  clock.monotonic = lambda: clock.now
  table = Table(None, None)
  monkeypatch.setattr(heartbeats, 'time', clock)
  monkeypatch.setattr(
    heartbeats.heartbeat_table, 'HeartbeatTable', lambda *_: table
  )
  cluster = cluster_lib.make_cluster(('p:1',), ('v:1', 'w:1'), 'worker', 0)
  beats = heartbeats.Heartbeats(cluster, object(), {}, None, None)

  def read(at, num_beats):
    clock.now = at
    table.beats['worker 1'] = heartbeat_table.Beat(1, num_beats, 0)
    beats.read_beats()
    return beats.secs_silent('worker 1')

  silent = heartbeats.SILENT_SECS
  assert beats.secs_silent('worker 1') is None
  assert [read(*look) for look in ((60, 1), (64, 1), (66, 2))] == [0, 4, 0]
  assert read(66 + silent, 2) == silent
  assert beats.find_busy() == {'worker 1': 'a save'}
  assert read(67 + silent, 2) == silent + 1
  assert beats.find_busy() == {}
  # What was read so long ago says nothing of today.
  clock.now += silent + 2
  assert beats.secs_silent('worker 1') is None


@pytest.mark.slow
def test_who_was_replaced_while_it_stood_still_ends_without_a_save(
  make_watchdog, ps_row
):
  old = make_watchdog(1)
  ended = threading.Event()

  def end_at_once(error):
    old._stalls._stop.error = error
    ended.set()
    old.close()  # The process would be over.

  old._stalls._stop.end_at_once = end_at_once
  old.check_in()
  new = make_watchdog(1)
  new._stalls._stop.end_at_once = lambda error: pytest.fail(str(error))
  new.check_in()
  assert ended.wait(60)
  assert isinstance(old._stalls._stop.error, cli.LostError)
  assert 'another process has become worker 1' in str(old._stalls._stop.error)
  assert old._stalls._stop.error.exit_code == 3
  new._heartbeats._beat_once()  # It has its row, and keeps it.


@pytest.mark.slow
def test_a_beat_that_fails_is_not_the_last(
  make_watchdog, ps_row, monkeypatch, logged
):
  monkeypatch.setattr(heartbeats, '_BEAT_SECS', (0.05, 0.05))
  said = threading.Event()
  dog = make_watchdog(0)
  dog.check_in()
  table, left = (
    dog._heartbeats._table,
    [RuntimeError('closed'), AttributeError('run')],
  )
  beat = table.beat

  def fail_twice(number):
    if left:
      raise left.pop()
    said.set()
    return beat(number)

  table.beat = fail_twice
  assert said.wait(60)
  # A slow machine has lines on waits, too.
  assert sum(line.startswith('a beat failed') for line in logged) == 2


def wait_until(is_true):
  for _ in range(1200):
    if is_true():
      return
    threading.Event().wait(0.05)
  raise TimeoutError
