"""round_takeover: another chief, or another center, begins a new life."""

import concurrent.futures

import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.rounds import round_hook
from tests.support import rounds
from tests.support import stepper as stepper_lib

pytestmark = pytest.mark.slow

make = rounds.make


def test_a_chief_that_comes_back_lets_go_who_waits(make):
  run = make()
  stepper = run.stepper
  assert stepper.step_together([[8], [4]]) == [(1, 0, [3])] * 2
  run.push(1, 3)
  assert not stepper.is_done(1)
  run.kill(0)
  run.come_back(0)
  assert stepper.join(1) == (1, 1, [3])  # Its contribution was thrown away.

  def work(worker):
    step = 0
    while step < 5:
      run.push(worker, 3)
      step = stepper.join(worker).global_step
    return step

  # In lock-step again.
  with concurrent.futures.ThreadPoolExecutor(2) as threads:
    steps = list(threads.map(work, range(2)))
  assert steps == [5, 5]
  assert stepper.read_center() == [3]


@pytest.mark.daily
def test_who_comes_while_the_update_is_applied_is_told_so(make):
  run = make(num_workers=3, num_contributions=2, stops_at='all')
  stepper = run.stepper
  run.push(0, 8)
  run.push(1, 8)
  run.wait_for_stop()
  # The global step is what it was, and the accumulators have moved on.
  run.push(2, 100)
  assert not stepper.is_done(2)
  run.kill(0)
  with pytest.raises(tf.errors.OpError):
    stepper.join(0)
  run.come_back(0)
  found = [stepper.join(worker) for worker in (1, 2)]
  assert found == [(0, 1, [0])] * 2
  results = run.play([[8]] * 3, 20)
  told = [staleness for each in results for _, staleness in each]
  assert told.count(0) in (40, 41)  # One may be in a round that is not over.


@pytest.mark.daily(but=['3-1-all'])
@pytest.mark.parametrize(
  'num_contributions, num_ps, stops_at',
  [(2, 2, 'one'), (3, 1, 'all'), (3, 2, 'one'), (4, 1, 'all')],
)
def test_a_chief_that_is_replaced_amid_an_update_begins_the_round_again(
  make, num_contributions, num_ps, stops_at
):
  run = make(3, num_contributions, num_ps, size=2, stops_at=stops_at)
  stepper = run.stepper
  if num_contributions == 4:
    assert stepper.step(1, [8, 8]) == (0, 0, [0, 0])
  givers = (1, 2) if num_contributions == 2 else (0, 1, 2)
  for worker in givers:
    run.push(worker, 100, 100)
  run.wait_for_stop()
  run.kill(0)
  if 0 in givers:
    with pytest.raises(tf.errors.OpError):
      stepper.join(0)
  run.come_back(0)
  for worker in (1, 2):
    assert stepper.join(worker) == (0, 1, [0, 0])
  # If one pushed twice to a round, the mean would not be that of all three.
  xs = [[6, 9], [12, 9], [18, 9]] if num_contributions == 3 else [[12, 9]] * 3
  results = run.play(xs, 3)
  assert stepper.read_center() == [10.5, 7.875]
  if num_contributions == 3:
    assert results == [[(1, 0), (2, 0), (3, 0)]] * 3


@pytest.mark.daily
@pytest.mark.parametrize('num_contributions, is_first', [(2, True), (3, False)])
def test_who_gives_while_a_chief_takes_over_gives_once(
  make, monkeypatch, num_contributions, is_first
):
  """One pushes before, or after, the new chief throws away what is there."""
  run = make(3, num_contributions)
  stepper = run.stepper
  stepper.begin(1, [100])  # At work when the chief dies.
  run.push(2, 100)
  assert not stepper.is_done(2)
  run.kill(0)
  empty = round_hook.build_emptying

  def empty_held(the_round, token):
    def stop(ops):
      taken, go = rounds.build_stop()
      with tf.control_dependencies(ops):
        is_there = taken.enqueue(True)
      with tf.control_dependencies([is_there]):
        return go.dequeue().op

    if not is_first:
      return stop([empty(the_round, token)])
    with tf.control_dependencies([stop([token])]):
      return empty(the_round, tf.identity(token))

  with monkeypatch.context() as patch:
    patch.setattr(round_hook, 'build_emptying', empty_held)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
      back = threads.submit(run.come_back, 0)
      target = stepper.workers[1].rule.raw_session.sess_str
      with tf.Graph().as_default(), tf.Session(target) as session:
        taken, go = rounds.build_stop()
        session.run(
          taken.dequeue(), options=tf.RunOptions(timeout_in_ms=60_000)
        )
        stepper.release(1)
        assert not stepper.is_done(1)
        session.run(go.enqueue(True))
      back.result(stepper_lib.DEADLINE_SECS)
  for worker in (1, 2):
    step, staleness, center = stepper.join(worker)
    assert (step, staleness >= 1, center) == (0, True, [0])
  xs = [[6], [12], [18]] if num_contributions == 3 else [[12]] * 3
  run.play(xs, 3)
  assert stepper.read_center() == [10.5]
