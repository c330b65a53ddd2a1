"""Tokens of workers: which have one, and how many there are."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry, token_barrier


@pytest.mark.parametrize(
  'num_contributions, num_each', [(1, [2]), (2, [1, 1]), (3, [3]), (5, [5])]
)
def test_a_round_has_a_token_for_each_worker_and_each_contribution(
  tf_session, make_cluster, num_contributions, num_each
):
  global_step = tf.train.get_or_create_global_step()
  member = make_cluster(1, 2).worker(0)
  entry = round_entry.Entry(member, num_contributions, global_step)
  tokens = token_barrier.Tokens(
    member, num_contributions, entry, global_step.device
  )
  assert tokens.num_each == num_each
