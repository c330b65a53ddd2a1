"""input_pipeline: batches in the graph, chunks."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from distmnist.data import image_ops, input_pipeline, step_rows
from distmnist.data.split import Split
from distmnist.exchange.steps import graph_warmup

CPU = '/device:CPU:0'


def make_data(num_images):
  """Image i is all i, and its label is i."""
  images = np.arange(num_images, dtype=np.uint8).reshape(-1, 1, 1, 1)
  return np.tile(images, [1, 2, 3, 1]), np.arange(num_images, dtype=np.int32)


def preprocess(x, y, is_training):
  """What the problem of images does."""
  if is_training:
    x = image_ops.shift_by_flags(x)
  return image_ops.scale(x), y


def start(session):
  """Does what MonitoredSession does before the first step."""
  session.run([tf.local_variables_initializer(), tf.tables_initializer()])


@pytest.mark.slow
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


def build(images, labels, batch_size, warmup=None):
  """Returns (images and labels of a batch, their StepRows)."""
  batch = input_pipeline.build_batches(
    Split(images, labels), preprocess, batch_size, CPU, warmup
  )
  [batches] = step_rows.get_all()
  return (batch.x, batch.y), batches


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


@pytest.mark.slow
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
      input_pipeline.build_batches(
        Split(images, np.zeros(5000, np.int32)), preprocess, 1, device
      )
    assert graph.as_graph_def().ByteSize() < 100_000
    assert tf.global_variables() == []
    found = {(v.op.name, v.device) for v in tf.local_variables()}
    assert found == {(name, device) for name in ('array_0', 'array_1')}
    astray = {op.name for op in graph.get_operations() if op.device != device}
  # get_variable takes an initializer off all devices; it follows its variable.
  assert astray == {'array_0/Initializer/PyFunc', 'array_1/Initializer/PyFunc'}


@pytest.mark.slow
def test_chunks_are_one_pass_in_order_and_the_last_is_smaller(tf_session):
  images, labels = make_data(5)
  chunk, initializer = input_pipeline.build_chunks(
    Split(images, labels), preprocess, 2
  )
  for _ in range(2):
    tf_session.run(initializer)
    for expected in ([0, 1], [2, 3], [4]):
      images_v, labels_v, _ = tf_session.run(chunk)
      assert labels_v.tolist() == expected
      np.testing.assert_allclose(images_v, images[expected] / 255, rtol=1e-6)
    with pytest.raises(tf.errors.OutOfRangeError):
      tf_session.run(chunk)


@pytest.mark.slow
def test_examples_may_be_any_nest(tf_session, set_flags):
  set_flags()
  x = {
    'text': np.array([b'no', b'maybe', b'yes'], object),
    'ids': (np.array([[1, 2], [3, 4], [5, 6]], np.int16),),
  }
  split = Split(x, np.array([True, False, True]), np.array([1, 2, 3], 'f'))

  def keep(x, y, is_training):
    return x, y

  batch = input_pipeline.build_batches(split, keep, 2, CPU)
  [batches] = step_rows.get_all()
  chunk, initializer = input_pipeline.build_chunks(split, keep, 2)
  start(tf_session)
  found, y, w = tf_session.run(batch, {batches.fed: [[0, 2, 0]]})
  assert found['text'].tolist() == [b'yes', b'no']
  assert found['ids'][0].tolist() == [[5, 6], [1, 2]]
  assert y.tolist() == [True, True] and w.tolist() == [3, 1]
  tf_session.run(initializer)
  tf_session.run(chunk)
  found, y, w = tf_session.run(chunk)
  assert found['text'].tolist() == [b'yes']
  assert (y.tolist(), w.tolist()) == ([True], [3])


@pytest.mark.slow
def test_slices_are_parts_of_the_row_that_a_step_is_fed_with(
  tf_session, set_flags
):
  set_flags()
  images, labels = make_data(20)
  slices = input_pipeline.build_slices(
    Split(images, labels), preprocess, 2, 3, CPU, None
  )
  [batches] = step_rows.get_all()
  start(tf_session)
  fetches = [(part.batch, part.place) for part in slices]
  row = [40, 7, 3, 19, 0, 5, 5]
  found = tf_session.run(fetches, {batches.fed: [row]})
  chosen = [[7, 3], [19, 0], [5, 5]]
  assert [batch.y.tolist() for batch, _ in found] == chosen
  for (batch, _), numbers in zip(found, chosen, strict=True):
    np.testing.assert_allclose(batch.x, images[numbers] / 255, rtol=1e-6)
  assert [place for _, place in found] == [40, 42, 44]
  assert len({part.gate for part in slices}) == 3


def test_one_slice_is_the_batch(tf_session, set_flags):
  set_flags()
  images, labels = make_data(4)
  [whole] = input_pipeline.build_slices(
    Split(images, labels), preprocess, 3, 1, CPU, None
  )
  assert whole.batch.y.shape == [3]
  assert (whole.place, whole.gate) == (None, None)
