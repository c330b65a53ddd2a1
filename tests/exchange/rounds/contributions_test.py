"""contributions: a worker that is lost in mid-push contributes once."""

import threading
import time

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import (
  contributions,
  round_entry,
  sync_round,
)
from distmnist.strategies import sagn, sync_sgd
from distmnist.tables import sparse_sum
from tests.support import rounds
from tests.support import stepper as stepper_lib

PS = '/job:ps/task:0/device:CPU:0'


class Lost:
  """A worker whose push stops half-way, and which is then killed."""

  def __init__(self, monkeypatch, worker):
    self._worker = worker
    self._patch = monkeypatch
    self._is_lost = False

  def make_rule(self, make_rule):
    """Returns make_rule, whose rule pushes only the first of two parts."""

    def make(member):
      rule = make_rule(member)
      if member.task_index == self._worker and not self._is_lost:
        minimize = rule.minimize
        rule.minimize = lambda *args: self._hold(minimize, *args)
      return rule

    return make

  def _hold(self, minimize, *args):
    apply_one = contributions.Contribution._apply_one

    def apply_or_stop(contribution, i, token):
      before = []
      if i:
        with tf.device(contribution._accumulators[i][1]):
          before.append(tf.FIFOQueue(1, tf.bool, ()).dequeue())
      with tf.control_dependencies(before):
        return apply_one(contribution, i, token)

    with self._patch.context() as patch:
      patch.setattr(contributions.Contribution, '_apply_one', apply_or_stop)
      return minimize(*args)

  def kill_in_mid_push(self, stepper):
    """Kills it once its first part is in, and has its successor begin."""
    worker = stepper.workers[self._worker]
    hook = worker.hooks[-1]
    session, device = hook._session, hook._round.accumulators[0][1]
    with tf.Graph().as_default(), tf.Session(session.sess_str) as reader:
      given = contributions.GivenParts(worker.member, [device])
      noted = given.read(0, [])
      end = time.monotonic() + stepper_lib.DEADLINE_SECS
      while reader.run(noted) < round_entry.LIFE:
        assert time.monotonic() < end
        threading.Event().wait(0.02)
    stepper.leave(self._worker, session.close)
    hook._end_updates()
    self._is_lost = True
    stepper.come_back(self._worker)

  def push_and_be_replaced(self, stepper):
    """It is killed in mid-push; its successor pushes the same, and waits."""
    worker = self._worker
    stepper.begin(worker, [4, 4])
    stepper.release(worker)
    self.kill_in_mid_push(stepper)
    stepper.begin(worker, [4, 4])
    stepper.release(worker)
    assert not stepper.is_done(worker)


RULES = {
  'sync_sgd': lambda member: sync_sgd.SyncSgd(member, 2),
  'shard': lambda member: sync_sgd.SyncSgd(member, 2, barrier='shard'),
  'sagn': lambda member: sagn.Sagn(member, 1, 2),
}


@pytest.mark.daily(but=['shard'])
@pytest.mark.slow
@pytest.mark.parametrize('name', RULES)
def test_of_all_workers_each_is_in_each_shard_once(
  make_stepper, monkeypatch, name
):
  lost = Lost(monkeypatch, worker=1)
  stepper = make_stepper(2, 2, lost.make_rule(RULES[name]), size=2)
  lost.push_and_be_replaced(stepper)
  # 0 + 0.5 (8 + 4) / 2 in both shards.
  assert stepper.step(0, [8, 8]) == (1, 0, [3, 3])
  assert stepper.join(1) == (1, 0, [3, 3])
  assert stepper.step_together([[4, 4], [4, 4]]) == [(2, 0, [3.5, 3.5])] * 2


@pytest.mark.daily
@pytest.mark.slow
def test_one_of_those_that_are_enough_gives_the_rest(make_stepper, monkeypatch):
  lost = Lost(monkeypatch, worker=2)
  make_rule = lost.make_rule(RULES['sync_sgd'])
  stepper = make_stepper(2, 3, make_rule, size=2)
  lost.push_and_be_replaced(stepper)
  assert stepper.step(0, [8, 8]) == (1, 0, [3, 3])
  assert stepper.join(2) == (1, 0, [3, 3])


@pytest.mark.parametrize('num_contributions, expected', [(2, 1), (3, 2)])
def test_rows_come_in_once_or_with_spare_tokens_each_time(
  make_cluster, num_contributions, expected
):
  cluster = make_cluster(1, 2)
  member = cluster.worker(0)
  with tf.Graph().as_default():
    with tf.device(PS):
      global_step = tf.train.get_or_create_global_step()
      table = tf.Variable(tf.zeros([3, 1]))
      rows = sparse_sum.SparseSum(table, 'rows')
      gradient = tf.IndexedSlices(
        tf.ones([1, 1]),
        tf.constant([2], tf.int64),
        tf.constant([3, 1], tf.int64),
      )
      own_token = tf.constant(round_entry.LIFE, tf.int64)
    the_round = sync_round.Round(
      *(member, num_contributions, global_step, [(rows, PS)]),
      sync_round.make_token(member, global_step),
    )
    [op] = contributions.Contribution(the_round, [gradient]).apply(own_token)
    with tf.Session(cluster.servers[0].target) as session:
      session.run(op)
      session.run(op)
      assert session.run(rows.num_accumulated()) == expected


def test_what_arrives_together_is_noted_together(make_cluster):
  member = make_cluster(1, 1).worker(0)
  with tf.Graph().as_default() as graph:
    the_round = rounds.build_bare(member, 3, parts=[[0, 2], [1]])
    own_token = tf.constant(round_entry.LIFE, tf.int64)
    before = set(graph.get_operations())
    given = contributions.Contribution(the_round, [tf.ones([2])] * 3)
    pushed = given.apply(own_token)
    made = [op.type for op in graph.get_operations() if op not in before]
    assert pushed[0] is pushed[2] is not pushed[1]
    assert made.count('ResourceAccumulatorApplyGradient') == 3
    assert made.count('LookupTableFindV2') == 2
    assert made.count('LookupTableInsertV2') == 2
