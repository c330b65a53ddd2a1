"""The examples that a run learns from, as its log directory records them."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

from distmnist.common import files, layout
from distmnist.storage import paths

if TYPE_CHECKING:
  from distmnist.data import split, streamed

_DATA_FILE = 'train.data'


def describe(unit: str, *splits: split.Split | streamed.Streamed) -> str:
  """Returns a line that tells these examples from others.

  Args:
    unit: what they are called, such as 'images'.
    *splits: how the examples are divided among them matters.
  """
  checksum = 0
  for split in splits:
    for part in split.identify():
      # As bytes: bfloat16 is no kind of number to a memoryview.
      data = part if isinstance(part, bytes) else part.view(np.uint8).data
      checksum = zlib.crc32(data, checksum)
  num_examples = sum(split.num_examples for split in splits)
  return f'{num_examples:,} {unit} with checksum {checksum:08x}'


def write(logdir: str, text: str) -> None:
  """Keeps `text`, which `describe` returned."""
  with files.replacing(layout.make_own_path(logdir, _DATA_FILE)) as file:
    file.write(text + '\n')


def read(logdir: str) -> str | None:
  """Returns what `write` has kept, or None."""
  try:
    return paths.read_text(layout.own_path(logdir, _DATA_FILE)).strip()
  except (OSError, ValueError):
    return None
