"""The contract of a Store: what the programs ask of a path or an address.

A disk, S3, Google Cloud Storage and HDFS keep it alike
(tests/storage/contract_test.py): a file is written whole or not at all, of two
processes that create one at once only one succeeds, and what is written is
listed at once. For a path on this machine, a function that reads or removes
does what `os` does. In all cases, an OSError has its reason in `strerror`. A
folder that cannot be read is such an error: it is not taken for one that is not
there, as by os.path.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat

from distmnist.storage import disk, stores, urls

_ABSENT = errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP


def exists(path):
  if urls.is_remote(path):
    return stores.exists(path)
  return _stat(path) is not None


def _stat(path):
  """Returns the os.stat_result of what is at `path`, or None."""
  try:
    return os.stat(path)
  except OSError as error:
    if error.errno not in _ABSENT:
      raise
    return None


def list_names(folder):
  """Returns the names (list of str) of what is in `folder`; [] without it."""
  if urls.is_remote(folder):
    return [_name(entry) for entry in stores.list_entries(folder)]
  return os.listdir(folder) if is_folder(folder) else []


def list_files(folder):
  """Returns the names (list of str) of the files in `folder`."""
  if urls.is_remote(folder):
    entries = stores.list_entries(folder)
    return [_name(entry) for entry in entries if entry['type'] == 'file']
  names = list_names(folder)
  return [n for n in names if os.path.isfile(os.path.join(folder, n))]


def is_folder(path):
  if urls.is_remote(path):
    return bool(stores.list_entries(path))
  found = _stat(path)
  return found is not None and stat.S_ISDIR(found.st_mode)


def make_folders(path):
  """Makes a folder and those above it; a store needs none."""
  if not urls.is_remote(path):
    os.makedirs(path, exist_ok=True)


def read_bytes(path):
  if urls.is_remote(path):
    return stores.read(path)
  with open(path, 'rb') as file:
    return file.read()


def read_text(path):
  return read_bytes(path).decode('utf-8')


def write(path: str, content: bytes) -> None:
  """Writes a file, or replaces it, whole or not at all."""
  if urls.is_remote(path):
    stores.write(path, content)
  else:
    with disk.replacing(path, 'wb') as file:
      file.write(content)


def create(path: str, content: bytes) -> bool:
  """Writes a new file, if there is none; returns whether ours is there now.

  Of two processes that do it at once only one succeeds.

  Args:
    path: of the file.
    content: unlike that of any other process.
  """
  is_remote = urls.is_remote(path)
  return (stores if is_remote else disk).create(path, content)


def touch(path: str, content: bytes) -> None:
  """Gives a file a new time.

  Args:
    path: of the file.
    content: what it has; an object gets its time when it is written.
  """
  if urls.is_remote(path):
    stores.write(path, content)
  else:
    os.utime(path)  # Even if the disk is full.


def see_time(path: str) -> float:
  """Returns when a file was written or touched, in s since 1970.

  That is by the clock of the file server or the store, as `see_now`.
  """
  if urls.is_remote(path):
    return stores.modified(path)
  return os.stat(path).st_mtime


def see_now(folder: str) -> float:
  """Returns the time by the clock of the file server or the store."""
  if not urls.is_remote(folder):
    return disk.see_now(folder)
  probe = os.path.join(folder, f'time.{secrets.token_hex(4)}.new')
  stores.write(probe, b'.')
  try:
    return stores.modified(probe)
  finally:
    stores.remove(probe)


def remove(path: str) -> None:
  """Removes a file; one that is not there is no error."""
  if urls.is_remote(path):
    stores.remove(path)
  else:
    with contextlib.suppress(FileNotFoundError):
      os.remove(path)


def remove_folder(path):
  """Removes a folder and all in it, as far as that is possible."""
  if urls.is_remote(path):
    stores.remove(path, is_folder=True)
  else:
    shutil.rmtree(path, ignore_errors=True)


def rename(path, new_path):
  if urls.is_remote(path):
    stores.move(path, new_path)
  else:
    os.rename(path, new_path)


def get_version(path):
  """Returns what changes with the file, or None if there is none."""
  try:
    if urls.is_remote(path):
      return stores.modified(path)
    return os.stat(path).st_mtime_ns
  except OSError:
    return None


def _name(entry):
  return os.path.basename(entry['name'].rstrip('/'))
