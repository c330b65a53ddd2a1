"""Contributions to the units of a round, each of them once."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import contributions, round_entry, sync_round

PS = [f'/job:ps/task:{i}/device:CPU:0' for i in range(2)]
TOKEN = round_entry.LIFE + 4


@pytest.fixture
def contribute(make_cluster):
  """Returns contribute(worker) -> how many each accumulator has."""
  cluster = make_cluster(2, 3)

  def build_and_run(worker):
    with tf.Graph().as_default():
      member = cluster.worker(worker)
      with tf.device(PS[0]):
        global_step = tf.train.get_or_create_global_step()
      shards = []
      for i in range(3):
        with tf.device(PS[i // 2]):
          shards.append(tf.Variable([0.0], name=f'shard_{i}'))
      token = sync_round.make_token(member, global_step)
      accumulators = contributions.make_accumulators(shards)
      the_round = sync_round.Round(
        *(member, 2, global_step, accumulators, token),
        parts=[[0, 1], [2]],
        by_unit=True,
      )
      assert the_round.rounds_per_run == 5
      with tf.device(PS[0]):
        own_token = tf.constant(TOKEN, tf.int64)
      staleness = the_round._contribute([tf.constant([1.0])] * 3, own_token)
      # What travels together has come together.
      first, second, third = the_round.pushed
      assert first is second is not third
      counts = [a.num_accumulated() for a, _ in the_round.accumulators]
      begin = the_round.entry.begin_life(lambda token: tf.no_op())
      with tf.Session(cluster.servers[0].target) as session:
        session.run(global_step.assign(4))
        if worker == 2:
          session.run(begin)
        session.run([staleness, the_round.pushed])
        return session.run(counts)

  return build_and_run


@pytest.mark.slow
def test_each_has_one_part_of_each_of_the_first_two(contribute):
  assert contribute(2) == [1, 1, 1]
  assert contribute(0) == [2, 2, 2]
  # Neither those of one without a place, nor a second time.
  assert contribute(1) == contribute(0) == [2, 2, 2]
