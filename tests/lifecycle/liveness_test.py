"""liveness: what a task does is noted; one without its place begins no step."""

import socket
import time
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster, stop_request
from distmnist.lifecycle import heartbeats, liveness
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
    task = types.SimpleNamespace(
      cluster=member,
      server='a server',
      stalls=in_process.make_stalls(),
      stop=stop,
      watchdog=watchdog,
    )
    hook = liveness.LivenessHook(task)
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


def test_each_part_of_a_session_is_watched():
  class Stalls:
    def __init__(self):
      self.calls = []

    def busy(self, what, waits_for_others=False):
      self.calls.append(what)

    def step_begins(self, waits_for_others, describe_wait):
      self.calls.append('step')

    def step_ends(self):
      self.calls.append('step ends')

  # One that is alone has no place to lose.
  task = in_process.make_task(cluster.Cluster())
  task.stalls = watched = Stalls()
  hook = liveness.LivenessHook(task)
  with tf.Graph().as_default(), tf.Session() as session:
    hook.begin()
    hook.after_create_session(session, tf.train.Coordinator())
    hook.before_run(None)
    hook.after_run(None, None)
    hook.end(session)
  assert watched.calls == [
    'the start of a session',
    'step',
    'step ends',
    'what follows a step',
    'the end',
  ]


@pytest.mark.slow
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
