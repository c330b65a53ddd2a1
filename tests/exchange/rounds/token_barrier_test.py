"""Tokens: how many there are, and which one a worker begins with."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry, token_barrier
from tests.support import token_queues

LIFE = round_entry.LIFE


@pytest.mark.parametrize(
  'num_contributions, num_each', [(1, [1, 1]), (2, [1, 1]), (3, [3]), (5, [5])]
)
def test_a_round_has_a_token_for_each_worker_and_each_contribution(
  tf_session, num_contributions, num_each
):
  built = token_queues.Built(tf_session, num_contributions)
  assert built.tokens.num_each == num_each
  built.end_round()
  assert built.count() == num_each
  assert built.run(built.tokens.take()) == LIFE + 1


def test_in_lock_step_each_token_is_taken_by_itself(tf_session):
  built = token_queues.Built(tf_session, 2)
  built.end_round()
  built.end_round()
  assert built.count() == [2, 2]
  assert built.run(built.tokens.take()) == LIFE + 1
  assert built.run(built.tokens.take()) == LIFE + 2


@pytest.mark.parametrize('num_contributions', [2, 3, 4])
def test_who_is_let_go_takes_one_for_each_step_left(
  tf_session, num_contributions
):
  built = token_queues.Built(tf_session, num_contributions, num_workers=3)
  built.run(built.tokens.offer_own())
  for left in range(token_barrier.NUM_OFFERED - 1, 10, -1):
    token = built.run(built.tokens.take())
    assert token < 0
    assert built.run(round_entry.step_of(tf.constant(token))) == 0
    assert built.count()[0] == left
  built.run(built.tokens.close())
  built.run(built.tokens.close())
  now, taken = built.run(built.tokens.begin())
  assert now == LIFE
  assert len(taken) == (11 if built.tokens.has_own_queue else 0)
