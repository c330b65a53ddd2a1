"""ad_psgd: the bytes of visits, the lock of a step, and a NumPy oracle."""

import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster
from distmnist.exchange.peers import meetings
from distmnist.nn import optimizers
from distmnist.strategies import ad_psgd
from tests.support import in_process, oracles, rule

CENTER = meetings.CENTER


@pytest.mark.slow
def test_both_workers_count_the_bytes_of_an_exchange(make_stepper, monkeypatch):
  # Worker 0 meets worker 1, which meets the center.
  monkeypatch.setattr(meetings, 'choose', lambda i, *_: CENTER if i else 1)
  stepper = make_stepper(1, 2, ad_psgd.AdPsgd, size=5)
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


@pytest.mark.parametrize(
  'words, period', [([], 1), (['--communication_period=3'], 3)]
)
def test_the_flag_reaches_the_rule(set_flags, monkeypatch, words, period):
  set_flags(*words)
  assert ad_psgd.make(cluster.Cluster()).batches_per_update == period
  assert rule.read_made_with(monkeypatch, ad_psgd, 'AdPsgd') == (period,)
