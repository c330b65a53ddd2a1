"""HDFS, through pyarrow and libhdfs, with the promises of an object store.

A file appears whole or not at all: it is written beside its place and then
renamed. HDFS does not rename onto a file, so one that is replaced is missing
for a moment. Until then the new one bears a name that says so, and whoever
looks meanwhile looks again.
"""

import contextlib
import errno
import os
import re
import secrets
import time

# A new file that waits for its place, which the old one has just left.
_REPLACING = re.compile(r'(.+)\.[0-9a-f]{8}\.replaces')
_LOOK_SECS = 0.1
_NUM_LOOKS = 20


class Hdfs:
  """The operations of fsspec that `stores` uses. Each raises OSError.

  A path begins with /. FileNotFoundError means that nothing is there; pyarrow
  alone raises it, and EIO, for other reasons too.
  """

  def __init__(self, fs):
    """
    Args:
      fs: fsspec's file system for hdfs://.
    """
    self._fs = fs
    self._strip_protocol = fs._strip_protocol

  def invalidate_cache(self):
    pass  # pyarrow has none.

  def info(self, path):
    with contextlib.suppress(FileNotFoundError):
      return self._fs.info(path)
    # pyarrow's `info` takes a NameNode that does not answer for a path that
    # does not exist. A listing tells them apart.
    folder = os.path.dirname(path)
    for entry in self._list(folder):
      if entry['name'] == path:
        return entry
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

  def ls(self, path, detail=True):
    """Returns the entries of a folder, or that of a file in a list."""
    entry = self.info(path)
    found = self._list(path) if entry['type'] == 'directory' else [entry]
    return found if detail else [x['name'] for x in found]

  def modified(self, path):
    return self.info(path)['mtime']

  def cat_file(self, path):
    return self._read(path, self._fs.cat_file)

  def get_file(self, path, local):
    self._read(path, lambda place: self._fs.get_file(place, local))

  def pipe_file(self, path, content, mode='overwrite'):
    """Writes bytes; `create` looks for a file first, in a second request."""
    if mode == 'create' and self._is_there(path):
      raise FileExistsError(path)
    self._put(path, lambda place: self._fs.pipe_file(place, content))

  def put_file(self, local, path):
    self._put(path, lambda place: self._fs.put_file(local, place))

  def mv(self, path, new_path):
    self.info(path)
    self._fs.makedirs(os.path.dirname(new_path), exist_ok=True)
    self._fs.mv(path, new_path)

  def rm_file(self, path):
    self.info(path)
    self._fs.rm_file(path)

  def rm(self, path, recursive):
    self.info(path)
    self._fs.rm(path, recursive=recursive)

  def _is_there(self, path):
    try:
      return bool(self.info(path))
    except FileNotFoundError:
      return False

  def _read(self, path, get):
    while True:
      self.info(path)
      # It may be replaced between the two requests.
      with contextlib.suppress(FileNotFoundError):
        return get(path)

  def _put(self, path, write_to):
    """Makes a file by write_to(a path beside it)."""
    new = f'{path}.{secrets.token_hex(4)}.new'
    self._fs.makedirs(os.path.dirname(path), exist_ok=True)
    try:
      write_to(new)
      if self._is_there(path):
        waiting = f'{new.removesuffix(".new")}.replaces'
        self._fs.mv(new, waiting)
        new = waiting
        self._fs.rm_file(path)
      self._fs.mv(new, path)
    except BaseException:
      with contextlib.suppress(Exception):
        if new.endswith('.new') or self._is_there(path):
          self._fs.rm_file(new)
      raise

  def _list(self, folder):
    """Returns the entries of a folder at a moment when no file is replaced."""
    for _ in range(_NUM_LOOKS):
      entries = self._fs.ls(folder, detail=True)
      names = {entry['name'] for entry in entries}
      waiting = {
        name: found[1]
        for name in names
        if (found := _REPLACING.fullmatch(name)) and found[1] not in names
      }
      if not waiting:
        return entries
      time.sleep(_LOOK_SECS)
    # Who replaced them was killed. The new files are whole.
    for name, place in waiting.items():
      with contextlib.suppress(OSError):
        self._fs.mv(name, place)
    return self._fs.ls(folder, detail=True)
