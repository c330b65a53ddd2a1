"""collectives: a mean of all workers, and the chief's values for all."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.ring import collectives
from tests.support import in_process


@pytest.fixture
def make_ring(make_cluster):
  """Returns make(num_workers) -> InProcessCluster."""
  return lambda num_workers: make_cluster(0, num_workers)


def open_session(cluster, index):
  config = cluster.session_config(index)
  return tf.Session(cluster.servers[index].target, config=config)


@pytest.mark.parametrize('num_workers, size', [(2, 1), (3, 2), (3, 1001)])
def test_the_mean_has_the_same_bits_on_all(make_ring, num_workers, size):
  cluster = make_ring(num_workers)
  given = np.random.default_rng(0).normal(size=(20, num_workers, size))
  given = given.astype(np.float32)

  def work(index):
    with tf.device(cluster.worker(index).cpu_device):
      x = tf.placeholder(tf.float32, [size])
      mean = collectives.build_mean(cluster.worker(index), x, key=1)
    with open_session(cluster, index) as session:
      return [session.run(mean, {x: values[index]}) for values in given]

  found = np.array(cluster.run_workers(work))
  assert len({worker.tobytes() for worker in found}) == 1
  np.testing.assert_allclose(found[0], given.mean(axis=1), atol=1e-6)


def test_a_mean_is_not_waited_for_longer_than_asked():
  # What was given up stays so on its servers: they serve no other test.
  cluster = in_process.InProcessCluster(0, 2)

  def work(index):
    with tf.device(cluster.worker(index).cpu_device):
      mean = collectives.build_mean(
        cluster.worker(index), tf.zeros([1]), key=1, timeout_secs=0.2
      )
    with open_session(cluster, index) as session:
      if index == 0:
        with pytest.raises(tf.errors.DeadlineExceededError):
          session.run(mean)

  cluster.run_workers(work)


@pytest.mark.parametrize('dtype', [tf.float32, tf.int64])
def test_all_get_the_values_of_the_chief(make_ring, dtype):
  cluster = make_ring(3)
  values = np.arange(6).reshape(2, 3), np.array(7)

  def work(index):
    with tf.device(cluster.worker(index).cpu_device):
      variables = [
        tf.get_variable(f'v{i}', initializer=tf.constant(v + index, dtype))
        for i, v in enumerate(values)
      ]
      broadcast = collectives.build_broadcast(
        cluster.worker(index), variables, key=1
      )
    with open_session(cluster, index) as session:
      session.run(tf.global_variables_initializer())
      session.run(broadcast)
      return session.run(variables)

  for found in cluster.run_workers(work):
    for value, expected in zip(found, values, strict=True):
      np.testing.assert_array_equal(value, expected)
