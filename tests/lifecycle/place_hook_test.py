"""place_hook: a worker that may have lost its place begins no step."""

import socket
import time
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster, stop_request
from distmnist.lifecycle import heartbeats, place_hook
from tests.support import in_process


class Watchdog:
  def __init__(self, may_be_replaced=True):
    self.may = may_be_replaced

  def may_be_replaced(self):
    return self.may


class Stop(in_process.AskedStop):
  def wait(self, secs):
    if self.is_requested:
      raise stop_request.StoppedError
    super().wait(secs)


@pytest.fixture
def begin():
  """Returns begin(watchdog, stop) -> the thread of a step, with `errors`."""

  def begin_step(watchdog, stop, port=1):
    hosts = f'127.0.0.1:{port}', 'localhost:1'
    member = cluster.Cluster(hosts[:1], hosts[1:])
    hook = place_hook.PlaceHook(member, watchdog, stop)
    return in_process.start_thread(lambda: hook.before_run(None))

  return begin_step


@pytest.fixture
def port():
  with socket.create_server(('127.0.0.1', 0)) as server:
    yield server.getsockname()[1]


@pytest.mark.slow
def test_it_waits_for_the_answer_to_a_beat(begin, port):
  watchdog = Watchdog()
  thread = begin(watchdog, Stop(), port)
  thread.join(1.5)
  assert thread.is_alive()
  watchdog.may = False
  thread.join(in_process.DEADLINE_SECS)
  assert not thread.is_alive() and not thread.errors


def test_a_stop_ends_the_wait(begin, port):
  stop = Stop()
  thread = begin(Watchdog(), stop, port)
  stop.request()
  thread.join(in_process.DEADLINE_SECS)
  assert [type(e) for e in thread.errors] == [stop_request.StoppedError]


@pytest.mark.slow
def test_where_none_listens_the_ps_is_lost(begin):
  with socket.socket() as reserved:
    reserved.bind(('127.0.0.1', 0))
    thread = begin(Watchdog(), Stop(), reserved.getsockname()[1])
    thread.join(in_process.DEADLINE_SECS)
  [error] = thread.errors
  assert isinstance(error, tf.errors.UnavailableError)
  assert error.message == 'ps 0 is gone'


def test_one_that_is_alone_has_no_place_to_lose():
  assert place_hook.make(types.SimpleNamespace(server=None)) == []


def test_a_place_is_safe_as_long_as_another_would_see_a_beat(
  make_watchdog, ps_row
):
  beats = make_watchdog(0)._heartbeats
  assert not beats.may_be_replaced()  # It has none yet.
  beats._num_beats = 1
  secs = heartbeats._NUM_BEATS_TO_SEE * heartbeats._BEAT_SECS[0]
  beats._last_answer = time.monotonic() - secs + 1
  assert not beats.may_be_replaced()
  beats._last_answer = time.monotonic() - secs
  assert beats.may_be_replaced()
  beats.is_closed.set()
  assert not beats.may_be_replaced()
