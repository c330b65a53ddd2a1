"""sync_sgd: exact against one process, in lock-step, with backup workers."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.strategies import sync_sgd
from tests.support import lock_step, oracles, rule


# With other optimizers: tests/nn.
@pytest.mark.slow
def test_n_workers_equal_one_process_with_n_times_the_batch(
  make_cluster, set_flags
):
  set_flags('--optimizer=momentum', '--momentum=0.9', *lock_step.FLAGS)
  velocity = {}

  def move(name, w, g, step):
    velocity[name] = 0.9 * velocity.get(name, 0) + g
    return w - lock_step.RATES[step] * velocity[name]

  lock_step.check(make_cluster(3, lock_step.NUM_WORKERS), move)


@pytest.mark.slow
def test_two_of_three_drop_the_gradient_of_the_late_one(make_stepper):
  stepper = make_stepper(1, 3, lambda member: sync_sgd.SyncSgd(member, 2))
  stepper.begin(2, [100])
  stepper.begin(0, [8])
  stepper.begin(1, [4])
  stepper.release(0)
  assert not stepper.is_done(0)
  stepper.release(1)
  assert stepper.join(0) == stepper.join(1) == (1, 0, [3])  # 0 + 0.5 * 6
  assert stepper.end(2) == (1, 1, [3])
  assert (stepper.bytes_pulled, stepper.bytes_pushed) == (4, 4)


class Oracle(oracles.Oracle):
  """One update a round, by the mean of all gradients of one center."""

  keeps_copies = False
  waits = True

  def __init__(self, **how):
    super().__init__(**how)
    self._given = {}

  def begin(self, i, x):
    self.pull(i)
    super().begin(i, x)

  def end(self, i):
    self._given[i] = self.wire(self.gradients[i])
    if len(self._given) < self.num_workers:
      return {}
    mean = sum(self._given.values()) / self.num_workers
    self.center = self.optimizer(self.center, mean, self.step)
    self._given, self.step = {}, self.step + 1
    return dict.fromkeys(range(self.num_workers), (self.step, 0))


RULE = rule.Rule(
  lambda member: sync_sgd.SyncSgd(member, 2),
  Oracle,
  placement=[
    rule.Placement(
      ['{w}', '{w}/Momentum'],
      [],
      beside_step=['sync_sgd/token_of_worker_{i}'],
    )
  ],
  traffic=[rule.Traffic([(20, 20)] * 2, is_together=True)],
)


@pytest.mark.slow
@pytest.mark.parametrize('barrier', ['step', 'shard'])
def test_rates_go_with_rows_that_are_looked_up(
  make_stepper, set_flags, barrier
):
  set_flags(
    *('--worker_learning_rates=0.5,0.25', '--learning_rate=0.5'),
    f'--sync_barrier={barrier}',
  )

  def build(x):
    w = tf.get_variable('w', [3], initializer=tf.zeros_initializer())
    ids = [0, 2, 2]
    loss = tf.reduce_sum((tf.gather(w, ids) - tf.gather(x, ids)) ** 2) / 2
    return w, loss

  stepper = make_stepper(1, 2, sync_sgd.make, rate=0.5, build=build, size=3)
  # The gradients are [-8, 0, -4] and [-4, 0, -2].
  for step in stepper.step_together([[8, 1, 2], [4, 1, 1]]):
    assert step.center == pytest.approx([5, 0, 2.5])


# One rate is 0. That of the optimizer is a unit only: it cancels out.
@pytest.mark.slow
def test_random_steps_with_rates_agree_with_the_oracle(make_stepper, set_flags):
  rates = [0.3, 0, 0.1]
  set_flags(
    f'--worker_learning_rates={",".join(map(str, rates))}',
    '--learning_rate=0.07',
  )
  stepper = make_stepper(2, 3, sync_sgd.make, rate=0.07, size=5)
  rng, w = np.random.default_rng(2), np.zeros(5)
  for step in range(1, 16):
    xs = rng.normal(size=(3, 5))
    w = w - sum(rate * (w - x) for rate, x in zip(rates, xs, strict=True))
    for found in stepper.step_together(list(xs)):
      assert found[:2] == (step, 0)
      np.testing.assert_allclose(found.center, w, rtol=1e-4, atol=1e-5)


def make_member():
  return cluster_lib.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 1)


def test_the_factor_is_that_of_the_worker(set_flags, monkeypatch):
  _, factor, *_ = rule.read_made_with(monkeypatch, sync_sgd, 'SyncSgd')
  assert factor is None
  set_flags('--worker_learning_rates=0.5,0.25', '--learning_rate=0.1')
  _, factor, *_ = rule.read_made_with(monkeypatch, sync_sgd, 'SyncSgd')
  assert factor == pytest.approx(10)  # 2 lr / base.


@pytest.mark.parametrize(
  'rates, word',
  [
    # One for each worker, each a number of 0 or more.
    *((rates, '') for rates in ('0.1', '0.1,x', '0.1,-0.2', '0.1,nan')),
    # They scale the gradient, so that a step has to be in proportion to it.
    ('0.1,0.2', '--optimizer=momentum'),
    ('0.1,0.2', '--weight_decay=0.1'),
    ('0.1,0.2', '--learning_rate=0'),
    # One gradient of each worker in an update.
    ('0.1,0.2', '--replicas_to_aggregate=1'),
    ('0.1,0.2', '--replicas_to_aggregate=3'),
    # Tables have no other rate.
    ('0.1,0.2', '--table_optimizer=adagrad'),
    ('0.1,0.2', '--table_learning_rate=1'),
    ('0.1,0.2', '--table_strategy=async_sgd'),
  ],
)
def test_rates_that_do_not_fit_are_refused(set_flags, rates, word):
  given = f'--worker_learning_rates={rates}'
  set_flags(given, *filter(None, [word]))
  with pytest.raises(cli.UsageError, match=f'^{given}[ :].*[^\n]$'):
    sync_sgd.make(make_member())


def test_rates_go_with_a_replicas_to_aggregate_of_all(set_flags):
  set_flags('--worker_learning_rates=0.1,0.2', '--replicas_to_aggregate=2')
  assert sync_sgd.make(make_member()).batches_per_update == 2


def test_a_barrier_a_shard_takes_one_gradient_of_a_worker(set_flags):
  member = make_member()
  set_flags('--sync_barrier=shard', '--replicas_to_aggregate=1')
  assert sync_sgd.make(member).batches_per_update == 1
  set_flags('--sync_barrier=shard', '--replicas_to_aggregate=3')
  with pytest.raises(cli.UsageError, match='^--sync_barrier=shard .* 3 of 2 '):
    sync_sgd.make(member)


def test_a_barrier_a_shard_asks_for_small_shards(set_flags):
  member = make_member()
  assert sync_sgd.make(member).max_shard_bytes is None
  set_flags('--sync_barrier=shard')
  assert sync_sgd.make(member).max_shard_bytes == 1 << 20


def test_small_shards_travel_together_up_to_the_largest(set_flags, tf_session):
  member = make_member()
  set_flags('--sync_barrier=shard', '--max_shard_mib=0.0001')  # 104 bytes.
  rule = sync_sgd.make(member)
  with tf.device(member.device_setter()), rule.scope():
    for name in 'abc':
      tf.get_variable(name, [10])
  assert rule._center.find_units() == [[0, 1], [2]]
