"""incarnations: a ps is lost while a worker waits on another one."""

import threading

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import incarnations
from tests.support import in_process


class _Meeting(tf.train.SessionRunHook):
  """Sees the sessions come."""

  def __init__(self):
    self.num_sessions = 0
    self.is_waiting = threading.Event()

  def after_create_session(self, session, coord):
    self.num_sessions += 1

  def before_run(self, run_context):
    self.is_waiting.set()


def lose(cluster, ps_index):
  """Takes the mark of worker 0 from a ps: one that is new has none either."""
  with tf.Graph().as_default() as graph:
    with tf.device(f'/job:ps/task:{ps_index}/device:CPU:0'):
      clear = incarnations.build_mark(cluster.worker(0), ps_index).clear
    with tf.Session(cluster.servers[0].target, graph=graph) as session:
      session.run(clear)


@pytest.mark.parametrize('num_losses', [1, 3])
def test_a_wait_on_one_ps_ends_when_another_one_is_lost(
  make_cluster, num_losses
):
  cluster = make_cluster(2, 1)
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
