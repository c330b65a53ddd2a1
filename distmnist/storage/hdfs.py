"""HDFS, through pyarrow and libhdfs, with the promises of an object store.

A file appears whole or not at all: it is written beside its place and then
renamed. pyarrow removes a file that is in the way of a rename first, so one
that is replaced is missing for the time of a request. Only a rename *into a
folder* fails where the folder has a file of that name: that creates a file of
which there is only one.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import secrets
from collections.abc import Callable
from typing import Any


class Hdfs:
  """The operations of fsspec that `stores` uses. Each raises OSError.

  A path begins with /. FileNotFoundError means that nothing is there; pyarrow
  alone raises it, and EIO, for other reasons too.
  """

  def __init__(self, fs: Any) -> None:  # fsspec's own for hdfs://.
    self._fs = fs
    self._strip_protocol = fs._strip_protocol

  def invalidate_cache(self) -> None:
    pass  # pyarrow has none.

  def info(self, path: str) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
      return self._fs.info(path)
    # pyarrow's `info` takes a NameNode that does not answer for a path that
    # does not exist. A listing tells them apart.
    folder = os.path.dirname(path)
    for entry in self._fs.ls(folder, detail=True):
      if entry['name'] == path:
        return entry
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

  def ls(self, path: str, detail: bool = True) -> list[Any]:
    """Returns the entries of a folder, or that of a file in a list."""
    entry = self.info(path)
    is_folder = entry['type'] == 'directory'
    found = self._fs.ls(path, detail=True) if is_folder else [entry]
    return found if detail else [x['name'] for x in found]

  def modified(self, path: str) -> datetime.datetime:
    return self.info(path)['mtime']

  def cat_file(self, path: str) -> bytes:
    self.info(path)
    return self._fs.cat_file(path)

  def get_file(self, path: str, local: str) -> None:
    self.info(path)
    self._fs.get_file(path, local)

  def pipe_file(
    self, path: str, content: bytes, mode: str = 'overwrite'
  ) -> None:
    """Writes bytes; raises FileExistsError if `create` finds a file there."""
    write = self._create if mode == 'create' else self._put
    write(path, lambda place: self._fs.pipe_file(place, content))

  def put_file(self, local: str, path: str) -> None:
    self._put(path, lambda place: self._fs.put_file(local, place))

  def mv(self, path: str, new_path: str) -> None:
    self.info(path)
    self._fs.makedirs(os.path.dirname(new_path), exist_ok=True)
    self._fs.mv(path, new_path)

  def rm_file(self, path: str) -> None:
    self.info(path)
    self._fs.rm_file(path)

  def rm(self, path: str, recursive: bool) -> None:
    self.info(path)
    self._fs.rm(path, recursive=recursive)

  def _put(self, path: str, write_to: Callable[[str], None]) -> None:
    """Makes or replaces a file by write_to(a path beside it)."""
    new = f'{path}.{secrets.token_hex(4)}.new'
    self._fs.makedirs(os.path.dirname(path), exist_ok=True)
    try:
      write_to(new)
      self._fs.mv(new, path)
    except BaseException:
      with contextlib.suppress(Exception):
        self._fs.rm_file(new)
      raise

  def _create(self, path: str, write_to: Callable[[str], None]) -> None:
    """Makes a file by write_to(a path of the same name in a folder of its own).

    Of two processes that do it at once only one succeeds.
    """
    folder, name = os.path.split(path)
    apart = f'{path}.{secrets.token_hex(4)}.new'
    self._fs.makedirs(apart, exist_ok=True)
    try:
      write_to(f'{apart}/{name}')
      try:
        self._fs.mv(f'{apart}/{name}', folder)
      except OSError as error:
        with contextlib.suppress(FileNotFoundError):
          self.info(path)
          raise FileExistsError(path) from error
        raise
    finally:
      with contextlib.suppress(Exception):
        self._fs.rm(apart, recursive=True)
