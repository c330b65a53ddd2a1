"""The images of an RDD or a DataFrame, brought to the workers by Spark.

Training needs its images again and again, in an order of its own for each
pass, and holds them in the memory of the worker. So they are not streamed past
it: before the first step each worker gets its own part whole.

  driver      deals the records out, image by image, and has Spark shuffle them
              to one partition a worker; the test images go to the chief
  executor    the barrier task of a worker writes its partition to files of
              NumPy as it comes, then starts the worker with --dataset=npy

Spark's shuffle keeps on disk what is not taken yet: a slow worker delays no
other and fills no queue (back-pressure), and there is no second job that could
wait for a dead worker. What is lost with an executor Spark computes again. The
whole transfer has a time limit, in the driver. All workers get the same number
of images: that of the one with the fewest, which is at most one less for each
partition of the input.
"""

import contextlib
import functools
import itertools
import os

import numpy as np

_LABEL_DTYPE = np.dtype('<i4')


def make_rdd(sc, data, test_data, num_ps, num_workers, image_shape, classes):
  """Returns an RDD with a partition a task: none for a ps, one's own images.

  Args:
    sc: pyspark.SparkContext.
    data, test_data: RDD of (image, label), or DataFrame with the columns
      `image` and `label`. An image is bytes, a uint8 array or numbers in 0..255
      of any nesting, of `image_shape`.
    num_ps, num_workers: int.
    image_shape: (height, width, channels).
    classes: int, labels are below it.
  """
  deal = functools.partial(_deal, num_ps=num_ps, num_workers=num_workers)
  check = functools.partial(_pack_all, shape=image_shape, classes=classes)
  parts = [
    _get_rdd(data).mapPartitions(check).mapPartitionsWithIndex(deal),
    _get_rdd(test_data)
    .mapPartitions(check)
    .map(functools.partial(_give_to_chief, num_ps=num_ps)),
  ]
  return sc.union(parts).partitionBy(num_ps + num_workers, int)


def check_first(data, image_shape, classes):
  """Checks one image here, and not first where Spark would try four times.

  Args:
    data: RDD or DataFrame, as of `make_rdd`.
    image_shape: (height, width, channels).
    classes: int.

  Raises:
    ValueError: it is no image of this shape, or there is none.
    Exception: Spark cannot compute it.
  """
  first = _get_rdd(data).take(1)
  if not first:
    raise ValueError('it has no image')
  list(_pack_all(first, image_shape, classes))


def make_flags(image_shape, classes):
  """Returns the flags of train (list of str) for what `spool` has written."""
  return [
    '--dataset=npy',
    f'--npy_image_shape={",".join(map(str, image_shape))}',
    f'--npy_classes={classes}',
    # Of one's own files: no other worker has these images.
    '--epochs_over=dataset',
  ]


def spool(records, folder, image_shape, limit_mb):
  """Writes the images of a partition; returns the number of training images.

  Args:
    records: iterator of (partition, (is_test, image, label)).
    folder: str, where to.
    image_shape: (height, width, channels).
    limit_mb: float, what is more is refused.

  Raises:
    ValueError: there is more.
  """
  left = limit_mb * 1e6
  with contextlib.ExitStack() as stack:
    writers = {
      is_test: [
        stack.enter_context(
          contextlib.closing(
            _Writer(os.path.join(folder, f'{split}_{name}.npy'), dtype, shape)
          )
        )
        for name, dtype, shape in (
          ('images', np.uint8, tuple(image_shape)),
          ('labels', _LABEL_DTYPE, ()),
        )
      ]
      for is_test, split in ((False, 'train'), (True, 'test'))
    }
    for _, (is_test, image, label) in records:
      left -= len(image)
      if left < 0:
        raise ValueError(
          f'more than {limit_mb:g} MB of images for one worker: use more'
          ' workers, or raise feed_limit_mb'
        )
      images, labels = writers[is_test]
      images.write(image)
      labels.write(_LABEL_DTYPE.type(label).tobytes())
  return writers[False][0].num_rows


def cut(folder, num_images):
  """Keeps the first `num_images` of the training images."""
  for kind in ('images', 'labels'):
    path = os.path.join(folder, f'train_{kind}.npy')
    array = np.load(path, mmap_mode='r', allow_pickle=False)
    if len(array) != num_images:
      _write_header(path, array.dtype, (num_images, *array.shape[1:]))


class _Writer:
  """A file of NumPy that grows by rows; the header says how many at the end."""

  def __init__(self, path, dtype, row_shape):
    self.num_rows = 0
    self._path = path
    self._dtype = np.dtype(dtype)
    self._row_shape = row_shape
    _write_header(path, self._dtype, (0, *row_shape), 'wb')
    self._file = open(path, 'ab')  # noqa: SIM115 (until close)

  def write(self, row):
    self._file.write(row)
    self.num_rows += 1

  def close(self):
    self._file.close()
    _write_header(self._path, self._dtype, (self.num_rows, *self._row_shape))


def _write_header(path, dtype, shape, mode='r+b'):
  # NumPy leaves room for a first dimension of any size: its length stays.
  with open(path, mode) as file:
    np.lib.format.write_array_header_1_0(
      file,
      {
        'descr': np.lib.format.dtype_to_descr(dtype),
        'fortran_order': False,
        'shape': shape,
      },
    )


def _get_rdd(data):
  if hasattr(data, 'select'):
    return data.select('image', 'label').rdd
  return data


def _pack_all(records, shape, classes):
  for record in records:
    image, label = record
    yield pack(image, label, shape, classes)


def pack(image, label, shape, classes):
  """Returns (image, label) as bytes and int.

  Raises:
    ValueError: see `pack_image`; or the label is out of range.
  """
  packed = pack_image(image, shape)
  if not 0 <= label < classes or int(label) != label:
    raise ValueError(f'label {label}, expected 0 to {classes - 1}')
  return packed, int(label)


def pack_image(image, shape):
  """Returns an image as bytes.

  Raises:
    ValueError: it is not of `shape`, or has values out of 0..255.
  """
  size = int(np.prod(shape))
  if isinstance(image, bytes | bytearray | memoryview):
    packed = bytes(image)
  else:
    array = np.asarray(image)
    is_good = array.dtype == np.uint8 or (
      array.dtype.kind in 'iuf'
      and array.size
      and array.min() >= 0
      and array.max() <= 255
    )
    if not is_good:
      raise ValueError(
        f'an image of {array.dtype} with values out of 0..255: give bytes or'
        ' numbers from 0 to 255'
      )
    packed = array.astype(np.uint8).tobytes()
  if len(packed) != size:
    raise ValueError(
      f'an image of {len(packed)} values, expected {size}: height, width and'
      f' channels are {tuple(shape)}'
    )
  return packed


def _deal(split, pairs, num_ps, num_workers):
  # Each partition begins with another worker: none has all the first ones.
  workers = itertools.cycle(range(num_workers))
  for _ in range(split % num_workers):
    next(workers)
  for worker, (image, label) in zip(workers, pairs, strict=False):
    yield num_ps + worker, (False, image, label)


def _give_to_chief(pair, num_ps):
  return num_ps, (True, *pair)
