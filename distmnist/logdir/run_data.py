"""The images that a run learns from, as its log directory knows them."""

import os
import zlib

import numpy as np

from distmnist.common import files

_DATA_FILE = 'train.data'


def describe(*splits):
  """Returns what tells images and labels from others, a line (str).

  Args:
    *splits: workload.Split; how the images are shared out among them counts.
  """
  checksum = 0
  for images, labels in splits:
    for array in images, labels:
      checksum = zlib.crc32(np.ascontiguousarray(array), checksum)
  num_images = sum(len(images) for images, _ in splits)
  return f'{num_images:,} images with checksum {checksum:08x}'


def write(logdir, text):
  """Keeps `text`, of `describe`."""
  with files.replacing(os.path.join(logdir, _DATA_FILE)) as file:
    file.write(text + '\n')


def read(logdir):
  """Returns what `write` has kept (str), or None."""
  try:
    with open(os.path.join(logdir, _DATA_FILE), encoding='utf-8') as file:
      return file.read().strip()
  except (OSError, ValueError):
    return None
