"""sync_round: which contributions are in a round, and which come too late."""

import pytest
import tensorflow.compat.v1 as tf

from tests.support import rounds

pytestmark = pytest.mark.slow

make = rounds.make


# All three: the oracle of sync_sgd.
@pytest.mark.daily(but=['2'])
@pytest.mark.parametrize('num_contributions', [1, 2])
def test_a_round_is_over_after_its_contributions_and_drops_what_comes_later(
  make, num_contributions
):
  run = make(num_workers=3, num_contributions=num_contributions)
  stepper = run.stepper
  late = range(num_contributions, 3)
  for worker in late:
    stepper.begin(worker, [100])
  for worker in range(num_contributions):
    run.push(worker, 8)
  for worker in range(num_contributions):
    assert stepper.join(worker) == (1, 0, [4])
  for worker in late:
    assert stepper.end(worker) == (1, 1, [4])
    assert stepper.read_copy(worker) == [4]
  # None of the three tokens of the round is left over.
  run.push(2, 4)
  if num_contributions > 1:
    assert not stepper.is_done(2)
  for worker in range(num_contributions - 1):
    run.push(worker, 4)
  assert stepper.join(2) == (2, 0, [4])
  for worker in range(num_contributions - 1):
    assert stepper.join(worker) == (2, 0, [4])
  # Nor does a worker that leaves in order touch a round.
  for worker in range(num_contributions - 1, 2):
    assert stepper.step(worker, [100]) == (2, 1, [4])
  run.leave(2)
  for worker in range(num_contributions):
    run.push(worker, 8)
  for worker in range(num_contributions):
    assert stepper.join(worker) == (3, 0, [6])


def test_a_contribution_that_was_not_counted_holds_up_no_round(make):
  run = make(num_workers=3, num_contributions=2)
  stepper = run.stepper
  token = int(
    stepper.workers[2].session.run(stepper.workers[2].rule.round.token)
  )
  # Killed between push and count.
  run.push_uncounted(-8.0, token)
  run.kill(2)
  run.push(0, 8)
  assert stepper.join(0) == (1, 0, [4])
  # The other two come with tokens of the next round.
  run.kill(1)
  run.come_back(1)
  run.come_back(2)
  run.push(1, 8)
  run.push(2, 8)
  # One of them may go on with a token that the killed one has left.
  assert [stepper.join(worker).staleness for worker in (1, 2)] == [0, 0]
  assert stepper.read_center() == [6]


def test_a_slow_worker_costs_the_others_no_contribution(make):
  run = make(num_workers=3, num_contributions=2)
  stepper = run.stepper
  stepper.begin(2, [100])
  for step, center in enumerate((4, 6, 7, 7.5), 1):
    for worker in (0, 1):
      run.push(worker, 8)
    for worker in (0, 1):
      assert stepper.join(worker) == (step, 0, [center])
  assert stepper.end(2) == (4, 4, [7.5])
  # It goes on with the current token.
  run.push(2, 8)
  assert not stepper.is_done(2)
  run.push(1, 8)
  assert stepper.join(1) == stepper.join(2) == (5, 0, [7.75])
  assert stepper.step(0, [100]) == (5, 1, [7.75])


def test_one_that_died_in_its_wait_is_not_in_its_round_twice(make):
  run = make(num_workers=3, num_contributions=2)
  stepper = run.stepper
  run.push(2, 8)
  assert not stepper.is_done(2)
  run.kill(2)
  run.come_back(2)
  run.push(2, 100)
  assert not stepper.is_done(2)
  run.push(0, 4)
  assert stepper.join(0) == (1, 0, [3])
  assert stepper.join(2) == (1, 1, [3])
  # It comes back when the others have gone on, and begins where they are.
  run.kill(2)
  assert stepper.step(1, [3]) == (1, 1, [3])
  for step in (2, 3):
    for worker in (0, 1):
      run.push(worker, 3)
    for worker in (0, 1):
      assert stepper.join(worker) == (step, 0, [3])
  run.come_back(2)
  run.push(2, 7)
  run.push(0, 3)
  assert stepper.join(0) == stepper.join(2) == (4, 0, [4])


def test_with_two_contributions_to_spare_a_worker_makes_three(make):
  run = make(num_contributions=4)
  stepper = run.stepper
  assert stepper.step(0, [4]) == (0, 0, [0])
  assert stepper.step(0, [4]) == (0, 0, [0])
  run.push(0, 4)
  assert not stepper.is_done(0)
  run.push(1, 20)
  assert stepper.join(0) == stepper.join(1) == (1, 0, [4])  # 0.5 * 32 / 4
  # Two tokens of this round are to spare again.
  assert stepper.step(1, [4]) == (1, 0, [4])
  assert stepper.step(1, [4]) == (1, 0, [4])
  assert stepper.step_together([[4], [12]]) == [(2, 0, [5])] * 2


def test_a_token_left_over_from_a_lost_center_tells_the_step_of_now(make):
  run = make(num_workers=3, num_contributions=2, first_step=7)
  stepper = run.stepper
  target = stepper.workers[0].rule.raw_session.sess_str
  # A ps was lost while a token of a later step was on its way.
  with tf.Graph().as_default(), tf.device('/job:ps/task:0/device:CPU:0'):
    queue = tf.FIFOQueue(-1, tf.int64, (), shared_name='round/tokens_0')
    put = queue.enqueue(tf.constant(99, tf.int64))
  with tf.Session(target, graph=put.graph) as session:
    session.run(put)
  for worker in range(3):
    run.push(worker, 8)
  steps = [stepper.join(worker).global_step for worker in range(3)]
  assert {*steps} <= {7, 8}
