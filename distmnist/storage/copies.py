"""Copies on this machine of what lies in a store, for code that needs files.

TensorFlow and NumPy read and write files. A checkpoint that is asked for once
more is not copied again, unless it has changed in the store.
"""

from __future__ import annotations

import collections
import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from distmnist.storage import paths, scratch, stores, urls

_Version = tuple[int, str | None, str]  # Size in bytes, ETag, time.

# How many checkpoints are kept; the oldest goes first. A delta reads four at
# once: two that are partial, and their bases.
_MAX_KEPT = 4
# What each url's files were when they were copied, and into which folder.
_kept: collections.OrderedDict[str, tuple[dict[str, _Version], str]] = (
  collections.OrderedDict()
)


def fetch_prefix(prefix: str) -> str:
  """Returns where the files PREFIX.* can be read, as a prefix on this machine.

  Args:
    prefix: such as the path of a checkpoint; one on this machine is returned as
      it is.

  Raises:
    OSError: they cannot be copied.
  """
  if not urls.is_remote(prefix):
    return prefix
  parent, name = prefix.rsplit('/', 1)
  entries = {
    os.path.basename(entry['name']): entry
    for entry in stores.list_entries(parent)
    if os.path.basename(entry['name']).startswith(f'{name}.')
  }
  versions = {key: _find_version(entry) for key, entry in entries.items()}
  if prefix in _kept and _kept[prefix][0] == versions:
    _kept.move_to_end(prefix)
    return os.path.join(_kept[prefix][1], name)
  _forget(prefix)
  folder = scratch.make('checkpoint')
  for key in sorted(entries):
    stores.download(f'{parent}/{key}', os.path.join(folder, key))
  _kept[prefix] = versions, folder
  while len(_kept) > _MAX_KEPT:
    _forget(next(iter(_kept)))
  return os.path.join(folder, name)


def fetch_file(path: str) -> str:
  """Returns where a file can be read; a copy is kept until the process ends.

  Raises:
    OSError: it cannot be copied.
  """
  if not urls.is_remote(path):
    return path
  if path not in _files:
    local = os.path.join(scratch.make('file'), os.path.basename(path))
    stores.download(path, local)
    _files[path] = local
  return _files[path]


def is_copy(path: str) -> bool:
  """Whether `fetch_file` has made the file at a path."""
  return path in _files.values()


_files: dict[str, str] = {}  # url -> path


def fetch_folder(url: str) -> str:
  """Returns where a folder and everything in it can be read.

  Raises:
    OSError: it cannot be copied.
  """
  if not urls.is_remote(url):
    return url
  local = os.path.join(
    scratch.make('folder'), os.path.basename(urls.expand(url))
  )
  _fetch_into(url, local)
  return local


def _fetch_into(url: str, local: str) -> None:
  os.makedirs(local)
  for entry in stores.list_entries(url):
    name = os.path.basename(entry['name'].rstrip('/'))
    target = os.path.join(local, name)
    if entry['type'] == 'directory':
      _fetch_into(os.path.join(url, name), target)
    else:
      stores.download(os.path.join(url, name), target)


def upload_folder(
  local: str,
  url: str,
  is_last: Callable[[str], bool] = lambda name: False,
  check: Callable[[], None] = lambda: None,
) -> None:
  """Uploads all files below the folder `local` to `url`.

  Args:
    is_last: given a file's name, whether the file marks the others as whole,
      and is uploaded after them.
    check: called before such a file is uploaded.

  Raises:
    OSError: a file could not be uploaded; or what `check` raises.
  """
  found = [
    os.path.join(parent, name)
    for parent, _, names in os.walk(local)
    for name in names
  ]
  for path in sorted(found, key=lambda p: (is_last(os.path.basename(p)), p)):
    if is_last(os.path.basename(path)):
      check()
    stores.upload(path, os.path.join(url, os.path.relpath(path, local)))


@contextlib.contextmanager
def drafting(path: str) -> Iterator[str]:
  """Yields a path on this machine for what is to be written to `path`.

  It is uploaded at the end; a path on this machine is yielded as it is.

  Raises:
    OSError: it could not be uploaded.
  """
  if not urls.is_remote(path):
    yield path
    return
  folder = scratch.make('draft')
  try:
    local = os.path.join(folder, os.path.basename(path))
    yield local
    if os.path.exists(local):
      stores.upload(local, path)
  finally:
    shutil.rmtree(folder, ignore_errors=True)


def _find_version(entry: dict[str, Any]) -> _Version:
  """Returns what changes when an object of a listing does."""
  when = entry.get('LastModified') or entry.get('updated') or entry.get('mtime')
  return entry['size'], entry.get('ETag') or entry.get('etag'), str(when)


def _forget(prefix: str) -> None:
  kept = _kept.pop(prefix, None)
  if kept:
    paths.remove_folder(kept[1])
