"""units: who waits for a unit, and what wakes him."""

import concurrent.futures

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry, units

PS = [f'/job:ps/task:{i}/device:CPU:0' for i in range(2)]
LIFE = round_entry.LIFE


def make_token(step):
  return tf.constant(LIFE + step, tf.int64)


@pytest.fixture
def run(make_cluster):
  """Returns run(build, worker), which runs what `build(UnitTokens)` has built.

  Of two units, each on a ps, which begin at step 4. R is 2 of 2.
  """
  cluster = make_cluster(2, 2)

  def build_and_run(build, worker=0):
    with tf.Graph().as_default():
      with tf.device(PS[0]):
        global_step = tf.train.get_or_create_global_step()
      member = cluster.worker(worker)
      entry = round_entry.Entry(member, 2, global_step, has_places=True)
      tokens = units.UnitTokens(member, 2, entry, PS[0], PS)
      fetch = build(tokens)
      options = tf.RunOptions(timeout_in_ms=60_000)
      with tf.Session(cluster.servers[worker].target) as session:
        session.run(global_step.initializer)
        return session.run(fetch, options=options)

  build_and_run(
    lambda tokens: tokens._entry.begin_life(
      lambda token: tf.group(*tokens.reset(make_token(4)))
    )
  )
  return build_and_run


@pytest.fixture
def wait(run):
  """Returns wait(unit, worker, step) -> a future; its token is of that step."""
  with concurrent.futures.ThreadPoolExecutor() as threads:

    def begin(unit, worker, step):
      def build(tokens):
        tokens.set_goal(make_token(step), None)
        return tokens.wait(unit, [tf.no_op()])

      return threads.submit(run, build, worker)

    yield begin


def count(tokens):
  return [[q.size() for q in queues] for queues in tokens.units._queues]


def end_unit(run, unit, step):
  """Unit `unit` is applied in the round that ends with `step`."""
  run(lambda tokens: tokens.hand_out(unit, make_token(step), []))


def is_waiting(future):
  with pytest.raises(concurrent.futures.TimeoutError):
    future.result(0.3)
  return True


@pytest.mark.slow
def test_all_wait_until_a_unit_is_updated_and_are_woken(run, wait):
  waits = [wait(1, worker, 4) for worker in (0, 1)]
  end_unit(run, 0, 5)
  assert all(map(is_waiting, waits))
  end_unit(run, 1, 5)
  for each in waits:
    each.result(60)
  wait(0, 0, 4).result(60)
  last = wait(0, 0, 5)
  assert is_waiting(last)
  end_unit(run, 0, 6)
  last.result(60)


@pytest.mark.slow
def test_of_one_that_is_gone_one_entry_is_left(run, wait):
  for step in 5, 6, 7:
    end_unit(run, 0, step)
  assert run(count)[0] == [1, 1]
  # What is left over wakes, and lets nobody go.
  last = wait(0, 1, 7)
  assert is_waiting(last)
  end_unit(run, 0, 8)
  last.result(60)


@pytest.mark.slow
def test_another_chief_lets_those_of_the_old_life_go(run, wait):
  end_unit(run, 0, 5)
  old = [wait(unit, 1, 4) for unit in (0, 1)]
  assert is_waiting(old[1])
  run(lambda tokens: tokens.make_for_others(make_token(LIFE + 4)))
  for each in old:
    each.result(60)


@pytest.mark.slow
def test_who_is_let_go_waits_for_none_until_he_begins_again(run, wait):
  held = wait(0, 1, 4)
  run(lambda tokens: tokens.offer_own())
  for unit in 0, 1:
    wait(unit, 0, 9).result(60)
  assert is_waiting(held)
  run(lambda tokens: tokens.release())
  held.result(60)
  run(lambda tokens: tokens.rejoin())
  again = wait(0, 0, 4)
  assert is_waiting(again)
  run(lambda tokens: tokens.make_for_others(make_token(LIFE + 4)))
  again.result(60)
  last = wait(0, 1, 4 + LIFE)
  assert is_waiting(last)
  end_unit(run, 0, 5 + LIFE)
  last.result(60)


@pytest.mark.slow
def test_a_close_ends_each_wait_and_what_is_closed_may_be_closed_again(
  run, wait
):
  waits = wait(0, 1, 4)
  for _ in range(2):
    run(lambda tokens: tokens.close())
  with pytest.raises(tf.errors.OutOfRangeError):
    waits.result(60)
  end_unit(run, 0, 5)
  run(lambda tokens: tokens.release())


@pytest.mark.slow
def test_a_unit_is_due_until_it_is_applied(run):
  assert run(lambda tokens: tokens.units.begin(1, make_token(5)))
  assert run(lambda tokens: tokens.units.begin(1, make_token(5)))
  end_unit(run, 1, 5)
  assert not run(lambda tokens: tokens.units.begin(1, make_token(5)))
  assert run(lambda tokens: tokens.units.begin(0, make_token(5)))
  assert run(lambda tokens: tokens.units.begin(1, make_token(6)))


@pytest.mark.slow
def test_it_is_even_while_no_unit_is_begun_ahead(run):
  def look(step):
    return run(
      lambda tokens: tokens.units.build_are_even(make_token(step) - LIFE)
    )

  assert look(4) == [True, True]
  run(lambda tokens: tokens.units.begin(1, make_token(5)))
  assert look(4) == [True, False]
  assert look(5) == [True, True]


@pytest.mark.parametrize(
  'staleness, token, left, goal', [(0, 5, 2, 9), (2, 7, 0, 7)]
)
def test_who_is_late_takes_all_and_who_is_not_one(
  tf_session, staleness, token, left, goal
):
  own = tf.FIFOQueue(-1, tf.int64, ())
  tf_session.run(own.enqueue_many([[5, 6, 7]]))
  late = units._LateWait(own, tf.constant(staleness, tf.int64))
  found = late.take(), late.find_goal(tf.constant(9, tf.int64))
  assert tf_session.run(found) == (token, goal)
  assert tf_session.run(own.size()) == left


@pytest.mark.slow
def test_who_is_late_waits_for_a_token_of_the_round(tf_session):
  own = tf.FIFOQueue(-1, tf.int64, ())
  late = units._LateWait(own, tf.constant(1, tf.int64))
  goal = late.find_goal(tf.constant(9, tf.int64))
  soon = tf.RunOptions(timeout_in_ms=300)
  with pytest.raises(tf.errors.DeadlineExceededError):
    tf_session.run(goal, options=soon)
  tf_session.run(own.enqueue_many([[5]]))
  assert tf_session.run(goal) == 5
