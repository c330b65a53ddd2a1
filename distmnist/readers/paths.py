"""The files that a reader reads."""

import glob
import os
import zlib


def find(pattern):
  """Returns the paths (list of str) that a pattern names, sorted.

  Args:
    pattern: str such as 'data/train-*.tfrecord', or a list of them.

  Raises:
    ValueError: a pattern names no file.
  """
  found = []
  for one in [pattern] if isinstance(pattern, str) else pattern:
    expanded = os.path.expanduser(one)
    paths = sorted(p for p in glob.glob(expanded) if os.path.isfile(p))
    if not paths:
      raise ValueError(f'{one}: no such file')
    found += paths
  return found


def identify(paths):
  """Returns bytes that tell these files from others: names and sizes."""
  text = repr([(os.path.basename(p), os.path.getsize(p)) for p in paths])
  return b'%08x' % zlib.crc32(text.encode())
