"""round_hook: workers that come, leave and die; a waiting one is let go."""

import pytest
import tensorflow.compat.v1 as tf

from tests.support import rounds
from tests.support import stepper as stepper_lib

make = rounds.make


@pytest.mark.daily
@pytest.mark.slow
def test_those_who_come_back_are_told_the_step_and_give_once(make):
  run = make(num_workers=3)
  stepper = run.stepper

  def push(workers, x):
    for worker in workers:
      run.push(worker, x)

  def check_all(step, center):
    found = [stepper.join(worker) for worker in range(3)]
    assert found == [(step, 0, [center])] * 3

  push((0, 1, 2), 8)
  check_all(1, 4)
  run.kill(1)
  push((0, 2), 7)
  assert not stepper.is_done(0)  # All wait for one that has died.
  run.come_back(1)
  run.push(1, 4)
  check_all(2, 5)
  # One dies in its wait: it counts, and has not been told so.
  push((1, 2), 11)
  assert not stepper.is_done(1)
  run.kill(1)
  run.push(0, 5)
  assert stepper.join(0) == stepper.join(2) == (3, 0, [7])
  # With the token of worker 1 one of the two would push once more.
  push((0, 2), 7)
  assert not stepper.is_done(0)
  assert not stepper.is_done(2)
  run.come_back(1)
  run.push(1, 10)
  check_all(4, 7.5)
  # The token meant for one that died is taken when it is back.
  run.push(1, 10.5)
  assert not stepper.is_done(1)
  run.kill(1)
  push((0, 2), 6)
  assert stepper.join(0) == stepper.join(2) == (5, 0, [7.5])
  run.come_back(1)
  run.push(1, 9.5)
  assert not stepper.is_done(1)  # It is not a contribution ahead.
  push((0, 2), 5)
  check_all(6, 7)


@pytest.mark.slow
def test_a_chief_that_leaves_lets_go_who_waits_and_the_next_one_ends_too(make):
  run = make()
  stepper = run.stepper
  run.push(1, 8)
  assert not stepper.is_done(1)
  run.leave(0)
  assert stepper.join(1) == (0, 1, [0])
  # As one that was killed while it waited for the others, or saved.
  run.come_back(0)
  run.push(0, 8)
  with pytest.raises(tf.errors.OutOfRangeError, match='is closed'):
    stepper.join(0)


@pytest.mark.daily
@pytest.mark.slow
def test_who_is_asked_to_stop_gets_out_and_a_chief_can_come_back(make):
  run = make()
  stepper = run.stepper
  run.push(0, 8)
  assert not stepper.is_done(0)
  stop = stepper.workers[0].rule.stop
  stop.secs_left = 1.0  # Its end waits in vain for the other one.
  threads = stop.request()
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
  # Another worker gets out of its wait without a step.
  run.push(1, 8)
  assert not stepper.is_done(1)
  for thread in stepper.workers[1].rule.stop.request():
    thread.join(stepper_lib.DEADLINE_SECS)
  with pytest.raises(tf.errors.CancelledError):
    stepper.join(1)
  run.kill(1)


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


@pytest.mark.daily(but=['3'])
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
