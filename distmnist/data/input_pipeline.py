"""Input inside the graph: the worker has all images, and is told which to take.

The images stay uint8 in a local variable of the worker, filled once by a
py_func: no image is fed in the training loop and no constant of 47 MB is in the
GraphDef. What is fed is a row of numbers a batch, the indices of its images
(training/batch_source.py). Through tf.data even these cost a small net a tenth
of its time, with its threads.
"""

import tensorflow.compat.v1 as tf
from absl import flags

from distmnist.common import cli
from distmnist.data import fed_rows, seeds

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


def build_batches(images, labels, batch_size, device, warmup=None):
  """Builds the batch of a step; it is fed through fed_rows.FedRows.

  Args:
    images: uint8 array [n, height, width, channels].
    labels: int32 array [n].
    batch_size: int.
    device: str, this worker's CPU.
    warmup: graph_warmup.Warmup, in which nothing is read, or None.

  Returns:
    (images, labels): float32 [batch_size, height, width, channels] in 0..1
    and int32 [batch_size].
  """
  with tf.name_scope('input'), tf.device(device):
    resident = _build_resident(images, 'images')
    answers = _build_resident(labels, 'labels')
    row = fed_rows.build(batch_size).row
    if warmup:
      row = warmup.hold_back(row)
    seeds.set_place(row[0])
    batch = row[1:]
    chosen = tf.gather(resident, batch)
    if _RANDOM_SHIFT.value:
      chosen = shift(chosen, _RANDOM_SHIFT.value)
    return scale(chosen), tf.gather(answers, batch)


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
  drawn = tf.random.stateless_uniform(
    [n, 2], seeds.make_key('shift'), -max_pixels, max_pixels + 1, tf.int32
  )
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
