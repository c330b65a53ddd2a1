"""Images in folders, one per class: folder/cat/1.jpg, folder/dog/2.png.

from distmnist.readers import image_folder

def load(split):
  return image_folder.Reader(f'data/{split}', size=(224, 224))
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.cluster import errors
from distmnist.readers import graph_function, paths

_ENDINGS = '.bmp', '.gif', '.jpeg', '.jpg', '.png'
_BMP, _JPEG = b'BM', b'\xff\xd8'  # How such a file begins.
# Images that are decoded in parallel.
_NUM_PARALLEL = 16


class Reader:
  """x: uint8 [n, height, width, channels]; y: int64 [n], the class.

  Attributes:
    num_examples: the images of all folders.
    class_names: in the order of the classes.
  """

  def __init__(
    self,
    folder: str,
    size: Sequence[int],
    channels: int = 3,
    classes: Sequence[str] | None = None,
  ) -> None:
    """Lists the files.

    Args:
      folder: has the folders of the classes.
      size: (height, width) that each image is resized to, bilinearly.
      channels: 3 for colours, 1 for grey.
      classes: the folders to read, for classes 0, 1, ...; one may be missing.
        By default all folders there, in the order of their names.

    Raises:
      ValueError: `size` is not one of an image, there is no such folder, it has
        no images, or one of them is a link to no file.
    """
    _check_size(size)
    folder = os.path.expanduser(folder)
    if not os.path.isdir(folder):
      raise ValueError(f'{folder}: no such folder')
    there = {e.name for e in os.scandir(folder) if e.is_dir() and _is_seen(e)}
    self.class_names = sorted(there) if classes is None else list(classes)
    found = [
      (entry, number)
      for number, name in enumerate(self.class_names)
      if name in there
      for entry in _list(os.path.join(folder, name))
      if entry.name.lower().endswith(_ENDINGS)
      and _is_seen(entry)
      and not entry.is_dir()
    ]
    self._paths = [entry.path for entry, _ in found]
    for path in self._paths:
      if not os.path.isfile(path):
        raise ValueError(f'{path} is a link to no file: mend or remove it')
    if not found:
      raise ValueError(
        f'{folder} has no images: expected one folder per class, with files '
        f'that end in {", ".join(_ENDINGS)}'
      )
    self._classes = np.array([number for _, number in found], np.int64)
    self.num_examples = len(found)
    self._decode = graph_function.GraphFunction(
      functools.partial(_decode, size=size, channels=channels), tf.string, None
    )

  def read(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns (x, y) of the examples with these numbers.

    Raises:
      OSError: a file is gone.
      ValueError: a file is not an image, or one that TensorFlow misreads.
    """
    files = [_read_bytes(self._paths[i]) for i in indices]
    for i, file in zip(indices, files, strict=True):
      if _has_colour_table(file):
        raise ValueError(
          f'{self._paths[i]} is a BMP with a table of colours, which would be '
          'read as shades of grey: save it as PNG'
        )
    try:
      images = self._decode(files)
    except tf.errors.OpError as error:
      for i, file in zip(indices, files, strict=True):
        self._check(self._paths[i], file)
      raise ValueError(errors.explain(error)) from error
    return images, self._classes[indices]

  def identify(self) -> bytes:
    """Returns bytes that tell these examples from others."""
    return paths.identify(self._paths) + self._classes.tobytes()

  def _check(self, path: str, file: bytes) -> None:
    """Raises ValueError if a file on its own cannot be decoded."""
    try:
      self._decode([file])
    except tf.errors.OpError as error:
      why = 'is not an image that can be read'
      if file[:2] == _BMP:
        why += ', or a BMP of another kind than 8, 24 or 32 bits a pixel, not '
        why += 'compressed: save it as PNG'
      raise ValueError(f'{path} {why}') from error


def _check_size(size: Any) -> None:
  """Raises ValueError unless images of this size can be made."""
  sizes = np.asarray(size)
  if sizes.shape != (2,) or sizes.dtype.kind not in 'iu' or sizes.min() < 1:
    raise ValueError(f'size={size!r}: expected (height, width), from 1 on')


def _list(folder: str) -> list[os.DirEntry[str]]:
  return sorted(os.scandir(folder), key=lambda entry: entry.name)


def _is_seen(entry: os.DirEntry[str]) -> bool:
  """Whether a folder or file is not hidden, as Jupyter's and macOS's are."""
  return not entry.name.startswith('.')


def _read_bytes(path: str) -> bytes:
  with open(path, 'rb') as file:
    return file.read()


def _has_colour_table(file: bytes) -> bool:
  """Whether a file is a BMP of 8 bits a pixel that are not shades of grey."""
  if file[:2] != _BMP or len(file) < 54:
    return False
  begin, header_size = struct.unpack_from('<2I', file, 10)
  if struct.unpack_from('<H', file, 28)[0] != 8:
    return False
  table = np.frombuffer(file[14 + header_size : begin], np.uint8)
  colours = table[: len(table) // 4 * 4].reshape(-1, 4)[:, :3]
  return bool((colours != np.arange(len(colours))[:, np.newaxis]).any())


def _decode_one(file: tf.Tensor, channels: int) -> tf.Tensor:
  """Returns uint8 [height, width, channels] from a string."""
  decode = functools.partial(tf.io.decode_image, file, expand_animations=False)
  if channels > 1:
    return decode(channels)
  # TensorFlow makes no grey of BMP, GIF and the four inks of a JPEG for print.
  start = tf.strings.substr(file, 0, 2)
  has_inks = tf.cond(
    tf.equal(start, _JPEG),
    lambda: tf.equal(tf.io.extract_jpeg_shape(file)[2], 4),
    lambda: False,
  )
  return tf.cond(
    tf.equal(start, _BMP) | tf.equal(start, 'GI') | has_inks,
    lambda: tf.image.rgb_to_grayscale(
      tf.ensure_shape(decode(3), [None, None, 3])
    ),
    lambda: decode(1),
  )


def _decode(files: tf.Tensor, size: Sequence[int], channels: int) -> tf.Tensor:
  """Returns uint8 [n, height, width, channels] from strings [n]."""

  def decode(file: tf.Tensor) -> tf.Tensor:
    resized = tf.image.resize_images(_decode_one(file, channels), size)
    return tf.cast(tf.round(resized), tf.uint8)

  images = tf.map_fn(decode, files, tf.uint8, parallel_iterations=_NUM_PARALLEL)
  images.set_shape([None, *size, channels])
  return images
