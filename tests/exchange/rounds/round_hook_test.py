"""round_hook: workers that come, leave and die; a waiting one is let go."""

import pytest
import tensorflow.compat.v1 as tf

from tests.support import rounds
from tests.support import stepper as stepper_lib

make = rounds.make


@pytest.mark.slow
def test_a_worker_that_comes_back_is_told_the_current_step(make):
  run = make()
  stepper = run.stepper
  assert stepper.step_together([[8], [4]]) == [(1, 0, [3])] * 2
  run.kill(1)
  run.push(0, 3)
  assert not stepper.is_done(0)  # All wait for one that has died.
  run.come_back(1)
  run.push(1, 7)
  assert stepper.join(0) == stepper.join(1) == (2, 0, [4])


@pytest.mark.slow
def test_a_worker_that_died_in_its_wait_takes_the_token_meant_for_it(make):
  run = make()
  stepper = run.stepper
  run.push(1, 8)
  assert not stepper.is_done(1)
  run.kill(1)  # Its contribution counts, and it has not been told so.
  run.push(0, 4)
  assert stepper.join(0) == (1, 0, [3])
  run.come_back(1)
  run.push(1, 7)
  assert not stepper.is_done(1)  # It is not a contribution ahead.
  run.push(0, 3)
  assert stepper.join(0) == stepper.join(1) == (2, 0, [4])


@pytest.mark.slow
def test_nobody_takes_the_token_of_a_worker_that_died_in_its_wait(make):
  run = make(num_workers=3)
  stepper = run.stepper
  run.push(1, 8)
  run.push(2, 8)
  assert not stepper.is_done(1)
  run.kill(1)
  run.push(0, 8)
  assert stepper.join(0) == stepper.join(2) == (1, 0, [4])
  for worker in (0, 2):
    run.push(worker, 4)
  # With the token of worker 1 one of the two would push once more.
  assert not stepper.is_done(0)
  assert not stepper.is_done(2)
  run.come_back(1)
  run.push(1, 4)
  assert [stepper.join(i) for i in range(3)] == [(2, 0, [4])] * 3


@pytest.mark.slow
def test_a_chief_that_leaves_in_order_lets_go_who_waits(make):
  run = make()
  stepper = run.stepper
  run.push(1, 8)
  assert not stepper.is_done(1)
  run.leave(0)
  assert stepper.join(1) == (0, 1, [0])


@pytest.mark.slow
def test_a_worker_that_leaves_in_order_touches_no_round(make):
  run = make(num_workers=3, num_contributions=2)
  stepper = run.stepper
  run.leave(2)
  for worker in (0, 1):
    run.push(worker, 8)
  for worker in (0, 1):
    assert stepper.join(worker) == (1, 0, [4])


@pytest.mark.slow
def test_a_worker_that_is_asked_to_stop_gets_out_of_its_wait(make):
  run = make()
  stepper = run.stepper
  run.push(1, 8)
  assert not stepper.is_done(1)
  for thread in stepper.workers[1].rule.stop.request():
    thread.join(stepper_lib.DEADLINE_SECS)
  with pytest.raises(tf.errors.CancelledError):
    stepper.join(1)
  run.kill(1)


@pytest.mark.slow
def test_a_chief_that_is_asked_to_stop_gets_out_and_can_come_back(make):
  run = make()
  stepper = run.stepper
  run.push(0, 8)
  assert not stepper.is_done(0)
  threads = stepper.workers[0].rule.stop.request()
  assert stepper.join(0) == (0, 1, [0])
  run.leave(0)
  for thread in threads:
    thread.join(stepper_lib.DEADLINE_SECS)
    assert not thread.is_alive()
  # The token queue is still open for the next chief, and the round is begun
  # again: what the old one pushed does not count.
  run.come_back(0)
  # What the other one pushes for tokens of the old chief does not count either.
  run.push(1, 8)
  while stepper.is_done(1):
    assert stepper.join(1) == (0, 1, [0])
    run.push(1, 8)
  run.push(0, 4)
  assert stepper.join(0) == stepper.join(1) == (1, 0, [3])


@pytest.mark.slow
def test_an_error_of_the_update_reaches_the_chief_that_waits(make):
  run = make(is_broken=True)
  stepper = run.stepper
  run.push(0, 8)
  run.push(1, 4)
  with pytest.raises(tf.errors.OpError):
    stepper.join(0)
  run.kill(0)


@pytest.mark.slow
def test_while_a_chief_leaves_the_wait_nobody_gives_twice(make):
  run = make(num_workers=3)
  stepper = run.stepper
  run.push(0, 100)
  run.push(1, 100)
  assert not stepper.is_done(0)
  run.stepper.workers[0].rule.stop.request()
  stepper.join(0)
  # The chief has a token, worker 1 must wait for worker 2.
  assert not stepper.is_done(1)
  run.leave(0)
  assert stepper.join(1) == (0, 1, [0])
  run.push(1, 100)
  # With those before there are R, and nothing takes them.
  assert stepper.step(2, [100]) == (0, 1, [0])
  run.push(2, 100)
  assert not stepper.is_done(2)
  assert stepper.read_center() == [0]
  run.come_back(0)
  for worker in (1, 2):
    assert stepper.join(worker) == (0, 1, [0])
  assert run.play([[6], [12], [18]], 1) == [[(1, 0)]] * 3
  assert stepper.read_center() == [6]


@pytest.mark.slow
@pytest.mark.parametrize('num_workers', [2, 3])
def test_a_chief_gets_out_of_a_run_of_several_steps(make, num_workers):
  run = make(num_workers, num_contributions=2, steps_per_run=3)
  stepper = run.stepper
  for worker in range(2):
    run.push(worker, 8)
  for worker in range(2):
    stepper.begin(worker, [100])
  assert stepper.read_center() == [4]
  stepper.release(0)
  run.kill(1)
  threads = stepper.workers[0].rule.stop.request()
  stepper.begin(0, [100])
  stepper.release(0)
  stepper.join(0)
  run.leave(0)
  for thread in threads:
    thread.join(stepper_lib.DEADLINE_SECS)
  # It has pushed twice more, and to this round once.
  assert stepper.read_center() == [4]
