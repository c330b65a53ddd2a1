"""sagn: two and three workers stepped by hand, and a NumPy oracle."""

import re

import numpy as np
import pytest
from absl import flags

from distmnist import cli
from distmnist import cluster as cluster_lib
from distmnist.strategies import sagn
from tests.strategies import stepper as stepper_lib


@pytest.fixture
def make(make_stepper):
  """Returns make(num_ps=1, num_workers=2, period=2, num_gifts=n, ...)."""

  def make_sagn(num_ps=1, num_workers=2, period=2, num_gifts=None, **settings):
    return make_stepper(
      num_ps,
      num_workers,
      lambda member: sagn.Sagn(member, period, num_gifts or num_workers),
      **settings,
    )

  return make_sagn


@pytest.mark.slow
def test_two_steps_each_and_then_one_update_of_all(make):
  stepper = make()
  # x <- x - 0.5 (x - 8): 0, 4, 6 by -8 and -4; u = -6. The center stays.
  assert stepper.step(0, [8]) == (0, -1, [0])
  assert stepper.read_copy(0) == [4]
  assert stepper.read_copy(1) == [0]
  # Towards 4: 0, 2, 3 by -4 and -2; u = -3.
  assert stepper.step(1, [4]) == (0, -1, [0])
  # The mean of -6 and -3 is -4.5; w = 0 + 0.5 * 4.5 for all.
  assert stepper.step_together([[8], [4]]) == [(1, 0, [2.25])] * 2
  assert stepper.read_copy(0) == stepper.read_copy(1) == [2.25]
  # The sums start anew. At 0.25 by 2 and 1: u = 1.5. At 4.25 by -2 and -1.
  assert stepper.step(1, [4.25]) == (1, -1, [2.25])
  assert stepper.step(0, [0.25]) == (1, -1, [2.25])
  assert stepper.read_copy(0) == [1.25]
  assert stepper.read_copy(1) == [3.25]
  assert stepper.step_together([[0.25], [4.25]]) == [(2, 0, [2.25])] * 2


@pytest.mark.slow
def test_with_a_period_of_one_it_is_synchronous_sgd(make):
  stepper = make(period=1)
  # w <- w - 0.5 mean(w - x) is half the way to the mean of 8 and 4.
  assert stepper.step_together([[8], [4]]) == [(1, 0, [3])] * 2
  assert stepper.step_together([[6], [8]]) == [(2, 0, [5])] * 2


@pytest.mark.slow
def test_three_workers_make_one_mean(make):
  stepper = make(num_workers=3, period=1)
  found = stepper.step_together([[6], [12], [18]])
  assert found == [(1, 0, [6])] * 3  # 0 + 0.5 * 12
  assert [stepper.read_copy(i) for i in range(3)] == [[6]] * 3


@pytest.mark.slow
@pytest.mark.parametrize('first', [0, 1, 2])
def test_who_has_given_waits_for_the_others(make, first):
  stepper = make(num_workers=3, period=1)
  second, last = [i for i in range(3) if i != first]
  for worker in range(3):
    stepper.begin(worker, [12])
  stepper.release(first)
  assert not stepper.is_done(first)
  stepper.release(second)
  assert not stepper.is_done(first)
  assert not stepper.is_done(second)
  assert stepper.read_center() == [0]
  stepper.release(last)
  assert [stepper.join(i) for i in range(3)] == [(1, 0, [6])] * 3


@pytest.mark.slow
def test_a_slow_worker_does_its_local_steps_while_the_other_waits(make):
  stepper = make()
  stepper.step(0, [8])
  stepper.begin(0, [8])
  stepper.release(0)
  assert not stepper.is_done(0)
  assert stepper.step(1, [4]) == (0, -1, [0])
  assert not stepper.is_done(0)
  stepper.begin(1, [4])
  stepper.release(1)
  assert stepper.join(0) == stepper.join(1) == (1, 0, [2.25])


