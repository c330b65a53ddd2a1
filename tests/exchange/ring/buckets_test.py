"""Buckets: which gradients share one, and means that are right in any order."""

import dataclasses
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.cluster import cluster as cluster_lib
from distmnist.exchange.ring import all_reduce, buckets
from distmnist.logdir import report
from distmnist.transport import nonfinite


@pytest.mark.parametrize(
  ('sizes', 'bucket_bytes', 'expected'),
  [
    ([10, 10, 10], 0, [[2, 1, 0]]),
    ([10, 10, 10], 20, [[2, 1], [0]]),
    ([10, 10, 10], 11, [[2, 1], [0]]),
    ([10, 10, 10], 10, [[2], [1], [0]]),
    # The classifier's bias goes with its weights, which are large.
    ([1, 1, 100, 1], 50, [[3, 2], [1, 0]]),
    ([100], 1, [[0]]),
  ],
)
def test_the_last_layers_fill_the_first_bucket(sizes, bucket_bytes, expected):
  assert buckets.fill(sizes, bucket_bytes) == expected


@pytest.mark.slow
@pytest.mark.parametrize('wire_dtype', ['float32', 'float16'])
def test_what_has_64_bits_keeps_them(make_cluster, wire_dtype):
  cluster = make_cluster(0, 2)
  cluster.reset()
  given = [np.float64([1 + 2**-40, 3]), np.float64([1, -1])]

  def work(index):
    member = dataclasses.replace(cluster.worker(index), wire_dtype=wire_dtype)
    with tf.device(member.device_setter()):
      variables = [
        tf.get_variable('double', [2], tf.float64),
        tf.get_variable('single', [2]),
      ]
    with tf.device(member.cpu_device):
      gradients = [tf.constant(given[index]), tf.constant([1.0, index])]
      more = tf.constant([float(index)])
      means = buckets.build_means(member, gradients, variables, more, 0)
    config = cluster.session_config(index)
    with tf.Session(cluster.servers[index].target, config=config) as session:
      return session.run(means)

  for (double, single), votes in cluster.run_workers(work):
    assert double.tolist() == [1 + 2**-41, 1]
    assert single.tolist() == [1, 0.5] and votes.tolist() == [0.5]


NUM_WORKERS, NUM_LAYERS, NUM_STEPS = 3, 5, 6


@pytest.mark.slow
@pytest.mark.parametrize('wire_dtype', ['float32', 'bfloat16'])
def test_on_no_worker_it_matters_which_bucket_is_full_first(
  make_cluster, wire_dtype
):
  """Each gradient comes after a wait of its own, different on each worker."""
  cluster = make_cluster(0, NUM_WORKERS)
  cluster.reset()
  rng = np.random.default_rng(3)
  shape = NUM_STEPS, NUM_WORKERS, NUM_LAYERS, 4
  # Exact in bfloat16, and so are their sums.
  given = rng.integers(-8, 9, shape).astype(np.float32)
  waits = rng.uniform(0, 0.03, (*shape[:2], NUM_LAYERS))
  more = np.arange(NUM_WORKERS, dtype=np.float32)

  def work(index):
    member = cluster.worker(index)
    member = dataclasses.replace(member, wire_dtype=wire_dtype)
    step = tf.placeholder(tf.int32, [])
    with tf.device(member.device_setter()):
      variables = [tf.get_variable(f'w{i}', [2, 2]) for i in range(NUM_LAYERS)]

    def make(step, layer):
      threading.Event().wait(waits[step, index, layer])
      return given[step, index, layer].reshape(2, 2)

    with tf.device(member.cpu_device):
      gradients = [
        tf.py_func(make, [step, i], tf.float32) for i in range(NUM_LAYERS)
      ]
      means, mean_of_more = buckets.build_means(
        *(member, gradients, variables, tf.constant([more[index]]), 1)
      )
    config = cluster.session_config(index)
    target = cluster.servers[index].target
    with tf.Session(target, config=config) as session:
      return [
        session.run([means, mean_of_more], {step: i}) for i in range(NUM_STEPS)
      ]

  expected = given.mean(axis=1).reshape(NUM_STEPS, NUM_LAYERS, 2, 2)
  results = cluster.run_workers(work)
  error = 1e-6 if wire_dtype == 'float32' else 0.02
  for found in results:
    for i, (means, mean_of_more) in enumerate(found):
      np.testing.assert_allclose(means, expected[i], rtol=error, atol=error)
      np.testing.assert_array_equal(mean_of_more, [1.0])
      np.testing.assert_array_equal(means, results[0][i][0])


