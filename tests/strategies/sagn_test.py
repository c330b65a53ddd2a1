"""sagn: three workers stepped by hand, and a NumPy oracle."""

import numpy as np
import pytest

from distmnist.cluster import cluster
from distmnist.strategies import sagn
from tests.support import oracles, rule


@pytest.mark.slow
def test_who_has_pushed_waits_for_the_others_and_all_get_the_mean(make_stepper):
  stepper = make_stepper(1, 3, RULE.make_with(rounds(1, 3)))
  for worker, x in enumerate([6, 12, 18]):
    stepper.begin(worker, [x])
  stepper.release(2)
  assert not stepper.is_done(2)
  stepper.release(0)
  assert not stepper.is_done(2)
  assert not stepper.is_done(0)
  assert stepper.read_center() == [0]
  stepper.release(1)
  # 0 + 0.5 * 12
  assert [stepper.join(i) for i in range(3)] == [(1, 0, [6])] * 3
  assert stepper.read_copies() == [[6]] * 3


@pytest.mark.daily(but=['2'])
@pytest.mark.slow
@pytest.mark.parametrize('num_missed', [2, 3])
def test_a_push_is_as_stale_as_the_rounds_that_it_missed(
  make_stepper, num_missed
):
  stepper = make_stepper(1, 3, RULE.make_with(rounds(1, 2)))
  stepper.begin(2, [100])  # Of round 0; what it contributes never counts.
  # The tokens of worker 2 are of no use to the others, which stay in step.
  for step, center in enumerate([2, 3, 3.5][:num_missed], 1):
    found = stepper_together(stepper, {0: [4], 1: [4]})
    assert found == [(step, 0, [center])] * 2
  assert stepper.end(2) == (num_missed, num_missed, [center])
  assert stepper.read_copy(2) == [center]
  found = stepper_together(stepper, {0: [center], 2: [center]})
  assert found == [(num_missed + 1, 0, [center])] * 2


def stepper_together(stepper, xs):
  """A step of the workers in `xs` ({worker: x}) at once."""
  for worker, x in xs.items():
    stepper.begin(worker, x)
  for worker in xs:
    stepper.release(worker)
  return [stepper.join(worker) for worker in xs]


class Oracle(oracles.Oracle):
  """Each T-th step pushes the mean u of T gradients; R of these an update."""

  waits = True

  def __init__(self, period, num_contributions, **how):
    super().__init__(**how)
    self._period, self._num_contributions = period, num_contributions
    self._gradients = [[] for _ in range(self.num_workers)]
    self._pushed, self._waiting = [], {}

  def start_anew(self, i, x):
    super().start_anew(i, x)
    self._gradients[i] = []

  def end(self, i):
    self._gradients[i].append(self.step_locally(i))
    if len(self._gradients[i]) < self._period:
      return {i: (self.known_step[i], -1)}
    u, self._gradients[i] = sum(self._gradients[i]) / self._period, []
    staleness = self.step - self.pulled_step[i]
    self._waiting[i] = staleness
    if staleness:
      return self._let_go()
    self._pushed.append(self.wire(u))
    if len(self._pushed) < self._num_contributions:
      return {}
    mean, self._pushed = sum(self._pushed) / len(self._pushed), []
    self.center = self.optimizer(self.center, mean, self.step)
    self.step += 1
    return self._let_go()

  def _let_go(self):
    ended = {i: (self.step, s) for i, s in self._waiting.items()}
    self._waiting = {}
    for i in ended:
      self.pull(i)
    return ended


def rounds(period, num_contributions=2):
  return {'period': period, 'num_contributions': num_contributions}


RULE = rule.Rule(
  lambda member, period, num_contributions: sagn.Sagn(
    member, period, num_contributions
  ),
  Oracle,
  flags=('--communication_period=2',),
  settings=rounds(2),
  placement=[
    rule.Placement(
      ['{w}', '{w}/Momentum'],
      [
        'local_copy/w',
        'local_copy/w/Momentum',
        'sagn/token',
        'sagn/known_step',
        'sagn/gradient_sum',
        'sagn/local_step',
      ],
      rounds(2),
    )
  ],
  traffic=[rule.Traffic([(0, 0), (20, 20)], rounds(2), is_together=True)],
  random_steps=[
    rule.RandomSteps(num_ps, optimizer, rounds(3), {-1, 0})
    for num_ps, optimizer in ((1, 'sgd'), (2, 'momentum'))
  ],
)


@pytest.mark.slow
def test_a_random_late_worker_of_three_agrees_with_the_oracle(make_stepper):
  rng = np.random.default_rng(2)
  stepper = make_stepper(
    *(2, 3, RULE.make_with(rounds(2, 2))),
    size=5,
    optimizer='momentum',
    rate=0.2,
  )
  oracle = Oracle(2, 2, num_workers=3, rate=0.2, momentum=0.9)

  def begin(worker):
    x = rng.normal(size=5)
    oracle.begin(worker, x)
    stepper.begin(worker, x)

  for step in range(8):
    *early, late = (int(i) for i in rng.permutation(3))
    for worker in early:
      begin(worker)
      assert oracles.end(stepper, oracle, worker) == {worker: (step, -1)}
      begin(worker)
    begin(late)
    assert oracles.end(stepper, oracle, late) == {late: (step, -1)}
    begin(late)
    oracles.check(stepper, oracle, range(3))
    assert oracles.end(stepper, oracle, early[0]) == {}
    assert sorted(oracles.end(stepper, oracle, early[1])) == sorted(early)
    oracles.check(stepper, oracle, range(3))
    assert oracles.end(stepper, oracle, late) == {late: (step + 1, 1)}
    oracles.check(stepper, oracle, range(3))


@pytest.mark.parametrize(
  'words, period, num_contributions',
  [
    ([], 5, 2),
    (['--communication_period=2'], 2, 2),
    (['--communication_period=2', '--replicas_to_aggregate=1'], 2, 1),
    (['--communication_period=1', '--replicas_to_aggregate=3'], 1, 3),
  ],
)
def test_the_flags_reach_the_rule(
  set_flags, monkeypatch, words, period, num_contributions
):
  set_flags(*words)
  member = cluster.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 0)
  made = sagn.make(member)
  assert made.batches_per_update == period * num_contributions
  assert made.max_staleness == 0
  found = rule.read_made_with(monkeypatch, sagn, 'Sagn')
  assert found == (period, num_contributions)