@pytest.mark.slow
def test_two_of_three_drop_the_gift_of_the_late_one(make):
  stepper = make(num_workers=3, num_gifts=2)
  for worker in range(3):
    assert stepper.step(worker, [8]) == (0, -1, [0])
  for worker in range(3):
    stepper.begin(worker, [8])
  stepper.release(0)
  assert not stepper.is_done(0)
  stepper.release(1)
  # The mean of -6 and -6: 0 + 0.5 * 6.
  assert stepper.join(0) == stepper.join(1) == (1, 0, [3])
  assert stepper.end(2) == (1, 1, [3])
  # It goes on from the center, and with a sum of nothing.
  assert stepper.read_copy(2) == [3]
  assert stepper.step(2, [7]) == (1, -1, [3])  # -4; the copy is at 5.
  assert stepper.step(1, [3]) == (1, -1, [3])
  stepper.begin(2, [7])  # -2: u = -3.
  stepper.begin(1, [3])  # u = 0.
  stepper.release(2)
  assert not stepper.is_done(2)
  stepper.release(1)
  assert stepper.join(2) == stepper.join(1) == (2, 0, [3.75])


@pytest.mark.slow
def test_a_gift_is_as_stale_as_the_rounds_that_it_missed(make):
  stepper = make(num_workers=3, period=1, num_gifts=2)

  def give(worker, x):
    stepper.begin(worker, [x])
    stepper.release(worker)

  stepper.begin(2, [100])  # Of round 0; what it has to give never counts.
  give(0, 4)
  give(1, 4)
  assert stepper.join(0) == stepper.join(1) == (1, 0, [2])
  # Each round has three tokens. That of worker 2 is left, so worker 0 need
  # not wait, and may give once more; it is worker 1 that ends the round.
  assert stepper.step(0, [4]) == (1, 0, [2])
  stepper.begin(0, [50])
  assert stepper.step(1, [4]) == (2, 0, [3])
  assert stepper.end(0) == (2, 1, [3])
  assert stepper.read_copy(0) == [3]
  assert stepper.step(0, [5]) == (2, 0, [3])
  stepper.begin(0, [50])
  assert stepper.step(1, [5]) == (3, 0, [4])
  assert stepper.end(2) == (3, 3, [4])
  assert stepper.read_copy(2) == [4]
  assert stepper.end(0) == (3, 1, [4])


@pytest.mark.slow
def test_a_gift_that_missed_two_rounds_is_told_to_be_two_stale(make):
  stepper = make(num_workers=3, period=1, num_gifts=2)
  stepper.begin(2, [100])
  assert stepper_together(stepper, {0: [4], 1: [4]}) == [(1, 0, [2])] * 2
  assert stepper.step(0, [4]) == (1, 0, [2])
  assert stepper.step(1, [4]) == (2, 0, [3])
  assert stepper.end(2) == (2, 2, [3])


def stepper_together(stepper, xs):
  """A step of the workers in `xs` ({worker: x}) at once."""
  for worker, x in xs.items():
    stepper.begin(worker, x)
  for worker in xs:
    stepper.release(worker)
  return [stepper.join(worker) for worker in xs]


@pytest.mark.slow
def test_with_more_gifts_than_workers_one_gives_several(make):
  stepper = make(period=1, num_gifts=3)
  # The one token to spare lets worker 0 give twice, each time from w = 0.
  assert stepper.step(0, [6]) == (0, 0, [0])
  assert stepper.read_copy(0) == [0]
  stepper.begin(0, [3])
  stepper.begin(1, [9])
  stepper.release(0)
  assert not stepper.is_done(0)
  stepper.release(1)
  # The mean of 6, 3 and 9 is 6.
  assert stepper.join(0) == stepper.join(1) == (1, 0, [3])
  assert stepper.step(1, [3]) == (1, 0, [3])
  assert stepper.step_together([[3], [9]]) == [(2, 0, [4])] * 2


