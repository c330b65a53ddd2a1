"""shard_tokens: one token of each unit for each token of the round."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry
from distmnist.exchange.shards import places, shard_tokens

PS = [f'/job:ps/task:{i}/device:CPU:0' for i in range(2)]
LIFE = round_entry.LIFE


@pytest.fixture
def run(make_cluster):
  """Returns run(build, step), which runs what `build(ShardTokens)` has built.

  The global_step is then `step`, in life 0; worker 0 runs it. R is 2 of 2.
  """
  cluster = make_cluster(2, 2)

  def build_and_run(build, step=4, num_contributions=2):
    with tf.Graph().as_default():
      with tf.device(PS[0]):
        global_step = tf.train.get_or_create_global_step()
      member = cluster.worker(0)
      entry = places.Places(member, num_contributions, global_step)
      tokens = shard_tokens.ShardTokens(
        member, num_contributions, entry, PS[0], PS
      )
      fetch = build(tokens)
      with tf.Session(cluster.servers[0].target) as session:
        session.run(global_step.assign(step))
        return session.run(fetch)

  return build_and_run


def count(tokens):
  return [[q.size() for q in queues] for queues in tokens._units._queues]


def end_unit(tokens, unit, step):
  """Unit `unit` is applied in the round that ends with `step`."""
  return tokens.hand_out(unit, tf.constant(step, tf.int64), [])


@pytest.fixture
def begin(run):
  run(lambda tokens: tokens.reset(tf.constant(4, tf.int64)))
  run(lambda tokens: end_unit(tokens, 0, 5))
  assert run(count) == [[1, 1], [0, 0]]


@pytest.mark.slow
def test_a_worker_that_begins_has_what_goes_with_its_next_token(run, begin):
  run(lambda tokens: tokens.wait(0, []))
  run(lambda tokens: tokens.align(tf.constant(4, tf.int64)))
  run(lambda tokens: tokens.align(tf.constant(4, tf.int64)))
  assert run(count) == [[1, 1], [0, 0]]
  # One that begins in the next round has had it.
  run(lambda tokens: tokens.align(tf.constant(5, tf.int64)))
  assert run(count) == [[0, 1], [0, 0]]


def test_one_that_begins_in_an_old_life_has_a_token_of_each(run):
  run(lambda tokens: tokens.reset(tf.constant(4, tf.int64)))
  run(lambda tokens: tokens.align(tf.constant(4 - LIFE, tf.int64)))
  assert run(count) == [[1, 0], [1, 0]]


def test_another_chief_evens_the_units_for_the_others(run, begin):
  run(lambda tokens: tokens.make_for_others(tf.constant(LIFE + 4, tf.int64)))
  assert run(count) == [[1, 1], [0, 1]]


def test_who_is_released_has_one_of_each(run, begin):
  run(lambda tokens: tokens.release())
  assert run(count) == [[1, 1], [1, 1]]
  # Nothing is ahead any more.
  run(lambda tokens: tokens.release())
  assert run(count) == [[2, 2], [2, 2]]


def test_offers_are_for_all_units_and_a_close_ends_each_wait(run):
  run(lambda tokens: tokens.offer_own())
  assert run(count) == [[16, 0], [16, 0]]
  run(lambda tokens: tokens.close())
  run(lambda tokens: tokens.release())
  assert run(count) == [[16, 0], [16, 0]]


def test_it_is_whole_while_no_unit_is_begun_ahead(run, begin):
  run(lambda tokens: tokens.reset(tf.constant(4, tf.int64)))
  assert run(lambda tokens: tokens.build_is_whole())
  run(lambda tokens: tokens.progress.begin(1, tf.constant(5, tf.int64)))
  assert not run(lambda tokens: tokens.build_is_whole())
  assert run(lambda tokens: tokens.build_is_whole(), step=5)


@pytest.mark.parametrize('num_contributions, num_left', [(1, 1), (2, 2)])
def test_of_a_worker_that_is_gone_one_token_a_unit_is_left(
  run, num_contributions, num_left
):
  run(lambda tokens: tokens.reset(tf.constant(4, tf.int64)))
  for step in 5, 6:
    run(
      lambda tokens, step=step: end_unit(tokens, 0, step),
      num_contributions=num_contributions,
    )
  # In lock-step no round ends without it.
  assert run(count) == [[num_left, num_left], [0, 0]]
