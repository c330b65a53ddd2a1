"""Paths that are addresses of a store, such as s3://bucket/run."""

from __future__ import annotations

import os

# Scheme of an address -> the extra of distmnist that brings its library.
EXTRAS = {'gs': 'gcs', 'hdfs': 'hdfs', 's3': 's3'}


def is_remote(path: str | os.PathLike[str]) -> bool:
  """Whether a path is the address of a store."""
  return '://' in os.fspath(path)


def expand(path: str) -> str:
  """Returns a path as it is used.

  A leading ~ is replaced by the home folder. An address loses the / at its end:
  to a store, run//x is another object than run/x.
  """
  if not is_remote(path):
    return os.path.expanduser(path)
  scheme, mark, rest = path.partition('://')
  return scheme + mark + (rest.rstrip('/') or rest)


def tidy(path: str) -> str:
  """Returns a path as it is shown."""
  return path if is_remote(path) else os.path.normpath(path)


def normalize(path: str) -> str:
  """Returns the same for all spellings of a path, with links followed."""
  return expand(path) if is_remote(path) else os.path.realpath(path)


def find_mistake(path: str) -> str | None:
  """Returns what was expected in place of a path that cannot be; or None."""
  if not is_remote(path):
    return None
  scheme, _, rest = path.partition('://')
  if scheme not in EXTRAS:
    known = ', '.join(f'{name}://' for name in sorted(EXTRAS))
    return f'expected a path, or an address that starts with {known}'
  bucket = rest.split('/')[0]
  # The default file system of a Hadoop cluster has no name.
  if not bucket and scheme != 'hdfs':
    return f'expected {scheme}://BUCKET/FOLDER'
  return None