class Oracle:
  """The rule as its docstring has it, slowly; all workers start from 0.

  Attributes:
    center: float array, x~.
    copies: list of float arrays, x^i.
    step: int, the rounds that are done.
  """

  def __init__(self, num_workers, size, period, num_gifts, rate, momentum):
    self._period, self._num_gifts = period, num_gifts
    self._rate, self._momentum = rate, momentum
    self.center, self._velocity = np.zeros(size), np.zeros(size)
    self.copies = [np.zeros(size) for _ in range(num_workers)]
    self._velocities = [np.zeros(size) for _ in range(num_workers)]
    self._gradients = [[] for _ in range(num_workers)]
    self.step, self._tokens = 0, [0] * num_workers
    self._given, self._waiting = [], {}

  def begin(self, i, x):
    self._gradients[i].append(self.copies[i] - x)

  def end(self, i):
    """Returns {worker: (global_step, staleness)} of the steps that ended."""
    g = self._gradients[i][-1]
    self._velocities[i] = self._momentum * self._velocities[i] + g
    self.copies[i] = self.copies[i] - self._rate * self._velocities[i]
    if len(self._gradients[i]) < self._period:
      return {i: (self._tokens[i], -1)}
    u, self._gradients[i] = sum(self._gradients[i]) / self._period, []
    staleness = self.step - self._tokens[i]
    self._waiting[i] = staleness
    if staleness:
      return self._let_go()
    self._given.append(u)
    if len(self._given) < self._num_gifts:
      return {}
    self._velocity = self._momentum * self._velocity + sum(self._given) / len(
      self._given
    )
    self.center = self.center - self._rate * self._velocity
    self._given, self.step = [], self.step + 1
    return self._let_go()

  def _let_go(self):
    ended = {i: (self.step, s) for i, s in self._waiting.items()}
    for i in self._waiting:
      self._tokens[i], self.copies[i] = self.step, self.center
    self._waiting = {}
    return ended


def assert_agree(stepper, oracle, copies):
  """Compares the center and the `copies`, a list of workers."""
  close = {'rtol': 1e-4, 'atol': 1e-5}
  np.testing.assert_allclose(stepper.read_center(), oracle.center, **close)
  for i in copies:
    np.testing.assert_allclose(stepper.read_copy(i), oracle.copies[i], **close)


def play(stepper, oracle, worker):
  """Ends a step here and there; returns {worker: (global_step, staleness)}."""
  expected = oracle.end(worker)
  stepper.release(worker)
  assert {i: stepper.join(i)[:2] for i in expected} == expected
  return expected


each_optimizer = pytest.mark.parametrize(
  'optimizer, momentum', [('sgd', 0), ('momentum', 0.9)]
)


@pytest.mark.slow
@each_optimizer
@pytest.mark.parametrize('num_ps', [1, 2])
def test_random_local_steps_agree_with_the_oracle(
  make, num_ps, optimizer, momentum
):
  rng = np.random.default_rng(num_ps)
  stepper = make(num_ps, 2, 3, size=5, optimizer=optimizer, rate=0.2)
  oracle = Oracle(2, 5, 3, 2, 0.2, momentum)
  at_work, waiting = set(), set()
  for _ in range(130):
    worker = int(rng.choice([i for i in range(2) if i not in waiting]))
    if worker not in at_work:
      x = rng.normal(size=5)
      oracle.begin(worker, x)
      stepper.begin(worker, x)
      at_work.add(worker)
      continue
    ended = play(stepper, oracle, worker)
    at_work.discard(worker)
    waiting = waiting - set(ended) if ended else {worker}
    assert_agree(stepper, oracle, {0, 1} - waiting)
  assert oracle.step >= 8
  for worker in at_work:  # Else the end of the session would wait for it.
    stepper.release(worker)


@pytest.mark.slow
@each_optimizer
@pytest.mark.parametrize('num_ps', [1, 2])
def test_a_random_late_worker_of_three_agrees_with_the_oracle(
  make, num_ps, optimizer, momentum
):
  rng = np.random.default_rng(num_ps)
  stepper = make(
    num_ps, 3, 2, num_gifts=2, size=5, optimizer=optimizer, rate=0.2
  )
  oracle = Oracle(3, 5, 2, 2, 0.2, momentum)

  def begin(worker):
    x = rng.normal(size=5)
    oracle.begin(worker, x)
    stepper.begin(worker, x)

  for step in range(10):
    *early, late = (int(i) for i in rng.permutation(3))
    for worker in early:
      begin(worker)
      assert play(stepper, oracle, worker) == {worker: (step, -1)}
      begin(worker)
    begin(late)
    assert play(stepper, oracle, late) == {late: (step, -1)}
    begin(late)
    assert_agree(stepper, oracle, range(3))
    assert play(stepper, oracle, early[0]) == {}
    assert sorted(play(stepper, oracle, early[1])) == sorted(early)
    assert_agree(stepper, oracle, range(3))
    assert play(stepper, oracle, late) == {late: (step + 1, 1)}
    assert_agree(stepper, oracle, range(3))


