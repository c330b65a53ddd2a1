"""sync_sgd: exact against one process, in lock-step, with backup workers."""

import contextlib
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.common import cli
from distmnist.exchange import sharding
from distmnist.exchange.steps import fused_steps
from distmnist.nn import layers, optimizers
from distmnist.strategies import sync_sgd
from distmnist.training.hooks import stop_hook
from tests.support import in_process, lock_step, oracles, rule

BATCH_SIZE, STEPS = 8, 20
RATES = {'sgd': 0.5, 'momentum': 0.1, 'adam': 0.01}


def make_data(num_workers):
  """images [steps, workers, batch, 12], labels [steps, workers, batch]."""
  rng = np.random.default_rng(7)
  shape = STEPS, num_workers, BATCH_SIZE
  return rng.random((*shape, 12), np.float32), rng.integers(0, 3, shape)


def build_loss(num_ps, scope=contextlib.nullcontext):
  images = tf.placeholder(tf.float32, [None, 12], 'images')
  labels = tf.placeholder(tf.int64, [None], 'labels')
  with sharding.sharded(num_ps), scope():
    hidden = tf.nn.sigmoid(layers.dense(images, 5, 'hidden'))
    logits = layers.dense(hidden, 3, 'softmax')
  loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
  return images, labels, loss


def initial_values():
  """The same first weights everywhere, by the name of the whole variable."""
  rng = np.random.default_rng(3)
  return {
    'hidden/weights': rng.normal(size=(12, 5)),
    'hidden/biases': np.zeros(5),
    'softmax/weights': rng.normal(size=(5, 3)),
    'softmax/biases': np.zeros(3),
  }


def build_load_op(num_ps):
  """Assigns `initial_values` to the variables, shard by shard."""
  ops = []
  for name, value in initial_values().items():
    shards = [
      v
      for v in tf.trainable_variables()
      if v.op.name == name or v.op.name.startswith(f'{name}/part_')
    ]
    cuts = np.cumsum([v.shape[0] for v in shards])[:-1]
    for variable, part in zip(shards, np.split(value, cuts), strict=True):
      ops.append(variable.assign(part.astype(np.float32)))
  return tf.group(*ops)


def train_alone(images, labels, optimizer):
  """One process, each batch the union of the workers' batches."""
  with tf.Graph().as_default(), tf.Session() as session:
    images_in, labels_in, loss = build_loss(num_ps=1)
    make = optimizers.make_optimizer(optimizer, RATES[optimizer])
    train_op = make.minimize(loss)
    session.run(tf.global_variables_initializer())
    session.run(build_load_op(num_ps=1))
    for step in range(STEPS):
      feed = {
        images_in: images[step].reshape(-1, 12),
        labels_in: labels[step].reshape(-1),
      }
      session.run(train_op, feed)
    return lock_step.read_whole(session, tf.trainable_variables())


class Load(tf.train.SessionRunHook):
  """The chief loads the first weights; the others wait for them."""

  def __init__(self, num_ps, is_chief, loaded):
    self._op = build_load_op(num_ps)
    self._is_chief = is_chief
    self._loaded = loaded

  def after_create_session(self, session, coord):
    if self._is_chief:
      session.run(self._op)
      self._loaded.set()
    assert self._loaded.wait(60)


def train_cluster(cluster, num_ps, images, labels, optimizer, before_step):
  """Returns (variables, [steps of each worker], [staleness of each step])."""
  loaded, staleness = threading.Event(), []

  def work(index):
    member = cluster.worker(index)
    with tf.device(member.device_setter()):
      global_step = tf.train.get_or_create_global_step()
      rule = sync_sgd.SyncSgd(member, cluster.num_workers)
      images_in, labels_in, loss = build_loss(num_ps, rule.scope)
      update = rule.minimize(
        loss,
        lambda: optimizers.make_optimizer(optimizer, RATES[optimizer]),
        global_step,
      )
    stop = in_process.NoStop()
    result, local_steps = {}, 0
    steps = fused_steps.Steps({'global_step': update.train_op})
    session_hooks = [
      steps,
      stop_hook.StopHook(
        steps,
        global_step,
        STEPS,
        stop,
        lambda: False,
      ),
      Load(num_ps, member.is_chief, loaded),
      *rule.hooks(stop),
      stop_hook.EndHook(
        lambda session: result.update(
          lock_step.read_whole(session, tf.trainable_variables())
        )
      ),
    ]
    with cluster.make_session(index, session_hooks) as session:
      while not session.should_stop():
        before_step(index)
        feed = {
          images_in: images[local_steps, index],
          labels_in: labels[local_steps, index],
        }
        _, stale = session.run([update.train_op, update.staleness], feed)
        staleness.append(int(stale))
        local_steps += 1
    return result, local_steps

  results = cluster.run_workers(work)
  return results[0][0], [steps for _, steps in results], staleness


