"""The files that a reader reads."""

import fnmatch
import glob
import os
import zlib

from distmnist.storage import copies, urls
from distmnist.storage import paths as storage_paths

# How much tells one content from another: of a file, and of many files.
_SAMPLE_BYTES = 1 << 12
_NUM_SAMPLED = 64


def find(pattern):
  """Returns the paths (list of str) that a pattern names, sorted.

  Args:
    pattern: str or path such as 'data/train-*.tfrecord', or a list of them.
      Files of a store, such as 's3://bucket/train-*.tfrecord', are copied here;
      for them, only the last part of the address may be a pattern.

  Raises:
    ValueError: there is no pattern, one names no file, or a file cannot be
      copied here.
  """
  found = []
  is_one = isinstance(pattern, (str, os.PathLike))
  for one in map(os.fspath, [pattern] if is_one else pattern):
    if urls.is_remote(one):
      paths = _fetch(one)
    else:
      expanded = os.path.expanduser(one)
      # A name may have brackets of its own.
      names = [expanded] if os.path.isfile(expanded) else glob.glob(expanded)
      paths = sorted(filter(os.path.isfile, names))
    if not paths:
      is_folder = not urls.is_remote(one) and os.path.isdir(expanded)
      what = (
        f'a folder: give files, as {one}/*' if is_folder else 'no such file'
      )
      raise ValueError(f'{one}: {what}')
    found += paths
  if not found:
    raise ValueError('no file was given: expected a pattern or a list of them')
  return found


def _fetch(pattern):
  folder, name = pattern.rsplit('/', 1)
  try:
    names = storage_paths.list_files(folder)
    # As on this machine: a name may have brackets, and * fits no hidden file.
    if name in names:
      names = [name]
    else:
      found = fnmatch.filter(names, name)
      names = [n for n in found if name.startswith('.') or n[0] != '.']
    return [copies.fetch_file(f'{folder}/{n}') for n in sorted(names)]
  except OSError as error:
    raise ValueError(f'{pattern}: {error.strerror}') from error


def identify(paths):
  """Returns bytes that tell these files from others.

  By all names and sizes, and by how some of the files begin and end: to open
  each of a million images would take minutes.
  """
  sizes = [(path, os.path.getsize(path)) for path in paths]
  text = repr([(os.path.basename(path), size) for path, size in sizes])
  checksum = zlib.crc32(text.encode())
  for path, size in sizes[:: -(-len(sizes) // _NUM_SAMPLED)]:
    with open(path, 'rb') as file:
      checksum = zlib.crc32(sample(file.fileno(), size), checksum)
  return b'%08x' % checksum


def sample(descriptor, size):
  """Returns the first and last bytes of the first `size` of an open file."""
  last = max(0, size - _SAMPLE_BYTES)
  return b''.join(
    os.pread(descriptor, min(size, _SAMPLE_BYTES), offset)
    for offset in (0, last)
  )
