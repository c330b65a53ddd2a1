"""The contract of a Store: what the programs ask of a path or an address.

A disk, S3, Google Cloud Storage and HDFS keep it alike
(tests/storage/contract_test.py): a file is written whole or not at all, of two
processes that create one at once only one succeeds, and what is written is
listed at once. In all cases, an OSError has its reason in `strerror`. A folder
that cannot be read is such an error: it is not taken for one that is not there,
as by os.path.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import shutil
import stat
from typing import Any

from distmnist.storage import disk, hdfs, retries, stores, urls

_ABSENT = errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP


def exists(path: str) -> bool:
  """Whether there is such a file, or a folder; of a store, one with files."""
  if not urls.is_remote(path):
    return _stat(path) is not None

  def look(fs: Any, key: str) -> bool:
    fs.invalidate_cache()
    try:
      fs.info(key)
    except FileNotFoundError as error:
      if retries.is_of_bucket(error):
        raise
      return False
    return True

  return retries.ask(path, look)


def choose_next(folder: str) -> str:
  """Returns the first of folder_2, folder_3, ... that does not exist."""
  base = folder.rstrip('/')
  return next(
    path
    for number in itertools.count(2)
    if not exists(path := f'{base}_{number}')
  )


def is_folder(path: str) -> bool:
  if urls.is_remote(path):
    return bool(stores.list_entries(path))
  found = _stat(path)
  return found is not None and stat.S_ISDIR(found.st_mode)


def _stat(path: str) -> os.stat_result | None:
  """Returns the stat of what is at `path`; None if there is nothing."""
  try:
    return os.stat(path)
  except OSError as error:
    if error.errno not in _ABSENT:
      raise
    return None


def list_names(folder: str) -> list[str]:
  """Returns the names of what is in `folder`; [] without it."""
  if urls.is_remote(folder):
    return [_name(entry) for entry in stores.list_entries(folder)]
  return os.listdir(folder) if is_folder(folder) else []


def list_files(folder: str) -> list[str]:
  """Returns the names of the files in `folder`."""
  if urls.is_remote(folder):
    entries = stores.list_entries(folder)
    return [_name(entry) for entry in entries if entry['type'] == 'file']
  names = list_names(folder)
  return [n for n in names if os.path.isfile(os.path.join(folder, n))]


def _name(entry: dict[str, Any]) -> str:
  return os.path.basename(entry['name'].rstrip('/'))


def make_folders(path: str) -> None:
  """Makes a folder and those above it; a store needs none."""
  if not urls.is_remote(path):
    os.makedirs(path, exist_ok=True)


def read_bytes(path: str) -> bytes:
  if urls.is_remote(path):
    return retries.ask(path, lambda fs, key: fs.cat_file(key))
  with open(path, 'rb') as file:
    return file.read()


def have_same_bytes(path: str, other: str) -> bool:
  """Whether two files can be read and are equal."""
  try:
    return read_bytes(path) == read_bytes(other)
  except OSError:
    return False


def read_text(path: str) -> str:
  return read_bytes(path).decode('utf-8')


def write(path: str, content: bytes) -> None:
  """Writes a file, or replaces it, whole or not at all."""
  if urls.is_remote(path):
    retries.ask(
      path, lambda fs, key: fs.pipe_file(key, content), stores.NO_BUCKET
    )
    return
  with disk.replacing(path, 'wb') as file:
    file.write(content)


def create(path: str, content: bytes) -> bool:
  """Writes a new file, if there is none; returns whether ours is there now.

  Of two processes that do it at once only one succeeds. A store that ignores
  the condition leaves the last one's: see store_check.py.

  Args:
    content: unlike that of any other process.
  """
  if not urls.is_remote(path):
    return disk.create(path, content)
  with contextlib.suppress(FileExistsError):
    retries.ask(
      path,
      lambda fs, key: fs.pipe_file(key, content, mode='create'),
      stores.NO_BUCKET,
    )
  # If the answer was lost on its way, our object looks like another's.
  try:
    return read_bytes(path) == content
  except FileNotFoundError:
    return False  # Already removed by another process.


def may_vanish(path: str) -> bool:
  """Whether a file is missing for a moment while it is replaced: on HDFS."""
  return path.startswith('hdfs:')


def touch(path: str, content: bytes) -> None:
  """Gives a file a new time.

  Args:
    content: what it has; an object gets its time when it is written.
  """
  if urls.is_remote(path):
    write(path, content)
  else:
    os.utime(path)  # Even if the disk is full.


def see_time(path: str) -> float:
  """Returns when a file was written or touched, in s since 1970.

  That is by the clock of the file server or the store, as `see_now`.
  """
  if not urls.is_remote(path):
    return os.stat(path).st_mtime

  def look(fs: Any, key: str) -> float:
    fs.invalidate_cache()
    return fs.modified(key).timestamp()

  return retries.ask(path, look)


def see_now(folder: str) -> float:
  """Returns the time by the clock of the file server or the store."""
  if not urls.is_remote(folder):
    return disk.see_now(folder)
  probe = os.path.join(folder, f'time.{secrets.token_hex(4)}.new')
  write(probe, b'.')
  try:
    return see_time(probe)
  finally:
    remove(probe)


def get_version(path: str) -> float | None:
  """Returns what changes with the file; None without it."""
  try:
    if urls.is_remote(path):
      return see_time(path)
    return os.stat(path).st_mtime_ns
  except OSError:
    return None


def remove(path: str) -> None:
  """Removes a file; one that is not there is no error."""
  with contextlib.suppress(FileNotFoundError):
    if urls.is_remote(path):
      retries.ask(path, lambda fs, key: fs.rm_file(key))
    else:
      os.remove(path)


def remove_folder(path: str) -> None:
  """Removes a folder and all in it; on a disk, as far as that is possible."""
  if not urls.is_remote(path):
    shutil.rmtree(path, ignore_errors=True)
    return
  with contextlib.suppress(FileNotFoundError):
    retries.ask(path, lambda fs, key: fs.rm(key, recursive=True))


def rename(path: str, new_path: str) -> None:
  """Renames a file, or a folder with everything in it.

  A store copies and removes, so a rename that is cut off leaves some objects
  under each name.
  """
  if not urls.is_remote(path):
    os.rename(path, new_path)
    return

  def move(fs: Any, key: str) -> None:
    fs.invalidate_cache()
    new_key = fs._strip_protocol(new_path)
    if isinstance(fs, hdfs.Hdfs):
      fs.mv(key, new_key)
      return
    for found in fs.find(key):
      fs.cp_file(found, new_key + found[len(key) :])
      fs.rm_file(found)

  retries.ask(path, move)
