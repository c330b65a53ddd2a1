"""ps_lock: one at a time, also when a worker dies inside or in its wait."""

import concurrent.futures

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.center import ps_lock

DEADLINE_MS = 60_000


class Room:
  """A number behind the lock, and workers that stand still amid their turn."""

  def __init__(self, target, name='a'):
    self.target = target
    with tf.Graph().as_default() as self._graph:
      self._number = tf.Variable(
        0, use_resource=True, dtype=tf.int64, name=f'number_{name}'
      )
      self._is_in, self._may_go = (
        tf.FIFOQueue(-1, tf.int64, (), shared_name=f'{kind}_{name}')
        for kind in ('is_in', 'may_go')
      )
      lock = ps_lock.Lock('/cpu:0', f'lock_{name}')
      self._slow, self._quick = (
        lock.execute(lambda w=waits: self._double_and_add(w))
        for waits in (True, False)
      )
      self._wait_for_entry = self._is_in.dequeue()
      self._let_go = self._may_go.enqueue(0)
    with self.open() as session:
      with self._graph.as_default():
        init = tf.variables_initializer([self._number])
      session.run(init)

  def _double_and_add(self, waits):
    """Doubles what it read at its start, and adds 1: no other may interfere."""
    read = self._number.read_value()
    ready = [read]
    if waits:
      with tf.control_dependencies([read]):
        entered = self._is_in.enqueue(0)
      with tf.control_dependencies([entered]):
        ready.append(self._may_go.dequeue())
    with tf.control_dependencies(ready):
      return self._number.assign(2 * read + 1).read_value()

  def open(self):
    return tf.Session(self.target, self._graph)

  def enter_slowly(self, session):
    return self._run(session, self._slow, DEADLINE_MS)

  def enter(self, session, deadline_ms=DEADLINE_MS):
    return self._run(session, self._quick, deadline_ms)

  def wait_for_entry(self, session):
    self._run(session, self._wait_for_entry, DEADLINE_MS)

  def let_go(self, session):
    self._run(session, self._let_go, DEADLINE_MS)

  def _run(self, session, fetch, deadline_ms):
    options = tf.RunOptions(timeout_in_ms=deadline_ms)
    return session.run(fetch, options=options)


@pytest.fixture
def room():
  return Room(tf.train.Server.create_local_server().target)


@pytest.fixture
def threads():
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    yield pool


@pytest.mark.slow
def test_one_at_a_time(room, threads):
  sessions = [room.open() for _ in range(8)]
  numbers = list(threads.map(room.enter, sessions * 4))
  assert sorted(numbers) == [2**n - 1 for n in range(1, 33)]


def let_in_early(room, threads):
  """Whether one got in beside another when a third died in its wait."""
  inside, waiting, next_one = (room.open() for _ in range(3))
  # TensorFlow forgets a deadline that is over before the graph is registered,
  # in the first run of a session: this worker would wait and not die.
  assert room.enter(waiting) == 1
  slow = threads.submit(room.enter_slowly, inside)
  room.wait_for_entry(next_one)
  with pytest.raises(tf.errors.DeadlineExceededError):
    room.enter(waiting, deadline_ms=200)
  quick = threads.submit(room.enter, next_one)
  early, _ = concurrent.futures.wait([quick], 0.3)
  room.let_go(waiting)
  found = slow.result(), quick.result()
  assert early or found == (3, 7)
  return bool(early)


@pytest.mark.slow
def test_a_worker_that_dies_in_its_wait_hardly_lets_another_in(threads):
  target = tf.train.Server.create_local_server().target
  tries = [let_in_early(Room(target, f'room_{i}'), threads) for i in range(5)]
  # A lone tf.CriticalSection lets it in each time.
  assert sum(tries) <= 2


@pytest.mark.slow
def test_a_worker_that_dies_inside_lets_go(room, threads):
  inside, next_one = room.open(), room.open()
  slow = threads.submit(room.enter_slowly, inside)
  room.wait_for_entry(next_one)
  quick = threads.submit(room.enter, next_one)
  inside.close()
  assert isinstance(slow.exception(), tf.errors.CancelledError)
  assert quick.result() == 1