@pytest.mark.slow
def test_center_and_its_slots_are_on_the_ps_the_rest_on_the_worker(make):
  stepper = make(2, size=5, optimizer='momentum')
  for worker in stepper.workers:
    shared, local = worker.variables()
    assert shared == {
      'global_step': '/job:ps/task:0/device:CPU:0',
      'w/part_0': '/job:ps/task:1/device:CPU:0',
      'w/part_1': '/job:ps/task:0/device:CPU:0',
      'w/part_0/Momentum': '/job:ps/task:1/device:CPU:0',
      'w/part_1/Momentum': '/job:ps/task:0/device:CPU:0',
    }
    names = 'token', 'known_step', 'gradient_sum', 'local_step'
    assert local == dict.fromkeys(
      ['local_copy/w', 'local_copy/w/Momentum', *(f'sagn/{n}' for n in names)],
      f'/job:worker/task:{worker.index}/device:CPU:0',
    )


@pytest.mark.slow
def test_a_worker_that_comes_back_starts_from_the_center(make, make_cluster):
  stepper = make(2, size=5)
  stepper.step_together([[8] * 5] * 2)
  stepper.step_together([[8] * 5] * 2)
  assert stepper.read_center() == [3] * 5
  stepper.step(1, [80] * 5)
  stepper.workers[1] = stepper_lib.Worker(
    make_cluster(2, 2), 1, lambda m: sagn.Sagn(m, 2, 2), 5, 'sgd', 0.5
  )
  assert stepper.read_copy(1) == [3] * 5
  # Two steps again, and none of its gifts is taken for an old one.
  assert stepper.step_together([[3] * 5] * 2) == [(1, -1, [3] * 5)] * 2
  assert stepper.step_together([[3] * 5] * 2) == [(2, 0, [3] * 5)] * 2


@pytest.mark.slow
def test_bytes_are_moved_at_the_end_of_a_round_only(make):
  stepper = make(2, size=5)
  stepper.step_together([[8] * 5] * 2)
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (0, 0)
  stepper.step_together([[8] * 5] * 2)
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (20, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
  'words, period, num_gifts',
  [
    ([], 5, 2),
    (['--communication_period=2'], 2, 2),
    (['--communication_period=2', '--replicas_to_aggregate=1'], 2, 1),
    (['--communication_period=1', '--replicas_to_aggregate=3'], 1, 3),
  ],
)
def test_the_flags_reach_the_rule(
  make_stepper, set_flags, words, period, num_gifts
):
  set_flags(*words)
  stepper = make_stepper(1, 2, sagn.make)
  for worker in stepper.workers:
    assert worker.rule.batches_per_update == period * num_gifts
    assert worker.rule.max_staleness == 0
  for _ in range(period - 1):
    assert stepper.step(0, [0]) == (0, -1, [0])
  stepper.begin(0, [8])
  stepper.release(0)
  if num_gifts == 2:
    assert not stepper.is_done(0)
    for _ in range(period - 1):
      stepper.step(1, [0])
    assert stepper.step(1, [0])[:2] == (1, 0)
  assert stepper.join(0)[1] == 0


@pytest.mark.parametrize(
  'word, message',
  [
    ('--communication_period=0', 'communication_period=0'),
    ('--communication_period=x', 'communication_period=x'),
    ('--replicas_to_aggregate=0', 'replicas_to_aggregate=0'),
  ],
)
def test_a_period_or_a_number_of_gifts_below_one_is_refused(
  set_flags, word, message
):
  with pytest.raises(flags.IllegalFlagValueError, match=message):
    set_flags(word)


def test_several_workers_without_a_ps_are_refused():
  member = cluster_lib.make_cluster((), ('w0:1', 'w1:1'), 'worker', 0)
  message = '2 workers but no ps: this strategy keeps its variables on a ps'
  with pytest.raises(cli.UsageError, match=f'^{re.escape(message)}'):
    sagn.Sagn(member, 2, 2)
