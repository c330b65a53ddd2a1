"""What the programs ask of a path, which may be an address.

For a path on this machine, each function does what `os` does. In both cases, an
OSError has its reason in `strerror`. A folder that cannot be read is such an
error: it is not taken for one that is not there, as by os.path.
"""

import errno
import os
import shutil
import stat

from distmnist.storage import stores, urls

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


def remove(path):
  """Removes a file; a missing one is an error on this machine only."""
  if urls.is_remote(path):
    stores.remove(path)
  else:
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
