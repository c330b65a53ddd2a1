"""newest_token: a worker that missed rounds does not take what is over."""

import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry
from tests.support import token_queues

LIFE = round_entry.LIFE


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
