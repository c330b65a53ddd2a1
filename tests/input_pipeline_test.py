"""input_pipeline: shards, passes, batches in the graph, chunks."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist import cli, input_pipeline
from distmnist import rehearsal as rehearsal_lib

CPU = '/device:CPU:0'


def make_data(num_images):
  """Image i is all i, and its label is i."""
  images = np.arange(num_images, dtype=np.uint8).reshape(-1, 1, 1, 1)
  return np.tile(images, [1, 2, 3, 1]), np.arange(num_images, dtype=np.int32)


def make_plan(indices, batch_size):
  return input_pipeline.Plan(np.array(indices), batch_size, 0, 0, 0)


def start(session):
  """Does what MonitoredSession does before the first step."""
  session.run([tf.local_variables_initializer(), tf.tables_initializer()])


@pytest.mark.parametrize('num_images, num_shards', [(12, 3), (13, 3), (5, 1)])
def test_shards_are_disjoint_and_equal_in_size(num_images, num_shards):
  shards = [
    input_pipeline.compute_shard(num_images, num_shards, i)
    for i in range(num_shards)
  ]
  assert {len(s) for s in shards} == {num_images // num_shards}
  found = np.sort(np.concatenate(shards))
  assert found.tolist() == list(range(num_images // num_shards * num_shards))


def test_a_shard_by_hand():
  assert input_pipeline.compute_shard(11, 3, 1).tolist() == [1, 4, 7]
  assert input_pipeline.compute_shard(2, 3, 1).tolist() == []


def test_a_pass_has_each_image_once_and_drops_the_rest():
  indices = np.arange(100, 111)
  batches = input_pipeline.compute_pass(indices, 4, 0, 0, 0)
  assert batches.shape == (2, 4)
  assert len(set(batches.ravel())) == 8
  assert set(batches.ravel()) < set(indices)


def test_a_pass_is_decided_by_seed_worker_and_its_number():
  def compute(*key):
    return input_pipeline.compute_pass(np.arange(50), 5, *key).tolist()

  assert compute(1, 2, 3) == compute(1, 2, 3)
  orders = [compute(1, 2, 3), compute(0, 2, 3), compute(1, 0, 3)]
  orders += [compute(1, 2, 0), compute(3, 2, 1)]
  assert len({str(order) for order in orders}) == 5


def test_another_pass_leaves_other_images_out():
  passes = [
    input_pipeline.compute_pass(np.arange(5), 4, 0, 0, i) for i in range(20)
  ]
  seen = {frozenset(p.ravel()) for p in passes}
  assert len(seen) == 5


def test_images_are_shifted_by_whole_pixels_up_to_the_limit(tf_session):
  # A pixel in the middle of 7 x 9, and a border that may leave the picture.
  images = np.zeros([64, 7, 9, 1], np.uint8)
  images[:, 3, 4], images[:, 0] = 255, 9
  moved = input_pipeline.shift(tf.constant(images), 2)
  assert moved.dtype == tf.uint8 and moved.shape == images.shape
  seen = set()
  for image in np.concatenate([tf_session.run(moved) for _ in range(8)]):
    [[y, x, _]] = np.argwhere(image == 255)
    down, right = int(y) - 3, int(x) - 4
    expected = np.zeros([11, 13, 1], np.uint8)
    expected[2 + down : 9 + down, 2 + right : 11 + right] = images[0]
    np.testing.assert_array_equal(image, expected[2:9, 2:11])
    seen.add((down, right))
  assert seen == {(y, x) for y in range(-2, 3) for x in range(-2, 3)}


def test_random_shift_moves_training_images(tf_session, set_flags):
  set_flags('--random_shift=1')
  images = np.zeros([4, 5, 5, 1], np.uint8)
  images[:, 2, 2] = 255
  batch = input_pipeline.build_batches(
    images, np.arange(4), make_plan([0, 1, 2, 3], 4), 0, 0, CPU
  )
  start(tf_session)
  found = np.concatenate([tf_session.run(batch[0]) for _ in range(30)])
  places = {tuple(np.argwhere(image == 1)[0]) for image in found}
  assert len(places) == 9


def test_a_shift_out_of_sight_is_refused(set_flags):
  set_flags('--random_shift=7')
  input_pipeline.check_flags((28, 8, 1))
  with pytest.raises(cli.UsageError, match='--random_shift=7 .* 7 x 28'):
    input_pipeline.check_flags((7, 28, 1))


def test_batches_are_the_passes_one_after_the_other(tf_session):
  images, labels = make_data(20)
  plan = make_plan([1, 3, 5, 7, 9, 11, 13], 3)
  batch = input_pipeline.build_batches(images, labels, plan, 4, 2, CPU)
  assert [t.dtype for t in batch] == [tf.float32, tf.int32]
  assert [t.shape.as_list() for t in batch] == [[3, 2, 3, 1], [3]]
  start(tf_session)
  for pass_number in range(3):
    for expected in input_pipeline.compute_pass(
      plan.indices, 3, 4, 2, pass_number
    ):
      images_v, labels_v = tf_session.run(batch)
      assert labels_v.tolist() == expected.tolist()
      np.testing.assert_allclose(images_v, images[expected] / 255, rtol=1e-6)


def test_a_rehearsal_reads_no_batch(tf_session):
  images, labels = make_data(6)
  plan, rehearsal = make_plan(range(6), 2), rehearsal_lib.Rehearsal(CPU)
  batch = input_pipeline.build_batches(
    images, labels, plan, 4, 2, CPU, rehearsal
  )
  fetches = [rehearsal.or_zeros(x) for x in batch]
  start(tf_session)
  passes = [
    input_pipeline.compute_pass(plan.indices, 2, 4, 2, i) for i in (0, 1)
  ]
  expected = np.concatenate(passes).tolist()
  for is_on in (True, True, False, True, False, False, False):
    rehearsal.turn(is_on).run()
    images_v, labels_v = tf_session.run(fetches)
    assert labels_v.tolist() == ([0, 0] if is_on else expected.pop(0))
    assert images_v.any() != is_on
  assert len(expected) == 2


def test_the_images_are_not_in_the_graph_but_on_the_worker(tf_session):
  images = np.zeros((5000, 28, 28, 1), np.uint8)
  device = '/job:worker/task:1/device:CPU:0'
  setter = tf.train.replica_device_setter(ps_tasks=2, worker_device='/job:x')
  with tf.device(setter):
    input_pipeline.build_batches(
      images, np.zeros(5000, np.int32), make_plan([0], 1), 0, 0, device
    )
  assert tf.get_default_graph().as_graph_def().ByteSize() < 100_000
  assert tf.global_variables() == []
  found = {(v.op.name, v.device) for v in tf.local_variables()}
  names = ('images', 'labels', 'order', 'num_read')
  assert found == {(name, device) for name in names}
  ops = tf.get_default_graph().get_operations()
  # get_variable takes an initializer off all devices; it follows its variable.
  astray = {op.name for op in ops if op.device != device}
  assert astray == {'images/Initializer/PyFunc', 'labels/Initializer/PyFunc'}


def test_a_session_that_is_made_again_starts_again(tf_session):
  images, labels = make_data(6)
  plan = make_plan(range(6), 2)
  batch = input_pipeline.build_batches(images, labels, plan, 0, 0, CPU)
  start(tf_session)
  first = [tf_session.run(batch)[1].tolist() for _ in range(2)]
  with tf.Session() as session:
    start(session)
    assert [session.run(batch)[1].tolist() for _ in range(2)] == first


def test_chunks_are_one_pass_in_order_and_the_last_is_smaller(tf_session):
  images, labels = make_data(5)
  *chunk, initializer = input_pipeline.build_chunks(images, labels, 2)
  for _ in range(2):
    tf_session.run(initializer)
    for expected in ([0, 1], [2, 3], [4]):
      images_v, labels_v = tf_session.run(chunk)
      assert labels_v.tolist() == expected
      np.testing.assert_allclose(images_v, images[expected] / 255, rtol=1e-6)
    with pytest.raises(tf.errors.OutOfRangeError):
      tf_session.run(chunk)


def test_pixels_are_scaled_to_0_and_1(tf_session):
  found = tf_session.run(
    input_pipeline.scale(tf.constant([0, 51, 255], tf.uint8))
  )
  np.testing.assert_allclose(found, [0, 0.2, 1], rtol=1e-6)
