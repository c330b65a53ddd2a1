"""An exchange with one other worker: there, not yet, gone or suspended."""

import math
import signal
import sys
import time
import types

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.peers import peer
from tests.support import in_process, runner


def run():
  """A program for the runner: a worker in a process of its own, that serves."""
  ps, *workers = sys.argv[1:]
  member = cluster_lib.make_cluster((ps,), tuple(workers), 'worker', 1)
  server = in_process.start_server(member)
  print('serves', flush=True)
  server.join()


class Node:
  """The copy of a worker, of two numbers, and its count of visits."""

  def __init__(self, member, target):
    with tf.Graph().as_default() as graph, tf.device(member.task_device):
      self.w, self.num_visits = (
        tf.Variable(value, name=name, use_resource=True)
        for name, value in (('w', [0.0, 0.0]), ('num_visits', tf.int64.max))
      )
      self._new_w = tf.placeholder(tf.float32, [2])
      self._set = [
        self.w.assign(self._new_w, read_value=False),
        self.num_visits.assign(0, read_value=False),
      ]
      self._values = self.w.read_value(), self.num_visits.read_value()
    config = in_process.make_config()
    config.device_filters.append(member.task_device)
    self.session = tf.Session(target, graph, config)

  def begin(self, w):
    self.session.run(self._set, {self._new_w: w})

  def read(self):
    """Returns (w, number of visits)."""
    w, num_visits = self.session.run(self._values)
    return w.tolist(), int(num_visits)


def make_peer(member, node):
  """Returns the Peer that worker 1 is to the worker of `node`."""
  copies = types.SimpleNamespace(variables=[node.w], num_bytes=8)
  with node.session.graph.as_default():
    made = peer.Peer(member, 1, copies, node.num_visits)
  made.connect(node.session)
  return made


@pytest.fixture
def pair(make_cluster):
  """Returns (the Node of worker 0, of worker 1, what 1 is to 0)."""
  cluster = make_cluster(1, 2)
  here, there = (
    Node(cluster.worker(i), cluster.servers[i].target) for i in range(2)
  )
  return here, there, make_peer(cluster.worker(0), here)


def wait_until_met(found):
  """Meets a Peer again and again until it answers."""
  end = time.monotonic() + 60
  while not found.meet():
    assert time.monotonic() < end
    time.sleep(0.02)


@pytest.mark.slow
def test_both_have_the_mean_and_the_visited_one_counts(pair):
  here, there, found = pair
  here.begin([1, 8])
  there.begin([3, 2])
  assert found.meet()
  assert here.read() == ([2, 5], 0)
  assert there.read() == ([2, 5], 1)
  there.begin([4, 5])
  assert found.meet()
  assert here.read() == ([3, 5], 0)
  found.leave()
  assert found.num_failures == 0


@pytest.mark.slow
def test_one_that_has_not_begun_is_found_later(pair, monkeypatch):
  here, there, found = pair
  here.begin([1, 8])
  assert not found.meet()
  assert found.num_failures == 1
  there.begin([3, 2])
  assert not found.meet()  # It was just looked for.
  monkeypatch.setattr(found, '_next_look', 0)
  wait_until_met(found)
  assert here.read() == ([2, 5], 0)


@pytest.mark.slow
@pytest.mark.parametrize('is_there', [False, True])
def test_a_number_that_is_not_finite_is_given_to_no_other(pair, is_there):
  here, there, found = pair
  values = [1.0, 8.0], [math.nan, 2.0]
  w, of_peer = values if is_there else values[::-1]
  here.begin(w)
  there.begin(of_peer)
  assert not found.meet()
  [mine], [theirs] = here.read()[:1], there.read()[:1]
  assert mine == pytest.approx(w, nan_ok=True)
  assert theirs == pytest.approx(of_peer, nan_ok=True)


@pytest.fixture
def far_pair(monkeypatch, tasks, tmp_path):
  """Returns (Node of worker 0, Peer, start): worker 1 is a task.

  start() starts it and returns (its runner.Task, its Node).
  """
  monkeypatch.setattr(peer, '_LIMIT_SECS', 2.0)
  monkeypatch.setattr(peer, '_AGAIN_SECS', 0.1)
  with in_process.hold_ports(3) as found:
    ps, *workers = [f'127.0.0.1:{port}' for port in found]
    member = cluster_lib.make_cluster((ps,), tuple(workers), 'worker', 0)
    other = cluster_lib.make_cluster((ps,), tuple(workers), 'worker', 1)
    server = in_process.start_server(member)

    def start():
      log = tmp_path / f'worker_1.{tasks.num_started}'
      task = tasks.start(log, ps, *workers, module=__name__)
      runner.wait_for_line(task, 'serves')
      return task, Node(other, f'grpc://{workers[1]}')

    here = Node(member, server.target)
    yield here, make_peer(member, here), start


@pytest.mark.slow
def test_a_dead_peer_is_passed_over_and_found_when_it_is_back(far_pair, tasks):
  here, found, start = far_pair
  here.begin([1, 8])
  assert not found.meet()  # Nothing is there yet.
  task, there = start()
  there.begin([3, 2])
  wait_until_met(found)
  tasks.signal(task, signal.SIGKILL)
  tasks.wait(task)
  begun = time.monotonic()
  for _ in range(100):
    assert not found.meet()
  # A wait for each would be 200 s.
  assert time.monotonic() - begun < 60
  assert here.read() == ([2, 5], 0)
  _, there = start()
  there.begin([4, 5])
  wait_until_met(found)
  assert here.read() == ([3, 5], 0)


@pytest.mark.slow
def test_a_suspended_peer_is_waited_for_once_and_not_for_long(far_pair, tasks):
  here, found, start = far_pair
  here.begin([1, 8])
  task, there = start()
  there.begin([3, 2])
  wait_until_met(found)
  tasks.suspend(task)
  begun = time.monotonic()
  assert not found.meet()
  assert 1 < time.monotonic() - begun < 60
  begun = time.monotonic()
  for _ in range(100):
    assert not found.meet()
  assert time.monotonic() - begun < 60
  tasks.signal(task, signal.SIGCONT)
  wait_until_met(found)
  (mine, _), (theirs, _) = here.read(), there.read()
  assert mine == theirs
