"""A checkpoint that was made from others, kept as long as it is read."""

import glob
import os
import shutil

from distmnist.common import cli
from distmnist.storage import scratch


class CachedCopy:
  """Is in the scratch folder until another one is asked for."""

  def __init__(self):
    self._version = self._folder = self._path = None

  def find(self, version, name, write):
    """Returns the path (str) of the copy, which is made if it is not there.

    Args:
      version: whatever compares as equal only for the same copy.
      name: str, of its file.
      write: callable(path), writes it in a new folder.
    """
    if self._version != version:
      self.drop()
      folder = scratch.make('copy')
      path = os.path.join(folder, name)
      try:
        write(path)
      except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
      self._version, self._folder, self._path = version, folder, path
    return self._path

  def drop(self):
    """Removes the copy, if there is one."""
    if self._folder:
      shutil.rmtree(self._folder, ignore_errors=True)
    self._version = self._folder = self._path = None


def find_version(path):
  """Returns what changes with the files of a checkpoint on this machine."""
  found = map(os.stat, sorted(glob.glob(f'{glob.escape(path)}.*')))
  return path, tuple((x.st_size, x.st_mtime_ns) for x in found)


def check_room(what, needed):
  """Checks that the scratch folder has room for a copy.

  Args:
    what: str, what needs it, and for which copy.
    needed: int, bytes.

  Raises:
    cli.PassingError: it has not.
  """
  folder = scratch.folder()
  free = shutil.disk_usage(folder).free
  if free < needed:
    raise cli.PassingError(
      f'{what} in {folder}, where {free / 1e6:,.1f} MB are free and it takes '
      f'{needed / 1e6:,.1f} MB; make room there, or name another folder by the '
      'environment variable TMPDIR'
    )