@pytest.mark.parametrize(
  ('num_workers', 'num_ps', 'optimizer', 'late_secs'),
  [
    (2, 2, 'momentum', 0),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        (1, 3, 'momentum', 0),
        (2, 1, 'adam', 0),
        (3, 2, 'sgd', 0),
        # One slow worker changes nothing but the time.
        (3, 3, 'adam', 0.05),
      )
    ),
  ],
)
def test_n_workers_equal_one_process_with_n_times_the_batch(
  make_cluster, num_workers, num_ps, optimizer, late_secs
):
  images, labels = make_data(num_workers)
  expected = train_alone(images, labels, optimizer)

  def be_late(index):
    if late_secs and index == num_workers - 1:
      threading.Event().wait(late_secs)  # Nothing waits on this.

  found, local_steps, staleness = train_cluster(
    make_cluster(num_ps, num_workers),
    *(num_ps, images, labels, optimizer, be_late),
  )
  assert local_steps == [STEPS] * num_workers
  assert set(staleness) == {0}
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


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


@pytest.fixture
def make_with_rates(make_stepper, set_flags):
  """Returns make(rates, base=0.5, num_ps=1, barrier, ...) -> a Stepper."""

  def make(rates, base=0.5, num_ps=1, barrier='step', **settings):
    set_flags(
      f'--sync_barrier={barrier}',
      f'--worker_learning_rates={",".join(map(str, rates))}',
      f'--learning_rate={base}',
    )
    return make_stepper(
      num_ps, len(rates), sync_sgd.make, rate=base, **settings
    )

  return make


# The optimizer's rate is a unit only: it cancels out.
@pytest.mark.slow
@pytest.mark.parametrize('base', [0.01, 4])
def test_each_worker_has_its_learning_rate(make_with_rates, base):
  stepper = make_with_rates([0.5, 0.25], base)
  # The gradients at w = 0 are -8 and -4: 0 + 0.5 * 8 + 0.25 * 4.
  for step in stepper.step_together([[8], [4]]):
    assert step[:2] == (1, 0)
    assert step.center == pytest.approx([5])
  # They are 4 and -3: 5 - 0.5 * 4 + 0.25 * 3.
  for step in stepper.step_together([[1], [8]]):
    assert step[:2] == (2, 0)
    assert step.center == pytest.approx([3.75])


@pytest.mark.slow
@pytest.mark.parametrize('barrier', ['step', 'shard'])
def test_rates_go_with_rows_that_are_looked_up(make_with_rates, barrier):
  def build(x):
    w = tf.get_variable('w', [3], initializer=tf.zeros_initializer())
    ids = [0, 2, 2]
    loss = tf.reduce_sum((tf.gather(w, ids) - tf.gather(x, ids)) ** 2) / 2
    return w, loss

  stepper = make_with_rates([0.5, 0.25], build=build, size=3, barrier=barrier)
  # The gradients are [-8, 0, -4] and [-4, 0, -2].
  for step in stepper.step_together([[8, 1, 2], [4, 1, 1]]):
    assert step.center == pytest.approx([5, 0, 2.5])


@pytest.mark.slow
def test_a_learning_rate_of_zero_leaves_a_worker_without_a_say(make_with_rates):
  stepper = make_with_rates([0, 0.5])
  assert stepper.step_together([[80], [4]]) == [(1, 0, [2])] * 2


@pytest.mark.slow
def test_with_equal_rates_of_three_it_is_their_sum(make_with_rates):
  stepper = make_with_rates([0.25, 0.25, 0.25])
  # 0 + 0.25 * (4 + 8 + 12), and not the mean.
  for step in stepper.step_together([[4], [8], [12]]):
    assert step.center == pytest.approx([6])


@pytest.mark.slow
@pytest.mark.parametrize(
  'num_ps, rates', [(1, [0.1, 0.0001]), (2, [0.3, 0.02, 0.1])]
)
def test_random_steps_with_rates_agree_with_the_oracle(
  make_with_rates, num_ps, rates
):
  rng = np.random.default_rng(num_ps)
  stepper = make_with_rates(rates, 0.07, num_ps, size=5)
  w = np.zeros(5)
  for step in range(1, 31):
    xs = rng.normal(size=(len(rates), 5))
    w = w - sum(rate * (w - x) for rate, x in zip(rates, xs, strict=True))
    for found in stepper.step_together(list(xs)):
      assert found[:2] == (step, 0)
      np.testing.assert_allclose(found.center, w, rtol=1e-4, atol=1e-5)


def test_rates_go_with_a_replicas_to_aggregate_of_all(set_flags):
  set_flags('--worker_learning_rates=0.1,0.2', '--replicas_to_aggregate=2')
  member = cluster_lib.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 1)
  assert sync_sgd.make(member).batches_per_update == 2


def test_a_barrier_a_shard_takes_one_gradient_of_a_worker(set_flags):
  member = cluster_lib.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 1)
  set_flags('--sync_barrier=shard', '--replicas_to_aggregate=1')
  assert sync_sgd.make(member).batches_per_update == 1
  set_flags('--sync_barrier=shard', '--replicas_to_aggregate=3')
  with pytest.raises(
    cli.UsageError,
    match='^--sync_barrier=shard takes at most one gradient a worker in each '
    'update, not 3 of 2 workers: give a smaller --replicas_to_aggregate, or '
    'take --sync_barrier=step$',
  ):
    sync_sgd.make(member)


def test_a_barrier_a_shard_asks_for_small_shards(set_flags):
  member = cluster_lib.make_cluster(('p0:1',), ('w0:1', 'w1:1'), 'worker', 1)
  assert sync_sgd.make(member).max_shard_bytes is None
  set_flags('--sync_barrier=shard')
  assert sync_sgd.make(member).max_shard_bytes == 2 << 20
