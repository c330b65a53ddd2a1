"""tokens: how many there are, and which one a worker begins with."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.rounds import round_entry, tokens
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


@pytest.mark.slow
def test_in_lock_step_each_token_is_taken_by_itself(tf_session):
  built = token_queues.Built(tf_session, 2)
  built.end_round()
  built.end_round()
  assert built.count() == [2, 2]
  assert built.run(built.tokens.take()) == LIFE + 1
  assert built.run(built.tokens.take()) == LIFE + 2


@pytest.mark.slow
@pytest.mark.parametrize('num_contributions', [2, 3, 4])
def test_who_is_let_go_takes_one_for_each_step_left(
  tf_session, num_contributions
):
  built = token_queues.Built(tf_session, num_contributions, num_workers=3)
  built.run(built.tokens.offer_own())
  token = built.tokens.take()
  both = token, round_entry.step_of(token)
  for left in range(tokens.NUM_OFFERED - 1, 10, -1):
    taken, step = built.run(both)
    assert taken < 0 and step == 0
    assert built.count()[0] == left
  built.run(built.tokens.close())
  built.run(built.tokens.close())
  now, taken = built.run(built.tokens.begin())
  assert now == LIFE
  assert len(taken) == (11 if built.tokens.has_own_queue else 0)


@pytest.mark.slow
def test_a_worker_that_missed_rounds_begins_with_the_newest_token(tf_session):
  built = token_queues.Built(tf_session, 2, num_workers=3)
  for _ in range(3):
    built.end_round()
  # Of one that is gone for ever, too, there is no more than this.
  assert built.count() == [1, 1, 1]
  assert built.run(built.tokens.take()) == LIFE + 3
  assert built.count() == [0, 1, 1]
  built.end_round()
  assert built.run(built.tokens.take()) == LIFE + 4


@pytest.mark.slow
def test_a_token_of_a_life_that_is_about_to_begin_is_the_newest(tf_session):
  built = token_queues.Built(tf_session, 2, num_workers=3)
  built.end_round()
  new = tf.constant(2 * LIFE + 1, tf.int64)
  built.run(built.tokens.make([1, 1, 1], new))
  assert built.count() == [2, 2, 2]
  assert built.run(built.tokens.take()) == 2 * LIFE + 1
  assert built.count() == [0, 2, 2]
  built.run(built.tokens.make([1, 1, 1], new))
  now, taken = built.run(built.tokens.begin())
  assert (now, taken.tolist()) == (LIFE + 1, [2 * LIFE + 1])


def test_a_worker_is_noted_as_waiting_until_it_has_its_token(tf_session):
  member = cluster_lib.make_cluster(('p:1',), ('v:1', 'w:1'), 'worker', 1)
  table = tokens.TokenTable(member, '')
  read = table.read()
  assert tf_session.run(read).tolist() == [-1, -1]
  seen = []

  def take():
    seen.append(table.read())
    with tf.control_dependencies(seen):
      return tf.constant(7, tf.int64)

  token = table.wait_for_token(take, [tf.no_op()])
  token_v, seen_v = tf_session.run([token, seen[0]])
  assert (token_v, seen_v.tolist()) == (7, [-1, 0])
  assert tf_session.run(read).tolist() == [-1, 1]
  tf_session.run(table.clear())
  assert tf_session.run(read).tolist() == [-1, -1]
