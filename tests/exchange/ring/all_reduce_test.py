"""all_reduce: the bits of a mean, and who sends what."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.exchange.ring import all_reduce


def open_session(cluster, index):
  config = cluster.session_config(index)
  return tf.Session(cluster.servers[index].target, config=config)


@pytest.mark.parametrize(
  ('num_workers', 'num_bytes', 'in_chunks', 'sent'),
  [
    (2, 10**9, False, 10**9),
    # Owners would spare a third of twice as many.
    (3, 98_304, False, 196_608),
    (3, 318_040, True, 424_053.33),
    (3, 13_098_536, True, 17_464_714.67),
    (8, 12_483, False, 87_381),
    (8, 12_484, True, 21_847),
    (256, 318_040, True, 633_595.31),
  ],
)
def test_chunks_have_owners_where_that_spares_more_than_a_hop_costs(
  num_workers, num_bytes, in_chunks, sent
):
  assert all_reduce.pays_to_cut(num_workers, num_bytes) == in_chunks
  assert all_reduce.count_sent(num_workers, num_bytes) == pytest.approx(sent)


def compute_mean(vectors):
  """Returns NumPy's mean, in the order of the rows, of 32 bits at least."""
  wide = np.promote_types(vectors.dtype, np.float32)
  total = vectors[0].astype(wide)
  for vector in vectors[1:]:
    total = total + vector.astype(wide)
  return (total / wide.type(len(vectors))).astype(vectors.dtype)


NUM_STEPS = 3


def run_means(cluster, given, in_chunks):
  """Returns the means of each worker and step, an array.

  Args:
    cluster: in_process.InProcessCluster.
    given: array [steps, num_workers, size].
    in_chunks: bool.
  """

  def work(index):
    member = cluster.worker(index)
    with tf.device(member.cpu_device):
      x = tf.placeholder(given.dtype, given.shape[2:])
      mean = all_reduce.build_mean(member, x, 'mean', in_chunks)
    with open_session(cluster, index) as session:
      return [session.run(mean, {x: values[index]}) for values in given]

  cluster.reset()
  return np.array(cluster.run_workers(work))


@pytest.mark.daily(
  but=[
    '2-1-float32-all',
    '2-7-bfloat16-chunks',
    '3-1001-float32-chunks',
    '2-1001-float64-all',
    '4-9-float64-chunks',
    '4-1002-float16-all',
  ]
)
@pytest.mark.parametrize('in_chunks', [False, True], ids=['all', 'chunks'])
@pytest.mark.parametrize(
  'num_workers, size, dtype',
  [
    *((2, 1, tf.float32), (2, 7, tf.bfloat16), (3, 1001, tf.float32)),
    *((2, 1001, tf.float64), (3, 2, tf.float16), (3, 7, tf.bfloat16)),
    *((4, 9, tf.float64), (4, 3, tf.float32), (4, 1002, tf.float16)),
  ],
  ids=lambda value: getattr(value, 'name', str(value)),
)
@pytest.mark.slow
def test_the_mean_has_the_bits_of_a_sum_in_the_order_of_the_workers(
  make_cluster, num_workers, size, dtype, in_chunks
):
  shape = NUM_STEPS, num_workers, size
  given = np.random.default_rng(size).normal(size=shape)
  given = given.astype(dtype.as_numpy_dtype)
  expected = [compute_mean(values).tobytes() for values in given]
  cluster = make_cluster(0, num_workers)
  for _ in range(2):
    for of_worker in run_means(cluster, given, in_chunks):
      assert [mean.tobytes() for mean in of_worker] == expected


@pytest.mark.slow
@pytest.mark.parametrize('in_chunks', [False, True], ids=['all', 'chunks'])
def test_one_whose_step_has_failed_sends_its_part_and_takes_nothing(
  make_cluster, in_chunks
):
  cluster = make_cluster(0, 3)
  cluster.reset()

  def work(index):
    member = cluster.worker(index)
    with tf.device(member.cpu_device):
      x = tf.constant([3.0, 6.0, 9.0, 12.0])
      if index == 1:
        mean = all_reduce.build_farewell(member, x, 'mean', in_chunks)
      else:
        mean = all_reduce.build_mean(member, x, 'mean', in_chunks)
    with open_session(cluster, index) as session:
      return session.run(mean)

  first, nothing, last = cluster.run_workers(work)
  assert nothing is None and first.tolist() == last.tolist()
  # Chunk 1 is the third element.
  assert first.tolist() == [3, 6, 3 if in_chunks else 9, 12]


@pytest.mark.parametrize(
  'others',
  [
    [('w', [2, 3], tf.float32)],
    [('w', [3, 2], tf.float32), ('n', [], tf.int32)],
    [('w', [2, 3], tf.float32), ('m', [], tf.int32)],
    [('w', [2, 3], tf.float64), ('n', [], tf.int32)],
  ],
)
def test_a_fingerprint_tells_variables_apart(others):
  def find(*rows):
    with tf.Graph().as_default():
      return all_reduce.fingerprint(
        [tf.get_variable(*row, trainable=False) for row in rows]
      )

  rows = [('w', [2, 3], tf.float32), ('n', [], tf.int32)]
  assert find(*rows) == find(*rows) != find(*others)
