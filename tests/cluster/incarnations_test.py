"""incarnations: a ps is lost while a worker waits for another one."""

import threading

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import incarnations
from distmnist.common import console
from tests.support import in_process


class _Meeting(tf.train.SessionRunHook):
  """Notes the sessions as they come."""

  def __init__(self):
    self.num_sessions = 0
    self.is_waiting = threading.Event()

  def after_create_session(self, session, coord):
    self.num_sessions += 1

  def before_run(self, run_context):
    self.is_waiting.set()


def lose(cluster, ps_index):
  """Takes the mark of worker 0 from a ps: a new one has none either."""
  with tf.Graph().as_default() as graph:
    with tf.device(f'/job:ps/task:{ps_index}/device:CPU:0'):
      clear = incarnations.build_mark(cluster.worker(0), ps_index).clear
    with tf.Session(cluster.servers[0].target, graph=graph) as session:
      session.run(clear)


@pytest.mark.slow
def test_a_wait_on_one_ps_ends_when_another_one_is_lost(make_cluster):
  cluster, num_losses = make_cluster(2, 1), 2
  hook = _Meeting()

  def work(index):
    with tf.device('/job:ps/task:0/device:CPU:0'):
      tf.train.get_or_create_global_step()
      permits = tf.FIFOQueue(-1, tf.int32, (), shared_name='permits')
      permit, give = permits.dequeue(), permits.enqueue(7)
    with cluster.make_session(index, [hook]) as session:
      result = []
      waiting = threading.Thread(
        target=lambda: result.append(session.run(permit))
      )
      waiting.start()
      for _ in range(num_losses):
        assert hook.is_waiting.wait(in_process.DEADLINE_SECS)
        hook.is_waiting.clear()
        lose(cluster, 1)
      assert hook.is_waiting.wait(in_process.DEADLINE_SECS)
      with tf.Session(cluster.servers[0].target, graph=give.graph) as giver:
        giver.run(give)
      waiting.join(in_process.DEADLINE_SECS)
    return result

  assert cluster.run_workers(work) == [[7]]
  assert hook.num_sessions == num_losses + 1


@pytest.mark.slow
def test_a_session_whose_making_is_given_up_is_closed(make_cluster):
  cluster = make_cluster(1, 1)
  made = []

  class Fails(tf.train.SessionRunHook):
    def after_create_session(self, session, coord):
      made.append((session, coord))
      if len(made) == 1:
        raise tf.errors.UnavailableError(None, None, 'a lost packet')

  def work(index):
    with tf.device('/job:ps/task:0/device:CPU:0'):
      tf.train.get_or_create_global_step()
      one = tf.constant(1)
    with cluster.make_session(index, [Fails()]) as session:
      return session.run(one)

  assert cluster.run_workers(work) == [1]
  [(first, coord), _] = made
  assert coord.should_stop()
  with pytest.raises(RuntimeError, match='closed'):
    first.run([])


class _FakeSession:
  _closed = False

  def __init__(self, error=None):
    self.error = error
    self.is_closed = False

  def run(self, fetches):
    del fetches
    raise self.error

  def close(self):
    self.is_closed = True


def test_a_loss_that_is_found_late_leaves_the_next_session_alone():
  """A ps is lost twice: the first loss is found as the second is mended."""
  old, new = _FakeSession(), _FakeSession(ValueError('its own'))
  coords = tf.train.Coordinator(), tf.train.Coordinator()
  member = in_process.cluster.make_cluster(
    ('p:1', 'p:2'), ('w:1', 'w:2'), 'worker', 0
  )
  watch, runs = incarnations.LossWatch(member, None), []
  console.print_logs(
    lambda _: runs.append(watch.begin_session(new, coords[1], new.run))
  )
  watch.begin_session(old, coords[0], old.run)
  life = watch._life
  life.last_move = 0.0
  watch._end(life, 'ps 0 was started anew')
  assert coords[0].should_stop() and old.is_closed
  assert 'ps 0 was started anew' in life.loss.message
  assert not coords[1].should_stop() and not new.is_closed
  with pytest.raises(ValueError, match='its own'):
    runs[0]([])
