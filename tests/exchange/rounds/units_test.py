"""units: one token of each unit for each token of the round."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_entry, units

PS = [f'/job:ps/task:{i}/device:CPU:0' for i in range(2)]
LIFE = round_entry.LIFE
CPU = '/device:CPU:0'


@pytest.fixture
def run(make_cluster):
  """Returns run(build, step), which runs what `build(UnitTokens)` has built.

  The global_step is then `step`, in life 0; worker 0 runs it. R is 2 of 2.
  """
  cluster = make_cluster(2, 2)

  def build_and_run(build, step=4, num_contributions=2):
    with tf.Graph().as_default():
      with tf.device(PS[0]):
        global_step = tf.train.get_or_create_global_step()
      member = cluster.worker(0)
      entry = round_entry.Entry(
        member, num_contributions, global_step, has_places=True
      )
      tokens = units.UnitTokens(member, num_contributions, entry, PS[0], PS)
      fetch = build(tokens)
      with tf.Session(cluster.servers[0].target) as session:
        session.run(global_step.assign(step))
        return session.run(fetch)

  return build_and_run


def count(tokens):
  return [[q.size() for q in queues] for queues in tokens.units._queues]


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


@pytest.fixture
def run_units(make_cluster):
  """Returns run(build), which runs what `build(Units)` has built."""
  target = make_cluster(2, 2).servers[0].target

  def build_and_run(build):
    with tf.Graph().as_default(), tf.Session(target) as session:
      return session.run(build(units.Units(2, [PS[0], PS[1], PS[0]])))

  return build_and_run


def count_units(them):
  return [[queue.size() for queue in queues] for queues in them._queues]


def test_what_is_due_is_put_and_an_own_queue_emptied(run_units):
  run_units(lambda them: them.put_one(1))
  run_units(lambda them: them.put_where(PS[0], [1], tf.constant([False, True])))
  assert run_units(count_units) == [[0, 0], [1, 1], [0, 1]]
  run_units(lambda them: them.take(1, worker=0))
  run_units(lambda them: them.empty(PS[0], worker=1))
  assert run_units(count_units) == [[0, 0], [0, 1], [0, 0]]
  run_units(lambda them: them.offer(0, 3))
  assert run_units(count_units) == [[3, 0], [3, 1], [3, 0]]


def test_what_is_closed_gets_nothing_and_may_be_closed_again(run_units):
  run_units(lambda them: them.close())
  run_units(lambda them: them.close())
  run_units(lambda them: them.put_where(PS[0], [0], tf.constant([True, True])))
  with pytest.raises(tf.errors.OutOfRangeError):
    run_units(lambda them: them.take(0, worker=0))


@pytest.fixture
def run_at_4(run_units):
  """As run_units, of units that begin at step 4."""
  run_units(
    lambda them: [them.reset(place, make_step(LIFE + 4)) for place in PS]
  )
  return run_units


def make_step(number):
  return tf.constant(number, tf.int64)


def test_a_unit_is_due_until_it_is_applied(run_at_4):
  assert run_at_4(lambda them: them.begin(2, make_step(5)))
  assert run_at_4(lambda them: them.begin(2, make_step(5)))
  run_at_4(
    lambda them: them.end(2, tf.stack([make_step(5), make_step(LIFE + 5)]))
  )
  assert not run_at_4(lambda them: them.begin(2, make_step(5)))
  assert run_at_4(lambda them: them.begin(0, make_step(5)))
  assert run_at_4(lambda them: them.begin(2, make_step(6)))


def test_tokens_are_noted_a_unit_or_a_ps(run_at_4):
  run_at_4(
    lambda them: them.end(2, tf.stack([make_step(5), make_step(LIFE + 5)]))
  )
  found = run_at_4(lambda them: them.find_handed(PS[0]))
  assert found.tolist() == [LIFE + 4, LIFE + 5]
  run_at_4(lambda them: them.note_handed(PS[0], make_step(LIFE + 7)))
  found = run_at_4(lambda them: [them.find_handed(place) for place in PS])
  assert [x.tolist() for x in found] == [[LIFE + 7] * 2, [LIFE + 4]]


@pytest.mark.parametrize(
  'staleness, token, left, unit_left', [(0, 5, 2, 1), (2, 7, 0, 0)]
)
def test_who_is_late_takes_all_and_who_is_not_one(
  tf_session, staleness, token, left, unit_left
):
  own = tf.FIFOQueue(-1, tf.int64, ())
  of_unit = tf.FIFOQueue(-1, tf.bool, ())
  tf_session.run(own.enqueue_many([[5, 6, 7]]))
  tf_session.run(of_unit.enqueue_many([[True, True]]))
  wait = units._LateWait(own, CPU, tf.constant(staleness, tf.int64))
  fetches = wait.take(), wait.take_of_unit(of_unit)
  assert tf_session.run(fetches)[0] == token
  assert tf_session.run([own.size(), of_unit.size()]) == [left, unit_left]


@pytest.mark.slow
def test_who_is_late_waits_for_a_token_of_the_round_and_not_of_units(
  tf_session,
):
  own = tf.FIFOQueue(-1, tf.int64, ())
  of_unit = tf.FIFOQueue(-1, tf.bool, ())
  late = tf.placeholder(tf.int64, [])
  wait = units._LateWait(own, CPU, late)
  fetches = wait.take(), wait.take_of_unit(of_unit)
  soon = tf.RunOptions(timeout_in_ms=300)
  with pytest.raises(tf.errors.DeadlineExceededError):
    tf_session.run(fetches, {late: 1}, options=soon)
  tf_session.run(own.enqueue_many([[5]]))
  assert tf_session.run(fetches, {late: 1})[0] == 5
  # One that is not waits for each.
  tf_session.run(own.enqueue_many([[6]]))
  with pytest.raises(tf.errors.DeadlineExceededError):
    tf_session.run(fetches, {late: 0}, options=soon)


def test_it_is_even_while_no_unit_is_begun_ahead(run_at_4):
  assert run_at_4(lambda them: them.build_are_even(make_step(4))) == [True] * 2
  run_at_4(lambda them: them.begin(1, make_step(5)))
  found = run_at_4(lambda them: them.build_are_even(make_step(4)))
  assert found == [True, False]
  assert run_at_4(lambda them: them.build_are_even(make_step(5))) == [True] * 2
