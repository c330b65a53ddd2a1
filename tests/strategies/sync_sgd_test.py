"""sync_sgd: exact against one process, in lock-step, with backup workers."""

import itertools
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import hooks, layers, optimizers, placement
from distmnist.strategies import sync_sgd
from tests import in_process

BATCH_SIZE, STEPS = 8, 20
RATES = {'sgd': 0.5, 'momentum': 0.1, 'adam': 0.01}


def make_data(num_workers):
  """images [steps, workers, batch, 12], labels [steps, workers, batch]."""
  rng = np.random.default_rng(7)
  shape = STEPS, num_workers, BATCH_SIZE
  return rng.random((*shape, 12), np.float32), rng.integers(0, 3, shape)


def build_loss(num_ps):
  images = tf.placeholder(tf.float32, [None, 12], 'images')
  labels = tf.placeholder(tf.int64, [None], 'labels')
  with placement.sharded(num_ps):
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
    return whole_variables(session)


def whole_variables(session):
  """Returns {name: array} with the shards put together."""
  shards = {}
  for variable in tf.trainable_variables():
    name = variable.op.name.split('/part_')[0]
    shards.setdefault(name, []).append(session.run(variable))
  return {name: np.concatenate(parts) for name, parts in shards.items()}


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
    assert self._loaded.wait(20)


def train_cluster(
  cluster, num_ps, images, labels, optimizer, before_step=lambda i: None
):
  """Returns (variables, [steps of each worker], [staleness of each step])."""
  loaded, staleness = threading.Event(), []

  def work(index):
    member = cluster.worker(index)
    with tf.device(member.device_setter()):
      global_step = tf.train.get_or_create_global_step()
      images_in, labels_in, loss = build_loss(num_ps)
      rule = sync_sgd.SyncSgd(member, cluster.num_workers)
      train_op = rule.minimize(
        loss,
        lambda: optimizers.make_optimizer(optimizer, RATES[optimizer]),
        global_step,
      )
    stop = in_process.NoStop()
    result, local_steps = {}, 0
    session_hooks = [
      hooks.StopHook(train_op, global_step, STEPS, stop, lambda: False),
      Load(num_ps, member.is_chief, loaded),
      *rule.hooks(stop),
      hooks.EndHook(lambda session: result.update(whole_variables(session))),
    ]
    with cluster.make_session(index, session_hooks) as session:
      while not session.should_stop():
        before_step(index)
        feed = {
          images_in: images[local_steps, index],
          labels_in: labels[local_steps, index],
        }
        _, stale = session.run([train_op, rule.staleness], feed)
        staleness.append(int(stale))
        local_steps += 1
    return result, local_steps

  results = cluster.run_workers(work)
  return results[0][0], [steps for _, steps in results], staleness


CASES = [
  pytest.param(
    *case, marks=() if case[:2] in ((2, 2), (3, 1)) else pytest.mark.slow
  )
  for case in itertools.product((1, 2, 3), (1, 2, 3), sorted(RATES))
]


@pytest.mark.parametrize(('num_workers', 'num_ps', 'optimizer'), CASES)
def test_n_workers_equal_one_process_with_n_times_the_batch(
  make_cluster, num_workers, num_ps, optimizer
):
  images, labels = make_data(num_workers)
  expected = train_alone(images, labels, optimizer)
  found, local_steps, staleness = train_cluster(
    make_cluster(num_ps, num_workers), num_ps, images, labels, optimizer
  )
  assert local_steps == [STEPS] * num_workers
  assert set(staleness) == {0}
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)


def test_one_slow_worker_changes_nothing_but_the_time(make_cluster):
  images, labels = make_data(3)
  expected = train_alone(images, labels, 'momentum')

  def be_slow(index):
    if index == 2:
      threading.Event().wait(0.05)  # A slow worker; nobody waits on this.

  found, local_steps, _ = train_cluster(
    make_cluster(2, 3), 2, images, labels, 'momentum', before_step=be_slow
  )
  assert local_steps == [STEPS] * 3
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
