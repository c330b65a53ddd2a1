"""The table on a ps: races, checkpoints, other clusters."""

import collections

import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import data_order
from distmnist.training.batches import batch_table, dispatcher, leases
from tests.support.dealings import BATCH, count_places, make_dealing


def build_table(dealing, worker):
  with tf.device('/job:ps/task:0'):
    step = tf.train.get_or_create_global_step()
  return step, dispatcher.Table(step, dealing, worker)


@pytest.mark.slow
def test_workers_that_race_for_leases_get_each_ticket_once(make_cluster):
  cluster = make_cluster(1, 3)
  dealing = make_dealing(3, 2, 90)

  def work(worker):
    step, table = build_table(dealing, worker)
    with tf.device(step.device):
      count = step.assign_add(1, read_value=False)
    push = table.build_mark([count])
    found = []
    with cluster.make_session(worker, [table.hook()]) as session:
      raw = session._tf_sess()
      while True:
        global_step, values = table.look(raw)
        lease = leases.choose_lease(values, global_step, worker, dealing)
        if global_step >= 90:
          return found
        if lease and table.take(raw, values, lease):
          for first in range(lease.first, lease.end, 2):
            found.append((first, first + 2))
            raw.run(push)

  ranges = [r for found in cluster.run_workers(work) for r in found]
  assert count_places(batch_table.make_table(dealing), ranges) == (
    collections.Counter(range(90 * 2 * BATCH))
  )


@pytest.mark.slow
def test_the_table_is_in_the_checkpoint_and_loads_for_any_cluster(
  make_cluster, tmp_path
):
  logdir = str(tmp_path)
  dealing = make_dealing(2, 1, 40)
  cluster = make_cluster(2, 2)
  with tf.Graph().as_default():
    step, table = build_table(dealing, 0)
    saver = tf.train.Saver()
    with cluster.make_session(0, [table.hook()]) as session:
      raw = session._tf_sess()
      values = table.look(raw)[1]
      lease = leases.choose_entry(values, 0, 0, dealing)
      assert table.take(raw, values, lease)
      assert not table.take(raw, values, lease)  # It is not as it was.
      saver.save(raw, f'{logdir}/model.ckpt', 0, write_meta_graph=False)
  cluster.reset()
  small = make_cluster(1, 1)
  with tf.Graph().as_default():
    _, table = build_table(make_dealing(1, 1, 40), 0)
    with small.make_session(0, [table.hook()], logdir) as session:
      _, values = table.look(session._tf_sess())
  rest = batch_table.read_rest(values)
  # What was in the hands of worker 0 comes first.
  assert rest.ranges == [(0, lease.end * BATCH)]
  assert rest.next_place == lease.end * BATCH
  number = len(values) // 2
  assert values[number].tolist() == [0, BATCH, False]
  assert not values[number + 1 :].any()


@pytest.mark.slow
def test_a_checkpoint_without_a_table_is_restored(make_cluster, tmp_path):
  logdir = str(tmp_path)
  cluster = make_cluster(1, 1)
  with tf.Graph().as_default():
    with tf.device('/job:ps/task:0'):
      step = tf.train.get_or_create_global_step()
      count = step.assign_add(7)
    saver = tf.train.Saver()
    with cluster.make_session(0, []) as session:
      raw = session._tf_sess()
      raw.run(count)
      saver.save(raw, f'{logdir}/model.ckpt', 7, write_meta_graph=False)
  cluster.reset()
  with tf.Graph().as_default():
    _, table = build_table(make_dealing(1, 3, 40), 0)
    with cluster.make_session(0, [table.hook()], logdir) as session:
      global_step, values = table.look(session._tf_sess())
  assert global_step == 7
  assert batch_table.read_rest(values).next_place == 7 * 3 * BATCH
  assert isinstance(batch_table.read_rest(values), data_order.Rest)


@pytest.mark.slow
def test_a_push_that_is_counted_and_not_noted_is_made_again(
  make_cluster, tmp_path
):
  logdir = str(tmp_path)
  dealing = make_dealing(1, 1, 3)
  cluster = make_cluster(1, 1)
  with tf.Graph().as_default():
    step, table = build_table(dealing, 0)
    with tf.device(step.device):
      count = step.assign_add(1, read_value=False)
    push = table.build_mark([count])
    saver = tf.train.Saver()
    with cluster.make_session(0, [table.hook()]) as session:
      raw = session._tf_sess()
      for op in (push, push, count):  # The ps dies before it notes the last.
        global_step, values = table.look(raw)
        lease = leases.choose_lease(values, global_step, 0, dealing)
        if lease:
          assert table.take(raw, values, lease)
        raw.run(op)
      saver.save(raw, f'{logdir}/model.ckpt', 2, write_meta_graph=False)
      assert table.look_at_step(raw) == 3
  cluster.reset()
  with tf.Graph().as_default():
    _, table = build_table(dealing, 0)
    with cluster.make_session(0, [table.hook()], logdir) as session:
      global_step, values = table.look(session._tf_sess())
  lease = leases.choose_lease(values, global_step, 0, dealing)
  assert (global_step, lease.first, lease.end) == (2, 0, 1)
  assert batch_table.read_rest(values).ranges == [(2 * BATCH, 3 * BATCH)]
