"""message_queue: messages between tasks, by a queue on one of them."""

import threading

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import message_queue
from tests.support.background import wait_until

DEADLINE_SECS = 60


@pytest.fixture
def open_queue(make_cluster):
  """Returns open(worker, name, num_ps=1, place=...); closed at the end."""
  boxes = []

  def open_queue(worker, name, num_ps=1, place='/job:ps/task:0'):
    cluster = make_cluster(num_ps, 2)
    box = message_queue.MessageQueue(
      cluster.worker(worker), cluster.servers[worker], place, name
    )
    boxes.append(box)
    return box

  yield open_queue
  for box in boxes:
    box.close()


@pytest.mark.slow
def test_messages_keep_their_order_and_outlive_the_session_of_their_sender(
  open_queue,
):
  first = {'task': 'worker 1', 'ok': True, 'text': 'größer', 'n': {'0': 2}}
  messages = [first, *({'i': i} for i in range(4))]
  with open_queue(1, 'news') as sender:
    for message in messages:
      sender.send(message)
  received = open_queue(0, 'news').listen()
  assert [received.get(timeout=DEADLINE_SECS) for _ in messages] == messages


@pytest.mark.slow
def test_a_queue_is_known_by_name_and_place(open_queue):
  open_queue(1, 'news', num_ps=2).send({})
  assert open_queue(0, 'news', num_ps=2).size() == 1
  assert open_queue(0, 'other', num_ps=2).size() == 0
  other_place = '/job:ps/task:1'
  assert open_queue(0, 'news', num_ps=2, place=other_place).size() == 0


@pytest.mark.parametrize('receiver', [0, 1])
def test_a_worker_keeps_the_queue_where_there_is_no_ps(open_queue, receiver):
  place = '/job:worker/task:0'
  received = open_queue(receiver, 'news', num_ps=0, place=place).listen()
  open_queue(1 - receiver, 'news', num_ps=0, place=place).send({'i': 1})
  assert received.get(timeout=DEADLINE_SECS) == {'i': 1}


@pytest.mark.slow
def test_looking_takes_nothing_out(open_queue):
  reader, sender = open_queue(0, 'news'), open_queue(1, 'news')
  assert reader.size() == 0
  sender.send({'i': 1})
  assert [reader.size() for _ in range(3)] == [1] * 3
  assert reader.listen().get(timeout=DEADLINE_SECS) == {'i': 1}
  assert reader.size() == 0


@pytest.mark.slow
@pytest.mark.parametrize('num_heard', [0, 1])
def test_close_ends_the_listening(open_queue, num_heard):
  before = set(threading.enumerate())
  listener, sender = open_queue(0, 'news'), open_queue(1, 'news')
  received = listener.listen()

  def find_new():
    return set(threading.enumerate()) - before

  # One that has opened a session may still be about to end.
  wait_until(lambda: len(find_new()) == 1, find_new)
  (thread,) = find_new()
  for i in range(num_heard):
    sender.send({'i': i})
    assert received.get(timeout=DEADLINE_SECS) == {'i': i}
  listener.close()
  thread.join(DEADLINE_SECS)
  assert not thread.is_alive()
  assert received.empty()


def test_the_graph_around_it_stays_as_it_is(open_queue, tf_session):
  open_queue(0, 'news').send({})
  assert tf.get_default_graph().get_operations() == []


def test_a_call_that_never_returns_is_given_up(open_queue, monkeypatch):
  monkeypatch.setattr(message_queue, '_GRACE_SECS', 0.1)
  box, is_over = open_queue(0, 'news'), threading.Event()
  sessions = [box._session]

  class Silent:
    def run(self, *_):
      is_over.wait(DEADLINE_SECS)

  box._session = Silent()
  with pytest.raises(tf.errors.DeadlineExceededError):
    box.send({}, timeout_secs=0.1)
  is_over.set()
  # The next one is tried in a session of its own.
  box.send({'i': 1})
  assert box.size() == 1
  sessions[0].close()
