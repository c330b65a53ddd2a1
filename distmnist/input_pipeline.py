"""Input inside the graph: this worker's shard, shuffled each pass, for ever.

The images stay uint8 in a local variable of the worker, filled once by a
py_func: no feed_dict in the training loop and no constant of 47 MB in the
GraphDef. What flows through tf.data is the order of a pass, once a pass: its
threads cost a small net a tenth of its time if each batch comes from them.
"""

import dataclasses
import itertools

import numpy as np
import tensorflow.compat.v1 as tf
from absl import flags

from distmnist import cli

_RANDOM_SHIFT = flags.DEFINE_integer(
  'random_shift',
  0,
  'Moves each training image by up to so many pixels along both axes, drawn '
  'anew each time that it is read; what comes in is black.',
  lower_bound=0,
)


def check_flags(image_shape):
  """Raises cli.UsageError if --random_shift may leave nothing of an image.

  Args:
    image_shape: (height, width, channels).
  """
  height, width, _ = image_shape
  if _RANDOM_SHIFT.value >= min(height, width):
    raise cli.UsageError(
      f'--random_shift={_RANDOM_SHIFT.value} would move images of {height} x '
      f'{width} pixels out of sight: 1 or 2 is usual'
    )


@dataclasses.dataclass(frozen=True)
class Plan:
  """What this worker reads, and how much all of them do.

  Attributes:
    indices: int64 array, the training images of this worker.
    batch_size: int, images of one local step.
    images_per_epoch: int, images of one pass of all workers.
    images_per_update: int, images of one global step.
    last_step: int, the global step at which training ends.
  """

  indices: np.ndarray
  batch_size: int
  images_per_epoch: int
  images_per_update: int
  last_step: int


def compute_shard(num_images, num_shards, shard):
  """Returns the indices of one shard, int64 [floor(num_images / num_shards)].

  Shards are disjoint and equal in size; up to num_shards - 1 images at the end
  belong to none.
  """
  size = num_images // num_shards
  return np.arange(shard, size * num_shards, num_shards, dtype=np.int64)


def compute_pass(indices, batch_size, seed, worker, pass_number):
  """Returns one pass over `indices` as batches, int64 [steps, batch_size].

  Each pass has an order of its own, drawn from (seed, worker, pass_number).
  The images that do not fill a batch are left out of this pass.
  """
  order = np.random.default_rng([seed, worker, pass_number])
  steps = len(indices) // batch_size
  return order.permutation(indices)[: steps * batch_size].reshape(
    steps, batch_size
  )


def build_batches(images, labels, plan, seed, worker, device, rehearsal=None):
  """Builds endless batches of this worker.

  Args:
    images: uint8 array [n, height, width, channels].
    labels: int32 array [n].
    plan: Plan.
    seed: int, worker: int: with the pass they decide the order.
    device: str, this worker's CPU.
    rehearsal: rehearsal.Rehearsal, in which nothing is read, or None.

  Returns:
    (images, labels): float32 [batch_size, height, width, channels] in 0..1
    and int32 [batch_size].
  """

  def generate():
    for pass_number in itertools.count():
      yield compute_pass(
        plan.indices, plan.batch_size, seed, worker, pass_number
      )

  with tf.name_scope('input'), tf.device(device):
    resident = _build_resident(images, 'images')
    answers = _build_resident(labels, 'labels')
    one = tf.constant(1, tf.int64)
    if rehearsal:
      one = rehearsal.hold_back(one)
    batch = _build_choice(generate, plan, one)
    chosen = tf.gather(resident, batch)
    if _RANDOM_SHIFT.value:
      chosen = shift(chosen, _RANDOM_SHIFT.value)
    return scale(chosen), tf.gather(answers, batch)


def _build_choice(generate, plan, one):
  """Builds the indices of a new batch in each step, int64 [batch_size].

  Args:
    generate: callable -> iterator of passes, as `compute_pass` returns them.
    plan: Plan.
    one: int64 scalar tensor, 1, on which all that is done here waits.
  """
  num_batches = len(plan.indices) // plan.batch_size
  shape = [num_batches, plan.batch_size]
  passes = tf.data.Dataset.from_generator(generate, tf.int64, shape)
  iterator = tf.data.make_initializable_iterator(
    passes.prefetch(1).with_options(_make_options())
  )
  # A session has its first pass before its first step, which is timed.
  with tf.control_dependencies([iterator.initializer]):
    first = iterator.get_next()
  order = _make_local(first, 'order')
  num_read = _make_local(tf.zeros((), tf.int64), 'num_read')
  number = num_read.assign_add(one) - 1
  place = number % num_batches
  is_ordered = tf.cond(
    tf.equal(place, 0) & (number > 0),
    lambda: tf.group(order.assign(iterator.get_next(), read_value=False)),
    tf.no_op,
  )
  with tf.control_dependencies([is_ordered]):
    return tf.gather(order, place)


def build_chunks(images, labels, chunk_size):
  """Builds one pass over arrays in order, in chunks; the last may be smaller.

  Returns:
    (images, labels, initializer): as in `build_batches`, and the op that
    starts the pass; at its end tf.errors.OutOfRangeError is raised.
  """

  def generate():
    for start in range(0, len(images), chunk_size):
      stop = start + chunk_size
      yield images[start:stop], labels[start:stop]

  with tf.name_scope('chunks'), tf.device('/device:CPU:0'):
    dataset = tf.data.Dataset.from_generator(
      generate,
      (tf.uint8, tf.int32),
      ([None, *images.shape[1:]], [None]),
    )
    iterator = tf.data.make_initializable_iterator(
      dataset.with_options(_make_options())
    )
    chunk_images, chunk_labels = iterator.get_next()
    return scale(chunk_images), chunk_labels, iterator.initializer


def shift(images, max_pixels):
  """Moves each image by whole pixels, drawn from -max_pixels..max_pixels.

  Args:
    images: uint8 tensor [n, height, width, channels].
    max_pixels: int.

  Returns:
    Tensor like `images`, 0 where nothing was.
  """
  n, height, width, _ = images.shape.as_list()
  drawn = tf.random.uniform([n, 2], -max_pixels, max_pixels + 1, tf.int32)
  by_x, by_y = tf.split(tf.cast(drawn, tf.float32), 2, axis=1)
  one, zero = tf.ones([n, 1]), tf.zeros([n, 1])
  # The pixel at (x, y) comes from (x + by_x, y + by_y).
  moved = tf.raw_ops.ImageProjectiveTransformV3(
    images=images,
    transforms=tf.concat(
      [one, zero, by_x, zero, one, by_y, zero, zero], axis=1
    ),
    output_shape=[height, width],
    fill_value=0.0,
    interpolation='NEAREST',
  )
  moved.set_shape(images.shape)
  return moved


def scale(images):
  """uint8 0..255 -> float32 0..1."""
  return tf.cast(images, tf.float32) * (1 / 255)


def _build_resident(array, name):
  return _make_local(lambda: _build_constant_by_call(array), name)


def _make_local(initializer, name):
  return tf.get_local_variable(name, initializer=initializer, use_resource=True)


def _build_constant_by_call(array):
  tensor = tf.py_func(lambda: array, [], tf.as_dtype(array.dtype))
  tensor.set_shape(array.shape)
  return tensor


def _make_options():
  """Options of a data set that leaves when it is told to.

  Nothing here is worth tuning, and the tuner's thread sleeps for up to a
  minute at a time, for which the close of a session waits.
  """
  options = tf.data.Options()
  options.autotune.enabled = False
  return options