@pytest.mark.parametrize(
  ('wire_dtype', 'sizes', 'expected'),
  [
    # They are added up in float32.
    ('float16', [4e4, 4e4], 4e4),
    ('float16', [8192.0, 40960.0], 24576.0),
    ('bfloat16', [40960.0, 40960.0], 40960.0),
    # Each is finite, their sum is not.
    ('bfloat16', [2.0**127, 2.0**127], 0.0),
  ],
)
@pytest.mark.slow
def test_a_sum_that_is_not_finite_is_dropped_on_all_workers(
  make_cluster, wire_dtype, sizes, expected
):
  cluster = make_cluster(0, 2)
  cluster.reset()

  def work(index):
    member = cluster.worker(index)
    member = dataclasses.replace(member, wire_dtype=wire_dtype)
    with tf.device(member.device_setter()):
      variable = tf.get_variable('w', [2])
    with tf.device(member.cpu_device):
      means, _ = buckets.build_means(
        *(member, [tf.constant([sizes[index], 1])], [variable]),
        *(tf.zeros([1]), 0),
      )
      stats = report.WorkerStats(index)
      counter = nonfinite.Counter(stats)
      counter.build()
    config = cluster.session_config(index)
    with tf.Session(cluster.servers[index].target, config=config) as session:
      [mean] = session.run(means)
      counter.look(session)
    return mean.tolist(), stats.nonfinite_pushes

  is_dropped = expected == 0
  expected = [expected, 0.0 if is_dropped else 1.0]
  assert cluster.run_workers(work) == [(expected, int(is_dropped))] * 2


@pytest.mark.daily(
  but=[
    'False-0-float32',
    'False-1-bfloat16',
    'True-0-bfloat16',
    'True-1-float32',
  ]
)
@pytest.mark.slow
@pytest.mark.parametrize('wire_dtype', ['float32', 'bfloat16'])
@pytest.mark.parametrize('bucket_bytes', [0, 1])
@pytest.mark.parametrize('has_failed', [False, True])
def test_one_that_leaves_gives_zeros_in_a_step_of_the_others(
  make_cluster, wire_dtype, bucket_bytes, has_failed
):
  cluster = make_cluster(0, 2)
  cluster.reset()

  def work(index):
    member = cluster.worker(index)
    member = dataclasses.replace(member, wire_dtype=wire_dtype)
    with tf.device(member.device_setter()):
      variables = [tf.get_variable(f'w{i}', [2, 2]) for i in range(3)]
    with tf.device(member.cpu_device):
      gradients = [tf.fill([2, 2], 2.0 * (i + 1)) for i in range(3)]
      votes = tf.constant([float(index), 1.0])
      step = buckets.build_means(
        member, gradients, variables, votes, bucket_bytes
      )
      leave = buckets.build_leave(
        member, variables, votes, bucket_bytes, has_failed
      )
    config = cluster.session_config(index)
    with tf.Session(cluster.servers[index].target, config=config) as session:
      times = range(1 if has_failed else 3)
      return [session.run(leave if index else step) for _ in times]

  found, _ = cluster.run_workers(work)
  for means, votes in found:
    assert [mean.tolist() for mean in means] == [
      np.full([2, 2], i + 1.0).tolist() for i in range(3)
    ]
    assert votes.tolist() == [0.5, 1.0]


def make_member(num_workers):
  hosts = tuple(f'w{i}:1' for i in range(num_workers))
  return cluster_lib.make_cluster((), hosts, 'worker', 0)


def test_what_travels_how_is_told_and_counted(monkeypatch):
  monkeypatch.setattr(all_reduce, 'HOP_BYTES', 100)
  with tf.Graph().as_default():
    variables = [tf.get_variable(f'w{i}', [10**i]) for i in range(4)]
    first, second = buckets.describe(make_member(3), variables, 100)
    # The last layers come first.
    assert first == (
      '1 bucket of 44 bytes: all send all, in one hop; in two hops each would '
      'take at most 100 bytes less'
    )
    assert second.startswith('2 buckets of 4,400 bytes: worker j adds up ')
    sent = buckets.count_sent(make_member(3), variables, 100)
    assert sent == 2 * 44 + round(4 / 3 * 4400)
    [line] = buckets.describe(make_member(2), variables, 0)
    assert line.endswith('one hop; between two workers no way takes less')
    assert buckets.count_sent(make_member(2), variables, 0) == 4444
