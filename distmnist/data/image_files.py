"""Images from a user's own files, IDX or PNG, in the shape that a model takes.

The first bytes of a file tell what it is, whatever its name says.
"""

from __future__ import annotations

import glob
import os
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from distmnist.common import cli
from distmnist.data import idx

_ADVICE = 'give a PNG, or a whole IDX file'

_PNG = b'\x89PNG\r\n\x1a\n'
_PNG_SIZE = 16  # Where width and height are in the header.
_PNG_KIND = 25  # Where the colour type is in the header.
_IDX = b'\0\0'
_GZIP = b'\x1f\x8b'


class File(NamedTuple):
  """images: uint8 [n, height, width, channels]; a PNG has one."""

  path: str
  is_png: bool
  images: np.ndarray


def read_labels(path: str, num_images: int, num_classes: int) -> np.ndarray:
  """Returns the labels of `num_images` images of --images, int32.

  Raises:
    cli.RunError: see idx.read_labels.
  """
  try:
    return idx.read_labels(path, num_images, '--images', num_classes)
  except idx.FileError as error:
    raise cli.RunError(
      f'{error.problem}: give the IDX file of their labels'
    ) from error


def find(words: Iterable[str]) -> list[str]:
  """Returns the paths that `words` name, in their order.

  Args:
    words: each a file or a pattern such as digits/*.png; the matches of a
      pattern are sorted.

  Raises:
    cli.RunError: one of them names no file.
  """
  paths: list[str] = []
  for word in map(os.path.expanduser, words):
    if os.path.isdir(word):
      raise cli.RunError(
        f'{word} is a folder: give files, or a pattern such as '
        f'{os.path.join(word, "*.png")}'
      )
    found = [word] if os.path.exists(word) else sorted(glob.glob(word))
    if not found:
      raise cli.RunError(f'{word} was not found: give files that exist')
    paths += found
  return paths


class Reader:
  """Reads files of images of one shape."""

  def __init__(self, image_shape: Sequence[int]) -> None:
    """
    Args:
      image_shape: (height, width, channels).
    """
    self._shape = tuple(image_shape)
    self._png = (
      _PngDecoder(self._shape[-1]) if self._shape[-1] in (1, 3) else None
    )

  def read(self, path: str) -> File:
    """Returns the File at `path`.

    Raises:
      cli.RunError: it is neither PNG nor IDX, is not whole, or its images have
        another shape.
    """
    try:
      with open(path, 'rb') as file:
        start = file.read(len(_PNG))
    except OSError as error:
      raise cli.RunError(f'cannot read {path}: {error.strerror}') from error
    is_png = start == _PNG
    if not is_png and not start.startswith((_IDX, _GZIP)):
      raise cli.RunError(
        f'{path}: found the first bytes {start!r}, expected a PNG or an IDX '
        'file, gzipped or not: convert it to PNG'
      )
    images = self._read_png(path) if is_png else self._read_idx(path)
    self._check_shape(path, images.shape[1:])
    return File(path, is_png, images)

  def _check_shape(self, path: str, shape: tuple[int, ...]) -> None:
    if shape != self._shape:
      raise cli.RunError(
        f'{path}: found {_describe(shape)}, but the model takes '
        f'{_describe(self._shape)} (height x width): scale it, or give another '
        '--export_dir'
      )

  def _read_idx(self, path: str) -> np.ndarray:
    is_flat = self._shape[-1] == 1
    try:
      images = idx.read(path, num_dims=3 if is_flat else 4)
    except idx.FileError as error:
      raise cli.RunError(f'{error.problem}: {_ADVICE}') from error
    return images[..., np.newaxis] if is_flat else images

  def _read_png(self, path: str) -> np.ndarray:
    if self._png is None:
      raise cli.RunError(
        f'{path} is a PNG, but the model takes images of {self._shape[-1]} '
        'channels: give an IDX file of 4 dimensions'
      )
    with open(path, 'rb') as file:
      content = file.read()
    if len(content) >= _PNG_KIND:
      # Checked before it is decoded: a few bytes may claim 60,000 x 60,000.
      width, height = struct.unpack_from('>2I', content, _PNG_SIZE)
      self._check_shape(path, (height, width, self._shape[-1]))
    return self._png.decode(path, content)[np.newaxis]


def _describe(shape: Sequence[int]) -> str:
  height, width, channels = shape
  return f'{height} x {width}' + (f' x {channels}' if channels > 1 else '')


class _PngDecoder:
  """Decodes PNGs of any kind to one kind."""

  def __init__(self, num_channels: int) -> None:
    """
    Args:
      num_channels: 1 for grey, to which colours are converted, or 3.
    """
    graph = tf.Graph()
    with graph.as_default():
      self._content = tf.placeholder(tf.string, [])
      self._image = tf.image.decode_png(self._content, num_channels)
      self._alpha = tf.image.decode_png(self._content, channels=4)[..., 3]
    config = tf.ConfigProto(device_count={'GPU': 0})
    self._session = tf.Session(graph=graph, config=config)

  def decode(self, path: str, content: bytes) -> np.ndarray:
    """Returns `content`, the bytes of `path`, as uint8 [height, width, n]."""
    try:
      image, alpha = self._session.run(
        [self._image, self._alpha], {self._content: content}
      )
    except tf.errors.InvalidArgumentError as error:
      raise cli.RunError(
        f'{path}: found a broken PNG of {len(content)} bytes: {_ADVICE}'
      ) from error
    # A digit on a transparent ground would be black on black. TensorFlow may
    # invent a missing alpha: a bit of the colour type, or a chunk, tells.
    has_alpha = content[_PNG_KIND] & 4 or b'tRNS' in content
    if has_alpha and alpha.min() < 255:
      raise cli.RunError(
        f'{path}: found transparent pixels, expected none: put the image on a '
        'background'
      )
    return image
