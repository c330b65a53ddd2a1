"""ad_psgd: two workers stepped by hand, peers that are gone, and an oracle."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.peers import meetings
from distmnist.nn import optimizers
from distmnist.strategies import ad_psgd
from tests.support import in_process, oracles, rule

CENTER = meetings.CENTER


@pytest.fixture
def make(make_stepper, monkeypatch):
  """Returns make(peers, period=1, ...) -> a Stepper of two workers.

  peers is {worker: [what its exchanges are with]}; from then on it is CENTER.
  """

  def make(peers, period=1, num_ps=1, **settings):
    def choose(worker, number, num_workers):
      del num_workers
      of_worker = peers.get(worker, [])
      return of_worker[number - 1] if number <= len(of_worker) else CENTER

    monkeypatch.setattr(meetings, 'choose', choose)
    return make_stepper(
      num_ps, 2, lambda member: ad_psgd.AdPsgd(member, period), **settings
    )

  return make


@pytest.mark.slow
def test_two_workers_and_the_center_average_two_by_two(make):
  stepper = make({0: [1, CENTER, 1], 1: [0, CENTER]})
  # An average of equals; then x^0 = 0 + 0.5 * 8.
  assert stepper.step(0, [8]) == (1, 0, [0])
  assert stepper.read_copies() == [[4], [0]]
  # d = (0 - 4) / 2, so both have 2; g = 0 - 4 is of the x before.
  assert stepper.step(1, [4]) == (2, 1, [0])
  assert stepper.read_copies() == [[2], [4]]
  # With the center: d = (2 - 0) / 2; g = 2 - 8.
  assert stepper.step(0, [8]) == (3, 1, [1])
  assert stepper.read_copies() == [[4], [4]]
  # d = (4 - 1) / 2; g = 4 - 6.
  assert stepper.step(1, [6]) == (4, 1, [2.5])
  assert stepper.read_copies() == [[4], [3.5]]
  # d = (4 - 3.5) / 2; g = 0.
  assert stepper.step(0, [4]) == (5, 1, [2.5])
  assert stepper.read_copies() == [[3.75], [3.75]]


@pytest.mark.slow
def test_between_exchanges_a_worker_is_alone(make):
  stepper = make({0: [1]}, period=2)
  assert stepper.step(0, [8]) == (0, -1, [0])
  assert stepper.read_copies() == [[4], [0]]
  assert stepper.step(0, [4]) == (1, 0, [0])
  assert stepper.read_copies() == [[2], [2]]
  assert stepper.step(0, [8]) == (1, -1, [0])
  assert stepper.read_copies() == [[5], [2]]


@pytest.mark.slow
def test_a_gradient_is_of_the_copy_before_others_have_come(make):
  stepper = make({1: [0]})
  assert stepper.step(0, [8]) == (1, 0, [0])  # x^0 = 4
  stepper.begin(0, [6])  # g = 4 - 6
  assert stepper.step(1, [0]) == (2, 1, [0])
  assert stepper.read_copies() == [[2], [2]]
  # With the center: 2 and 0 have the mean 1; then 1 + 0.5 * 2.
  assert stepper.end(0) == (3, 1, [1])
  assert stepper.read_copies() == [[2], [2]]


@pytest.mark.slow
def test_both_workers_count_the_bytes_of_an_exchange(make):
  stepper = make({0: [1, 1]}, size=5)
  x = [1] * 5
  for _ in range(2):
    stepper.step(0, x)
    assert (stepper.bytes_pulled, stepper.bytes_pushed) == (20, 20)
  # Its own with the center, and two that worker 0 has begun.
  stepper.step(1, x)
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (60, 60)
  stepper.step(1, x)
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (20, 20)


@pytest.mark.slow
@pytest.mark.parametrize('wire_dtype', ['float32', 'bfloat16'])
def test_exchanges_keep_the_sum_of_all_copies(make, wire_dtype):
  stepper = make(
    {0: [1, CENTER] * 9, 1: [CENTER, 0, 0] * 6}, size=5, wire_dtype=wire_dtype
  )
  rng = np.random.default_rng(0)
  for worker in (0, 1, 1, 0, 1):
    stepper.step(worker, rng.normal(size=5))

  def find_sum():
    return np.sum([stepper.read_center(), *stepper.read_copies()], 0)

  expected, before = find_sum(), stepper.read_copies()
  for worker in rng.integers(2, size=9):
    stepper.step(worker, stepper.read_copy(worker))  # Its gradient is 0.
  np.testing.assert_allclose(find_sum(), expected, atol=1e-5)
  assert np.ptp(stepper.read_copies(), 0).max() < np.ptp(before, 0).max()


@pytest.mark.slow
def test_a_worker_that_begins_anew_is_met_again(make):
  stepper = make({0: [1] * 9})
  stepper.step(0, [8])
  assert stepper.read_copies() == [[4], [0]]
  stepper.leave(1)
  stepper.come_back(1)
  assert stepper.step(0, [4]) == (2, 0, [0])
  assert stepper.read_copies() == [[2], [2]]


@pytest.mark.slow
def test_a_step_and_what_others_add_do_not_undo_each_other(tf_session):
  # TensorFlow locks a variable of which all is updated, also without
  # --use_locking.
  w = tf.get_variable('w', [500_000], use_resource=True)
  optimizer = optimizers.make_optimizer('sgd', 1.0)
  ops = (
    optimizer.apply_gradients([(tf.fill([500_000], -1.0), w)]),
    w.assign_add(tf.fill([500_000], 1000.0), read_value=False),
  )
  tf_session.run(w.assign(tf.zeros_like(w)).op)

  def run(op):
    for _ in range(200):
      tf_session.run(op)

  threads = [in_process.start_thread(lambda op=op: run(op)) for op in ops]
  for thread in threads:
    thread.join()
  assert set(tf_session.run(w)) == {200 * 1001}


class Oracle(oracles.Oracle):
  """Algorithm 1 of the paper with T; the center is one more node."""

  def __init__(self, communication_period, **how):
    super().__init__(**how)
    self._period = communication_period

  def end(self, i):
    told = self.known_step[i], -1
    number, left = divmod(self.local_steps[i] + 1, self._period)
    if not left:
      self._average(i, meetings.choose(i, number, self.num_workers))
      told = self.count(i)
      self.pulled_step[i] = self.step
    self.step_locally(i)
    return {i: told}

  def _average(self, i, j):
    if j == CENTER:
      d = self.wire((self.copies[i] - self.wire(self.center)) / 2)
      self.center = self.center + d
    else:
      d = self.wire((self.wire(self.copies[i]) - self.copies[j]) / 2)
      self.copies[j] = self.copies[j] + d
    self.copies[i] = self.copies[i] - d


def every(period):
  return {'communication_period': period}


RULE = rule.Rule(
  ad_psgd.AdPsgd,
  Oracle,
  flags=('--communication_period=2',),
  settings=every(2),
  placement=[
    rule.Placement(
      ['{w}'],
      [
        'local_copy/w',
        'local_copy/w/Momentum',
        'ad_psgd/known_step',
        'ad_psgd/local_step',
        'ad_psgd/num_visits',
      ],
    )
  ],
  traffic=[
    rule.Traffic([(20, 20)] * 4),
    rule.Traffic([(0, 0), (0, 0), (20, 20)] * 2, every(3)),
  ],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, every(period), staleness, rate=0.1)
    for num_ps, optimizer, period, staleness in (
      (1, 'sgd', 1, {0, 1, 2}),
      (2, 'momentum', 3, {-1, 0, 1}),
    )
  ],
)


@pytest.mark.slow
def test_the_flag_reaches_the_rule(set_flags, make_stepper):
  set_flags('--communication_period=3')
  stepper = make_stepper(1, 2, ad_psgd.make, size=5)
  assert stepper.workers[0].rule.batches_per_update == 3
  found = rule.read_traffic(stepper, 3)
  assert found == [(0, 0), (0, 0), (20, 20)]


def test_by_default_each_step_has_an_exchange(set_flags, monkeypatch):
  set_flags()
  assert rule.read_made_with(monkeypatch, ad_psgd, 'AdPsgd') == (1,)
