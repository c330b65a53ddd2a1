"""input_pipeline: batches in the graph, shifts, chunks."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.data import fed_rows, input_pipeline
from distmnist.exchange import graph_warmup

CPU = '/device:CPU:0'


def make_data(num_images):
  """Image i is all i, and its label is i."""
  images = np.arange(num_images, dtype=np.uint8).reshape(-1, 1, 1, 1)
  return np.tile(images, [1, 2, 3, 1]), np.arange(num_images, dtype=np.int32)


def start(session):
  """Does what MonitoredSession does before the first step."""
  session.run([tf.local_variables_initializer(), tf.tables_initializer()])


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
  batch, batches = build(images, np.arange(4), 4)
  start(tf_session)

  def move(place):
    row = [place, 0, 1, 2, 3]
    return tf_session.run(batch[0], {batches.fed: [row]})

  found = np.concatenate([move(i) for i in range(30)])
  np.testing.assert_array_equal(move(5), move(5))  # Its place decides.
  places = {tuple(np.argwhere(image == 1)[0]) for image in found}
  assert len(places) == 9


def test_a_shift_out_of_sight_is_refused(set_flags):
  set_flags('--random_shift=7')
  input_pipeline.check_flags((28, 8, 1))
  with pytest.raises(cli.UsageError, match='--random_shift=7 .* 7 x 28'):
    input_pipeline.check_flags((7, 28, 1))


def build(images, labels, batch_size, warmup=None):
  """Returns (images and labels of a batch, their FedRows)."""
  batch = input_pipeline.build_batches(images, labels, batch_size, CPU, warmup)
  [batches] = tf.get_collection(fed_rows.COLLECTION)
  return batch, batches


def test_a_step_has_the_images_that_it_is_fed_with(tf_session, set_flags):
  set_flags()
  images, labels = make_data(20)
  batch, batches = build(images, labels, 3)
  assert [t.dtype for t in batch] == [tf.float32, tf.int32]
  assert [t.shape.as_list() for t in batch] == [[3, 2, 3, 1], [3]]
  start(tf_session)
  for chosen in ([4, 0, 19], [7, 7, 1]):
    rows = [[0, *chosen], [3, 1, 1, 1]]  # The second is another step's.
    images_v, labels_v = tf_session.run(batch, {batches.fed: rows})
    assert labels_v.tolist() == chosen
    np.testing.assert_allclose(images_v, images[chosen] / 255, rtol=1e-6)


def test_a_warmup_reads_no_batch(tf_session, set_flags):
  set_flags()
  images, labels = make_data(6)
  warmup = graph_warmup.Warmup(CPU)
  batch, batches = build(images, labels, 2, warmup)
  fetches = [warmup.or_zeros(x) for x in batch]
  start(tf_session)
  for is_on in (True, False, True, False):
    warmup.turn(is_on).run()
    images_v, labels_v = tf_session.run(fetches, {batches.fed: [[0, 3, 5]]})
    assert labels_v.tolist() == ([0, 0] if is_on else [3, 5])
    assert images_v.any() != is_on


def test_the_images_are_not_in_the_graph_but_on_the_worker(set_flags):
  set_flags()
  images = np.zeros((5000, 28, 28, 1), np.uint8)
  device = '/job:worker/task:1/device:CPU:0'
  setter = tf.train.replica_device_setter(ps_tasks=2, worker_device='/job:x')
  with tf.Graph().as_default() as graph:
    with tf.device(setter):
      input_pipeline.build_batches(images, np.zeros(5000, np.int32), 1, device)
    assert graph.as_graph_def().ByteSize() < 100_000
    assert tf.global_variables() == []
    found = {(v.op.name, v.device) for v in tf.local_variables()}
    assert found == {(name, device) for name in ('images', 'labels')}
    astray = {op.name for op in graph.get_operations() if op.device != device}
  # get_variable takes an initializer off all devices; it follows its variable.
  assert astray == {'images/Initializer/PyFunc', 'labels/Initializer/PyFunc'}


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
